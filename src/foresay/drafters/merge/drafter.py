"""Several drafters' drafts in one tree.

Two drafters often draft the same tokens, and the target should verify the same path once. The
merged tree is the union of the root paths. So its paths do not depend on the order of the drafters,
nor on a drafter that is there twice.

The rule for scores. A node's chance, given that its parent is committed, starts as

    1 - (1 - a)(1 - b)…

of the chances that its drafters give it, as if they were wrong independently; a drafter without
scores counts as `prior`. How far that is wrong is learned from the verdicts of unions
(`csrc/merge/`), for each tenant apart: by which drafters have the node, how sure they are, how sure
others are of its siblings, and the noise of its token. So nodes of all drafters compete by what
they are worth. A node's score is the product along its path. If there are more nodes than the
budget, those with the largest scores stay (a node never without its parent); ties go to the
shallower node, then to the smaller tokens.

Where time has a price, or only one drafter is there beside one of external drafts, a request for
which a single drafter has something gets its draft as it is, with its own scores, unless it needs
to be cut. Nothing is learned from its verdict.

A merged draft is always *chosen*: the union cannot have the probs that tokens were sampled from
(the same token from two drafters would have to be there twice). `provenance` has them, by drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any, Literal

from foresay import _core
from foresay.abilities import abilities_of, check_drafter
from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import DraftBatch
from foresay.drafter import (
    Drafter,
    ExternalDraft,
    SeededParams,
    Source,
    as_budgets,
    as_prompt,
    as_states,
    check_lengths,
)
from foresay.drafters.merge.gating import Gating, Member
from foresay.drafters.merge.union import (
    MergeState,
    Proposer,
    Union,
    all_wants,
    check_fits,
    learn,
    own_verdicts,
    same_text,
)
from foresay.drafters.merge.uniting import unite
from foresay.errors import InputError, UnknownGroup
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["MergeDrafter"]


class MergeDrafter:
    """Asks each drafter for more than the budget and proposes the best of their union. Each drafter
    observes every commit, at the latest before it is asked again: all committed tokens, and a path
    in its *own* last proposal. `wants` is the union of the drafters' `wants`; each gets its own.

    prior  the chance of a node given its parent, of a drafter without scores
    rule   "union", or "first": a request's draft is that of the first drafter that has one. With
           `SuffixDrafter(rule="sam")` first, this is SAM-Decoding's choice between a long match and
           an auxiliary drafter
    clock  the seconds by which drafters are timed

    Where the engine says what time is worth (`price`), a drafter that takes long is asked only
    where that is expected to pay: see `merge.gating`. Otherwise all are always asked. External
    drafts (`ExternalDrafter`) are always used; where none has come, all is as without that member.

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
        self._abilities = [abilities_of(drafter) for drafter in drafters]
        if not isinstance(prior, (int, float)) or not 0 <= prior <= 1:
            raise InputError(f"prior is {prior!r}; expected a chance from 0 to 1")
        if rule not in ("union", "first"):
            raise InputError(f"rule is {rule!r}; expected 'union' or 'first'")
        self.drafters = drafters
        self.rule = rule
        self._gating = Gating(drafters, self._abilities, rule == "first", clock)
        self._members = self._gating.members
        self.wants = all_wants([drafter.wants for drafter in drafters])
        self._merge = _core.TreeMerge(len(drafters), prior)
        self._clock = clock

    @property
    def needs_target(self) -> bool:
        """Whether one of the drafters cannot draft before `fit`."""
        return any(able.fits is not None and able.fits.needs_target for able in self._abilities)

    def fit(self, target: Any, tokenizer_hash: bytes | None = None) -> None:
        """Tell every drafter that wants to know of the target.

        Raises: InputError, TokenizerMismatch if one of them cannot draft for it.
        """
        for able in self._abilities:
            if able.fits is not None:
                able.fits.fit(target, tokenizer_hash)

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
        for able in self._abilities:
            if able.weighs is not None:
                able.weighs.price(token, node, step)
        self._gating.tell(token, node, step)

    def weighed_seconds(self) -> float:
        """Seconds of the last proposal that drafters took because they seemed to pay."""
        return self._gating.weighed

    def wants_now(self) -> Wants:
        """The part of `wants` that is worth its time in the next step; see `merge.gating`."""
        return all_wants([member.wants for member in self._members])

    def shown(self, seconds: float) -> None:
        """Finding what it wants to see took so long in this step."""
        self._gating.shared += seconds

    def share_kv_cache(
        self, target: Any, states: Sequence[MergeState], kvs: Sequence[Any], /
    ) -> None:
        """Share the target's KV cache with every drafter that reads it; see SelfDrafter.

        Raises: StateError, InputError.
        """
        for member in self._members:
            if member.able.shares_kv is not None:
                states = as_states(states, MergeState, self)
                member.able.shares_kv.share_kv_cache(target, member.own(states), kvs)

    @property
    def external_drafts(self) -> Literal["also", "none"]:
        """Whether one of its drafters takes drafts from outside."""
        told = [able.external.external_drafts for able in self._abilities if able.external]
        return "also" if any(which != "none" for which in told) else "none"

    def add_external_draft(self, state: MergeState, text: IntsLike, draft: ExternalDraft, /) -> int:
        """Keep a draft for this text, or for a later one, in the drafters of external drafts.
        Returns how many of its nodes are new.

        Mutates: the state. Raises: StateError, TokenTypeError, InputError.
        """
        as_states([state], MergeState, self)
        added = 0
        for able, own in zip(self._abilities, state.states, strict=True):
            if able.external is not None:
                added += able.external.add_external_draft(own, as_tokens(text, "text"), draft)
        return added

    def has_external_draft(self, state: MergeState, /) -> bool:
        """Whether an external draft continues the text. Raises: StateError."""
        as_states([state], MergeState, self)
        return any(self._has_external(member, state) for member in self._members)

    @staticmethod
    def _has_external(member: Member, state: MergeState) -> bool:
        able = member.able.external
        return able is not None and able.has_external_draft(state.states[member.index])

    def _takes_part(self, member: Member, states: Sequence[MergeState]) -> bool:
        if member.external:
            return any(self._has_external(member, state) for state in states)
        return member.enabled

    def propose(self, states: Sequence[MergeState], budgets: Sequence[int], /) -> DraftBatch:
        """The best nodes of the union of all drafters' trees, parents first, best first.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ, or for a drafter's draft that does not fit; what a drafter raises.
        """
        states = as_states(states, MergeState, self)
        checked = as_budgets(budgets, len(states))
        members = [member for member in self._members if self._takes_part(member, states)]
        step = self._gating.ask(members, states, checked)
        began = self._clock()
        keeps_lone = self._gating.price is not None or self._gating.beside_external
        drafts = unite(self._merge, step, states, checked, keeps_lone=keeps_lone)
        self._gating.shared = self._clock() - began if len(step) > 1 else 0.0
        for member in members:
            if member.able.adopts is not None:  # it learns from every verified node
                member.able.adopts.adopt(member.own(states), drafts.without_probs())
        return drafts

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
        told = [self._own_verdicts(member, batch, unions) for member in self._members]
        observing, bounds = [], batch.offsets.tolist()
        for member, own in zip(self._members, told, strict=True):
            began = self._clock()
            if own is None:
                for at, state in enumerate(states):
                    missed = batch.tokens[bounds[at] : bounds[at + 1]].copy()
                    state.missed[member.index].append(missed)
            else:
                member.drafter.observe(member.own(states), own)
            observing.append(self._clock() - began)
        learn(self._merge, states, batch)
        self._gating.observe(unions, batch, observing)
        for at, state in enumerate(states):
            for k in () if state.last is None else state.last.members:
                state.read[k] = state.length
            state.last = None
            state.length += bounds[at + 1] - bounds[at]

    def _own_verdicts(
        self, member: Member, batch: VerdictBatch, unions: Sequence[Union | None]
    ) -> VerdictBatch | None:
        """The verdicts for a member; None: it hears of them before it is asked again."""
        k = member.index
        if self._gating.told_later(member):
            return None
        adopting = member.enabled and member.able.adopts is not None
        as_is = all(u is not None and u.is_of(k) for u in unions)
        return own_verdicts(batch, unions, k, member.wants, adopting=adopting or as_is)

    def finish(self, state: MergeState, /) -> None:
        """End the request in every drafter.

        Mutates: the state, which is dead afterwards, and what the drafters' `finish` mutates.
        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], MergeState, self)
        state.finished = True
        with ExitStack() as every:  # all of them, also if one raises
            for member in self._members:
                every.callback(member.drafter.finish, state.states[member.index])
                every.callback(member.own, [state])  # before it: the last comes first

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Add an earlier answer to a group in every drafter that keeps groups.

        Raises: TokenTypeError, InputError.
        """
        for able in self._abilities:
            if able.groups is not None:
                able.groups.add_to_group(group, prompt, answer, tenant=tenant)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """Tell every drafter with a history that its texts are of an old version now.

        Raises: InputError.
        """
        for able in self._abilities:
            if able.versions is not None:
                able.versions.new_version(keep, tenant=tenant)

    def drop_tenant(self, tenant: str) -> None:
        """Forget a tenant in every drafter that keeps anything of tenants.

        Raises: InputError.
        """
        for able in self._abilities:
            if able.tenants is not None:
                able.tenants.drop_tenant(tenant)
        self._merge.forget(tenant)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group in every drafter that keeps groups.

        Valid until: the next `begin` with this group. Raises: UnknownGroup if drafters keep groups
        and none of them knows this one.
        """
        keeping = [able.groups for able in self._abilities if able.groups is not None]
        refusals: list[UnknownGroup] = []
        for groups in keeping:
            try:
                groups.drop_group(group, tenant)
            except UnknownGroup as refusal:
                refusals.append(refusal)
        if refusals and len(refusals) == len(keeping):
            raise refusals[0]

    def bytes_used(self) -> int:
        """Bytes that the drafters hold in memory, of those that can tell."""
        return sum(able.memory.bytes_used() for able in self._abilities if able.memory is not None)

    def tokens_held(self) -> int:
        """Tokens of all texts that they hold, of those that can tell."""
        return sum(able.memory.tokens_held() for able in self._abilities if able.memory is not None)

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes that the drafters which know tenants hold for one tenant."""
        every = (able.tenants for able in self._abilities if able.tenants is not None)
        return sum(own.bytes_of(tenant) for own in every)

    def text(self, state: MergeState, /) -> Int32s:
        """Prompt and observed tokens, as the drafters with `text` hold them: all the same.

        A copy. Raises: StateError if it was finished or if the drafters' texts differ, InputError
        if no drafter has `text`.
        """
        as_states([state], MergeState, self)
        own = [(member.able.text, member.own([state])[0]) for member in self._members]
        texts = [able.text(each) for able, each in own if able is not None]
        return same_text(texts, len(self.drafters))

    def proposers(self, state: MergeState, /) -> list[tuple[int, ...]]:
        """Which drafters proposed a node, for each node of the state's last proposal: their places
        in `drafters`, rising. A node's multiplicity is how many there are.

        Raises: StateError.
        """
        return [tuple(sorted({p.drafter for p in each})) for each in self.provenance(state)]

    def provenance(self, state: MergeState, /) -> list[tuple[Proposer, ...]]:
        """For each node of the state's last proposal, each drafter that proposed it, and the
        distribution that it sampled the token from: q of SpecInfer's merged trees. These are the
        drafter's own `probs`.

        Raises: StateError.
        """
        as_states([state], MergeState, self)
        return [] if state.last is None else state.last.provenance()

    def sources(self, state: MergeState, /) -> list[tuple[Source, ...]]:
        """The sources of all drafters that proposed a node, for each node of the state's last
        proposal; `Source.OTHER` for a drafter that does not report sources.

        Raises: StateError.
        """
        as_states([state], MergeState, self)
        if state.last is None:
            return []
        of: dict[int, Sequence[tuple[Source, ...]]] = {}
        for k, own in state.last.members.items():
            able, other = self._abilities[k].sources, [(Source.OTHER,)] * len(own.home)
            of[k] = other if able is None else able.sources(state.states[k])
        return state.last.sources(of)
