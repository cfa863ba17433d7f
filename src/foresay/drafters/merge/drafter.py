"""Several drafters' drafts in one tree.

Two drafters often draft the same tokens, and the target should verify the same path once. The
merged tree is the union of the root paths. So its paths do not depend on the order of the drafters,
nor on a drafter that is there twice. This module knows drafters only by their contract.

The rule for scores. A node's chance, given that its parent is committed, starts as

    1 - (1 - a)(1 - b)…

of the chances that its drafters give it, as if they were wrong independently; a drafter without
scores counts as `prior`. How far that is wrong is learned from the verdicts of unions
(`csrc/merge/`), for each tenant apart: by which drafters have the node, how sure they are, how sure
others are of its siblings, and the noise of its token. So nodes of all drafters compete by what
they are worth. A node's score is the product along its path. If there are more nodes than the
budget, those with the largest scores stay (a node never without its parent); ties go to the
shallower node, then to the smaller tokens.

Where time has a price and only one drafter has drafts, they are proposed as they are, with its own
scores, unless they need to be cut. Nothing is learned from their verdicts.

A merged draft is always *chosen*: the union cannot have the probs that tokens were sampled from
(the same token from two drafters would have to be there twice). `provenance` has them, by drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Literal

import numpy as np

from foresay import _core
from foresay.arrays import Int32s, IntsLike, sizes_of
from foresay.draft import DraftBatch
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
from foresay.drafters.merge import by_one
from foresay.drafters.merge.members import Members
from foresay.drafters.merge.merged import (
    MergeState,
    Proposer,
    Tree,
    all_wants,
    catch_up,
    check_fits,
    learn,
    note_missed,
    note_unions,
    own_verdicts,
    same_text,
)
from foresay.errors import InputError, UnknownGroup
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["MergeDrafter", "MergeState"]


class MergeDrafter:
    """Asks each drafter for more than the budget and proposes the best of their union: what one
    drafter finds unlikely may be good where another one says the same.
    Each drafter observes every commit, at the latest before it is asked again: its verdict has all
    committed tokens, and a path in the indices of its *own* last proposal, without the nodes that
    only others proposed. `wants` is the union of the drafters' `wants`; each gets its own.

    prior  the chance of a node given its parent, of a drafter without scores
    rule   "union", or "first": a request's draft is that of the first drafter that has one. With
           `SuffixDrafter(rule="sam")` first, this is SAM-Decoding's choice between a long match and
           an auxiliary drafter
    clock  the seconds by which drafters are timed

    Where the engine says what time is worth (`price`), a drafter that takes long is asked only
    where that is expected to pay: `merge.paying` has the rule. Otherwise all are always asked.

    Raises: InputError for no drafter, a prior outside 0 … 1, another rule, or drafters that want
    hidden states of different layers.
    """

    def __init__(
        self,
        *drafters: Drafter[Any],
        prior: float = 0.5,
        rule: Literal["union", "first"] = "union",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if not drafters:
            raise InputError("MergeDrafter() got no drafter; expected at least one")
        for drafter in drafters:
            check_drafter(drafter)
        if not isinstance(prior, (int, float)) or not 0 <= prior <= 1:
            raise InputError(f"prior is {prior!r}; expected a chance from 0 to 1")
        if rule not in ("union", "first"):
            raise InputError(f"rule is {rule!r}; expected 'union' or 'first'")
        self.drafters = drafters
        self._members = Members(drafters, rule, clock)
        self.wants = all_wants(tuple(drafter.wants for drafter in drafters))
        self._merge = _core.TreeMerge(len(drafters), prior)
        self._clock = clock
        self._only: int | None = None  # the drafter of the last proposal, if there was but one
        self._showing = 0.0  # seconds that finding what they want to see took in this step
        # Some learn from every verified node, not from their own alone: they get the merged drafts.
        self._adopting = [hasattr(drafter, "adopt") for drafter in drafters]

    def fit(self, target: Any, tokenizer_hash: bytes | None = None) -> None:
        """Tell every drafter that wants to know of the target.

        Raises: InputError, TokenizerMismatch if one of them cannot draft for it.
        """
        for fit in self._having("fit"):
            fit(target, tokenizer_hash)

    def _having(self, name: str) -> list[Callable[..., Any]]:
        return [getattr(drafter, name) for drafter in self.drafters if hasattr(drafter, name)]

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
                own = None if sampling is None else sampling.copy()
                state = drafter.begin(tokens.copy(), group=group, tenant=tenant, sampling=own)
                states.append(state)
        except BaseException:
            for drafter, state in zip(self.drafters, states, strict=False):
                drafter.finish(state)
            raise
        return MergeState(self, states, len(tokens), sampling, self._merge.begin(tenant))

    def price(self, token: float, node: float, step: float) -> None:
        """How many seconds a committed token is worth in the next step, verifying a node takes, and
        the step would take without drafts."""
        for tell in self._having("price"):
            tell(token, node, step)
        self._members.price(token, node, step)

    def wants_now(self) -> Wants:
        """The part of `wants` that is worth its time in the next step; see `merge.seeing`."""
        awake = (d.wants for k, d in enumerate(self.drafters) if self._members.awake(k))
        return all_wants(tuple(awake))

    def shown(self, seconds: float) -> None:
        """Finding what it wants to see took so long in this step."""
        self._showing = seconds

    @property
    def lend(self) -> Callable[[Any, Sequence[MergeState], Sequence[Any]], None]:
        """Lend to every drafter that borrows; see SelfDrafter.

        Raises: AttributeError if none does; the call: StateError, InputError.
        """
        every = [(k, d.lend) for k, d in enumerate(self.drafters) if hasattr(d, "lend")]
        if not every:
            raise AttributeError("none of the drafters has lend()")

        def lend(target: Any, states: Sequence[MergeState], kvs: Sequence[Any], /) -> None:
            states = as_states(states, MergeState, self)
            for k, borrow in every:
                catch_up(self.drafters[k], k, states)
                borrow(target, [state.states[k] for state in states], kvs)

        return lend

    def weighed_seconds(self) -> float:
        """Seconds of the last proposal that drafters took because they seemed to pay."""
        return self._members.weighed

    def propose(self, states: Sequence[MergeState], budgets: Sequence[int], /) -> DraftBatch:
        """The best nodes of the union of all drafters' trees, parents first, best first.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ.
        """
        states = as_states(states, MergeState, self)
        checked = as_budgets(budgets, len(states))
        fresh = all(state.last is None for state in states)
        self._only = self._members.only(sum(n > 0 for n in checked)) if fresh else None
        if self._only is not None:
            if (drafts := by_one.propose(self.drafters, self._only, states, checked)) is not None:
                return drafts
            self._only = None
        own = [[state.states[k] for state in states] for k in range(len(self.drafters))]

        def united(batches: Sequence[DraftBatch]) -> Tree:
            tokens, parents, offsets, scores, homes = self._merge.merge(
                [(each.tokens, each.parents, each.offsets, each.scores) for each in batches],
                np.array(checked, np.int32),
                np.array([state.seed for state in states], np.uint64),
                np.array([state.temperature for state in states], np.float32),
                np.array([state.length for state in states], np.int64),
                [state.memory for state in states],
            )
            return Tree(DraftBatch._trusted(tokens, parents, offsets, scores), homes, True)

        unread = [[state.length - read for read in state.read] for state in states]
        batches, tree, notes = self._members.proposed(
            own,
            checked,
            unread,
            united,
            catch_up=lambda k: catch_up(self.drafters[k], k, states),
            fresh=fresh,
        )
        note_unions(states, tree, batches, notes, self._members.laws)
        for k, drafter in enumerate(self.drafters):
            if self._adopting[k] and self._members.awake(k):
                catch_up(drafter, k, states)
                drafter.adopt(own[k], tree.drafts.without_probs())  # type: ignore[attr-defined]
        return tree.drafts

    def observe(self, states: Sequence[MergeState], verdicts: Sequence[Verdict], /) -> None:
        """Tell every drafter what was committed, in the indices of its own last proposal.

        Mutates: the states and what the drafters' `observe` mutates. Valid until: `finish`. Raises:
        StateError, InputError for lengths that differ, a state that is there twice, or a path or
        top-k that does not fit the last proposal; nothing has changed then. If one drafter alone
        refuses, those before it have observed the commit already: `text` then says that they
        differ, and the request can only be finished.
        """
        states = as_states(states, MergeState, self)
        batch = VerdictBatch.of(verdicts)
        check_lengths(len(states), len(batch), "verdicts")
        unions = [state.last for state in states]
        check_fits(batch, unions)
        if self._only is not None and None not in unions:
            by_one.observe(self.drafters[self._only], self._only, states, batch)
            self._members.passed(len(batch.tokens))
            self._only, self._showing = None, 0.0
            return
        told: list[VerdictBatch | None] = []
        for k, drafter in enumerate(self.drafters):
            awake, own = self._members.awake(k), None
            if not self._members.told_later(k):
                wants, adopting = drafter.wants if awake else Wants(), awake and self._adopting[k]
                own = own_verdicts(batch, unions, k, wants, adopting=adopting)
            told.append(own)
        observing = []
        for k, drafter in enumerate(self.drafters):
            own, began = told[k], self._clock()
            if own is None:
                note_missed(k, states, batch)
            else:
                catch_up(drafter, k, states)
                drafter.observe([state.states[k] for state in states], own)
            observing.append(self._clock() - began)
        learn(self._merge, states, batch)
        self._members.observe(unions, batch, observing, self._showing)
        self._showing = 0.0
        for state, union, count in zip(states, unions, sizes_of(batch.offsets), strict=True):
            for asked, _, _ in () if union is None else union.notes:
                state.read[asked] = state.length
            state.last = None
            state.length += int(count)

    def finish(self, state: MergeState, /) -> None:
        """End the request in every drafter.

        Mutates: the state, which is dead afterwards, and what the drafters' `finish` mutates.
        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], MergeState, self)
        state.finished = True
        with ExitStack() as every:  # all of them, also if one raises
            for k, (drafter, inner) in enumerate(zip(self.drafters, state.states, strict=True)):
                every.callback(drafter.finish, inner)
                every.callback(catch_up, drafter, k, [state])  # before it: the last comes first

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Add an earlier answer to a group in every drafter that keeps groups.

        Raises: TokenTypeError, InputError.
        """
        for add in self._having("add_to_group"):
            add(group, prompt, answer, tenant=tenant)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """Tell every drafter with a history that its texts are of an old version now.

        Raises: InputError.
        """
        for change in self._having("new_version"):
            change(keep, tenant=tenant)

    def drop_tenant(self, tenant: str) -> None:
        """Forget a tenant in every drafter that keeps anything of tenants.

        Raises: InputError.
        """
        for drop in self._having("drop_tenant"):
            drop(tenant)
        self._merge.forget(tenant)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group in every drafter that keeps groups.

        Valid until: the next `begin` with this group. Raises: UnknownGroup if drafters keep groups
        and none of them knows this one.
        """
        refusals: list[UnknownGroup] = []
        known = False
        for drop in self._having("drop_group"):
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

        Raises: AttributeError if a drafter has no `bytes_used`: a part of the sum would mislead.
        """
        every = [drafter.bytes_used for drafter in self.drafters]  # type: ignore[attr-defined]
        return lambda: sum(used() for used in every)

    @property
    def bytes_of(self) -> Callable[[str | None], int]:
        """What the drafters that know tenants hold for one tenant.

        Raises: AttributeError if none knows tenants.
        """
        every = self._having("bytes_of")
        if not every:
            raise AttributeError("none of the drafters has bytes_of()")
        return lambda tenant: sum(of(tenant) for of in every)

    def text(self, state: MergeState, /) -> Int32s:
        """Prompt and observed tokens, as the drafters with `text` hold them: all the same.

        A copy. Raises: StateError if it was finished or if the drafters' texts differ, InputError
        if no drafter has `text`.
        """
        as_states([state], MergeState, self)
        for k, drafter in enumerate(self.drafters):
            catch_up(drafter, k, [state])
        return same_text(self.drafters, state)

    def proposers(self, state: MergeState, /) -> list[tuple[int, ...]]:
        """Which drafters proposed a node, for each node of the state's last proposal: their places
        in `drafters`, rising. A node's multiplicity is how many there are.

        Raises: StateError.
        """
        as_states([state], MergeState, self)
        return [] if state.last is None else state.last.proposers()

    def provenance(self, state: MergeState, /) -> list[tuple[Proposer, ...]]:
        """For each node of the state's last proposal, each drafter that proposed it, and the
        distribution that it sampled the token from: q of SpecInfer's merged trees. These are the
        drafter's own `probs`.

        Raises: StateError.
        """
        (last,) = (one.last for one in as_states([state], MergeState, self))
        return [] if last is None else last.provenance()

    def sources(self, state: MergeState, /) -> list[tuple[Source, ...]]:
        """The sources of all drafters that proposed a node, for each node of the state's last
        proposal; `Source.OTHER` for a drafter that does not report sources.

        Raises: StateError.
        """
        (last,) = (one.last for one in as_states([state], MergeState, self))
        if last is None:
            return []
        said = []
        for drafter, inner, home in zip(self.drafters, state.states, last.homes, strict=True):
            say = getattr(drafter, "sources", None)
            said.append([(Source.OTHER,)] * len(home) if say is None else say(inner))
        return last.sources(said)
