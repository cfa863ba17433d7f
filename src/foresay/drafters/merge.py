"""Several drafters' drafts in one tree.

Two drafters often draft the same tokens, and the target should verify the same path once. The
merged tree is the union of the root paths. So its paths do not depend on the order of the drafters,
nor on a drafter that is there twice. This module knows drafters only by their contract.

The rule for scores. A node that several drafters propose with chances a, b, … gets

    1 - (1 - a)(1 - b)…

as if the drafters were wrong independently. It is never more than its parent's, because a drafter
that proposes a node proposes its parent too. A drafter without scores counts as `prior ** depth`.
If there are more nodes than the budget, those with the largest scores stay (a node never without
its parent); ties go to the shallower node, then to the smaller tokens.

A merged draft is always *chosen*: the union cannot keep the probs that tokens were sampled from
(the same token from two drafters would have to be there twice), so `probs` is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from foresay.arrays import Int32s, IntsLike
from foresay.draft import Draft, DraftBatch
from foresay.drafter import (
    Drafter,
    SeededParams,
    Source,
    as_budgets,
    as_prompt,
    as_states,
    check_drafter,
    check_lengths,
)
from foresay.errors import InputError, StateError, UnknownGroup
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["MergeDrafter", "MergeState"]


class _Union:
    """The nodes of one merged proposal and, per drafter, where its own nodes went."""

    __slots__ = ("draft", "homes")

    def __init__(self, draft: Draft, homes: list[Int32s]) -> None:
        self.draft = draft
        self.homes = homes  # per drafter: merged index of each of its own nodes, -1 if cut


class MergeState:
    """One request: the state of each drafter, and the last proposal.

    Mutates: only its drafter writes to it. Valid until: `finish`.
    """

    __slots__ = ("finished", "last", "owner", "states")

    def __init__(self, owner: MergeDrafter, states: list[Any]) -> None:
        self.owner = owner
        self.states = states
        self.last: _Union | None = None
        self.finished = False


class MergeDrafter:
    """Asks each drafter for a full budget of nodes and proposes the best of their union.

    Each drafter observes every commit: its verdict has all committed tokens, and a path in the
    indices of its *own* last proposal, without the nodes that only others proposed. `wants` is the
    union of the drafters' `wants`, and each drafter gets what it wants.

    Raises: InputError for no drafter, a prior outside 0 … 1, or drafters that want hidden states of
    different layers.
    """

    def __init__(self, *drafters: Drafter[Any], prior: float = 0.5) -> None:
        if not drafters:
            raise InputError("MergeDrafter() got no drafter; expected at least one")
        for drafter in drafters:
            check_drafter(drafter)
        if not isinstance(prior, (int, float)) or not 0 <= prior <= 1:
            raise InputError(f"prior is {prior!r}; expected a chance from 0 to 1")
        self.drafters = drafters
        layers = {d.wants.hidden_layers for d in drafters if d.wants.hidden}
        if len(layers) > 1:
            raise InputError(
                f"the drafters want hidden states of different layers: {sorted(layers)}; expected "
                "the same for all, () being the last"
            )
        self.wants = Wants(
            topk=max(d.wants.topk for d in drafters),
            hidden=any(d.wants.hidden for d in drafters),
            hidden_layers=next(iter(layers), ()),
        )
        self._prior = prior

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> MergeState:
        """Start the request in every drafter.

        Valid until: `finish`. Raises: TokenTypeError, InputError; no drafter keeps the request
        then.
        """
        tokens = as_prompt(prompt)
        states: list[Any] = []
        try:
            for drafter in self.drafters:
                states.append(drafter.begin(tokens, group=group, tenant=tenant, sampling=sampling))
        except BaseException:
            for drafter, state in zip(self.drafters, states, strict=False):
                drafter.finish(state)
            raise
        return MergeState(self, states)

    def propose(self, states: Sequence[MergeState], budgets: Sequence[int], /) -> DraftBatch:
        """The best nodes of the union of all drafters' trees, parents first, best first.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ.
        """
        states = as_states(states, MergeState, self)
        checked = as_budgets(budgets, len(states))
        batches = [
            DraftBatch.of(drafter.propose([state.states[k] for state in states], checked))
            for k, drafter in enumerate(self.drafters)
        ]
        for state, budget, *drafts in zip(states, checked, *batches, strict=True):
            state.last = _merge(drafts, budget, self._prior)
        return DraftBatch.of([state.last.draft for state in states if state.last is not None])

    def observe(self, states: Sequence[MergeState], verdicts: Sequence[Verdict], /) -> None:
        """Tell every drafter what was committed, in the indices of its own last proposal.

        Mutates: the states and what the drafters' `observe` mutates. Valid until: `finish`.

        Raises: StateError, InputError for lengths that differ, a state that is there twice, or a
        path or top-k that does not fit the last proposal; nothing has changed then. If one drafter
        alone refuses (a request that is too long for it), the drafters before it have observed the
        commit already: `text` then says that they differ, and the request can only be finished.
        """
        states = as_states(states, MergeState, self)
        items = list(VerdictBatch.of(verdicts))
        check_lengths(len(states), len(items), "verdicts")
        for at, (state, verdict) in enumerate(zip(states, items, strict=True)):
            _check_fit(at, verdict, len(state.last.draft) if state.last else 0)
        batches = [
            VerdictBatch.of(
                [_own(v, s.last, k, drafter.wants) for s, v in zip(states, items, strict=True)]
            )
            for k, drafter in enumerate(self.drafters)
        ]
        for k, drafter in enumerate(self.drafters):
            drafter.observe([state.states[k] for state in states], batches[k])
        for state in states:
            state.last = None

    def finish(self, state: MergeState, /) -> None:
        """End the request in every drafter.

        Mutates: the state, which is dead afterwards, and what the drafters' `finish` mutates.
        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], MergeState, self)
        state.finished = True
        for drafter, inner in zip(self.drafters, state.states, strict=True):
            drafter.finish(inner)

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Add an earlier answer to a group in every drafter that keeps groups.

        Raises: TokenTypeError, InputError.
        """
        for drafter in self.drafters:
            add = getattr(drafter, "add_to_group", None)
            if add is not None:
                add(group, prompt, answer, tenant=tenant)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """Tell every drafter with a history that its texts are of an old version now.

        Raises: InputError.
        """
        for drafter in self.drafters:
            change = getattr(drafter, "new_version", None)
            if change is not None:
                change(keep, tenant=tenant)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group in every drafter that keeps groups.

        Valid until: the next `begin` with this group. Raises: UnknownGroup if drafters keep groups
        and none of them knows this one.
        """
        refusals: list[UnknownGroup] = []
        known = False
        for drafter in self.drafters:
            drop = getattr(drafter, "drop_group", None)
            if drop is None:
                continue
            try:
                drop(group, tenant)
                known = True
            except UnknownGroup as refusal:
                refusals.append(refusal)
        if refusals and not known:
            raise refusals[0]

    @property
    def bytes_used(self) -> Callable[[], int]:
        """What the drafters hold in memory, all together.

        Raises: AttributeError if a drafter has no `bytes_used`: a
        caller that looks for the name must not get a part of the sum.
        """
        every = [drafter.bytes_used for drafter in self.drafters]  # type: ignore[attr-defined]
        return lambda: sum(used() for used in every)

    @property
    def bytes_of(self) -> Callable[[str | None], int]:
        """What the drafters that know tenants hold for one tenant.

        Raises: AttributeError if none knows tenants.
        """
        every = [d.bytes_of for d in self.drafters if hasattr(d, "bytes_of")]
        if not every:
            raise AttributeError("none of the drafters has bytes_of()")
        return lambda tenant: sum(of(tenant) for of in every)

    def text(self, state: MergeState, /) -> Int32s:
        """Prompt and observed tokens, as the drafters with `text` hold them: all the same.

        A copy. Raises: StateError if it was finished or if the
        drafters' texts differ, InputError if no drafter has `text`.
        """
        as_states([state], MergeState, self)
        readers = [getattr(drafter, "text", None) for drafter in self.drafters]
        texts: list[Int32s] = [
            read(inner) for read, inner in zip(readers, state.states, strict=True) if read
        ]
        if not texts:
            raise InputError(f"none of the {len(self.drafters)} drafters has text(); expected one")
        if not all(np.array_equal(texts[0], text) for text in texts):
            sizes = ", ".join(str(len(text)) for text in texts)
            raise StateError(
                f"the drafters' texts differ, with {sizes} tokens, because one refused a commit "
                "that others had observed; finish this request"
            )
        return texts[0]

    def sources(self, state: MergeState, /) -> list[tuple[Source, ...]]:
        """The sources of all drafters that proposed a node, for each node of the state's last
        proposal; `Source.OTHER` for a drafter that does not report sources.

        Raises: StateError.
        """
        as_states([state], MergeState, self)
        if state.last is None:
            return []
        found: list[set[Source]] = [set() for _ in range(len(state.last.draft))]
        for drafter, inner, home in zip(self.drafters, state.states, state.last.homes, strict=True):
            say = getattr(drafter, "sources", None)
            said = [(Source.OTHER,)] * len(home) if say is None else say(inner)
            for node, its in zip(home.tolist(), said, strict=True):
                if node >= 0:
                    found[node].update(its)
        return [tuple(source for source in Source if source in node) for node in found]


def _merge(drafts: Sequence[Draft], budget: int, prior: float) -> _Union:
    # 1) The union, as a trie: a node is known by (parent, token).
    index: dict[tuple[int, int], int] = {}
    tokens: list[int] = []
    parents: list[int] = []
    paths: list[tuple[int, ...]] = []
    misses: list[dict[int, float]] = []  # per node: drafter -> 1 - its chance
    homes: list[list[int]] = []
    for k, draft in enumerate(drafts):
        scores = None if draft.scores is None else draft.scores.tolist()
        home: list[int] = []
        for i, (token, parent) in enumerate(
            zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
        ):
            above = home[parent] if parent >= 0 else -1
            node = index.setdefault((above, token), len(tokens))
            if node == len(tokens):
                tokens.append(token)
                parents.append(above)
                paths.append((*paths[above], token) if above >= 0 else (token,))
                misses.append({})
            chance = prior ** len(paths[node]) if scores is None else scores[i]
            # A drafter that proposes one path twice counts once.
            misses[node][k] = min(misses[node].get(k, 1.0), 1.0 - chance)
            home.append(node)
        homes.append(home)

    # 2) The scores. Sorted factors make the product the same in every order of the drafters; the
    # bound by the parent only undoes rounding.
    merged: list[float] = []
    for node, parent in enumerate(parents):
        score = 1.0 - prod(sorted(misses[node].values()))
        merged.append(min(score, merged[parent]) if parent >= 0 else score)

    # 3) The best nodes. A parent is never behind its child: its score is no smaller, its depth is.
    best = sorted(range(len(tokens)), key=lambda v: (-merged[v], len(paths[v]), paths[v]))[:budget]
    place = np.full(len(tokens) + 1, -1, np.int32)  # the last entry is for parent -1
    place[best] = np.arange(len(best), dtype=np.int32)
    draft = Draft._trusted(
        np.array([tokens[v] for v in best], np.int32),
        place[[parents[v] for v in best]] if best else np.empty(0, np.int32),
        np.array([merged[v] for v in best], np.float32),
    )
    return _Union(draft, [place[home] if home else place[:0] for home in homes])


def _check_fit(at: int, verdict: Verdict, size: int) -> None:
    if len(verdict.path) and int(verdict.path[-1]) >= size:
        raise InputError(
            f"the path of verdict {at} holds node {verdict.path[-1]}; "
            f"the last proposal has {size} nodes"
        )
    if verdict.topk is not None and len(verdict.topk) != size + 1:
        raise InputError(
            f"the topk of verdict {at} has {len(verdict.topk)} rows; "
            f"the last proposal has {size} nodes and needs {size + 1}"
        )


def _own(verdict: Verdict, union: _Union | None, k: int, wants: Wants) -> Verdict:
    """`verdict` for drafter k: in its own nodes, and with what it wants."""
    home = np.empty(0, np.int32) if union is None else union.homes[k]
    # Both run from root to leaf, and a drafter's tree holds whole root paths: what it did not
    # propose is always the end of the path.
    at = {node: i for i, node in enumerate(home.tolist()) if node >= 0}
    path = [at[node] for node in verdict.path.tolist() if node in at]
    topk, hidden = None, verdict.hidden if wants.hidden else None
    if wants.topk and verdict.topk is not None:
        rows = np.append(0, np.where(home < 0, -1, home + 1))
        topk = verdict.topk.take(rows).first(wants.topk)
    return Verdict._trusted(np.array(path, np.int32), verdict.tokens, topk, hidden)
