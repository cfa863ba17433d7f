"""Drafter gating: which members of a merge take part in a step, and for how many nodes.

Without a price of time all members draft. With one the quick ones draft always. For which requests
a slow one is asked, and for how much, its draft-length controller decides (`budget.draft_length`),
by what the drafts so far are expected to make. Drafters that wait for nobody (`DraftsAsync`) work
while others do, and take the time that they are waited for.

Some members want to see more than the committed tokens. The target's likeliest tokens and its
hidden states take time to find, to copy and to learn from, also in steps in which their drafter is
not asked. One that does not win more than all of that takes is disabled: it is neither shown them
nor asked, until the account covers another trial, since a drafter that learns may pay later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foresay.abilities import Abilities
from foresay.arrays import Floats, Int32s, sizes_of
from foresay.budget.draft_length import ALL, DraftLength, Plan, Price, by_part, group_of
from foresay.budget.recent import RecentMean
from foresay.budget.trials import SHARE, TrialAccount
from foresay.draft import Draft, DraftBatch
from foresay.drafter import MAX_BUDGET, Drafter, check_lengths
from foresay.drafters.merge.union import MergeState, Union
from foresay.errors import InputError
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["Asked", "Gating", "Member"]

_TRIAL = 32  # steps: a drafter that has seen nothing drafts nothing
_JUDGED_BY = 128  # steps by which a member that pays is judged


class _Enabled:
    """Whether a member that wants to see more takes part."""

    def __init__(self, account: TrialAccount) -> None:
        self.now = True
        self.account = account
        self._left = _TRIAL  # steps until it is judged
        self._net = RecentMean(memory=_JUDGED_BY)  # what it won in a step, less what it took

    def observe(self, net: float) -> None:
        """One more step; while it is enabled with what it won, less what it took."""
        if not self.now:
            if self.account.covers(-_TRIAL * self._net.value):
                self.now, self._left, self._net = True, _TRIAL, RecentMean(memory=_JUDGED_BY)
            return
        self._left -= 1
        self._net.observe(net)
        if self._left <= 0 and self._net.value <= 0:
            self.now = False
            self.account.settle(-_TRIAL * self._net.value)


class Member:
    """One drafter of a merge: what it was not told of yet, and what it takes and gains.

    index    its place among the drafters
    share    of the time, which its trials may lose
    """

    def __init__(self, index: int, drafter: Drafter[Any], able: Abilities, share: float) -> None:
        self.index = index
        self.drafter = drafter
        self.able = able
        # It only hands on what came from outside: that costs nothing, and is never weighed.
        self.external = able.external is not None and able.external.external_drafts == "only"
        self.account = TrialAccount(share)
        self.length = DraftLength(self.account)
        watches = bool(drafter.wants.topk or drafter.wants.hidden)
        self.gate = _Enabled(TrialAccount(SHARE)) if watches else None

    @property
    def enabled(self) -> bool:
        """Whether it takes part in the next step."""
        return self.gate is None or self.gate.now

    @property
    def wants(self) -> Wants:
        """What it wants to see of the next step."""
        return self.drafter.wants if self.enabled else Wants()

    def quick(self, requests: int) -> bool:
        """Whether it is always asked."""
        return self.external or (self.able.starts is None and self.length.quick(requests))

    def own(self, states: Sequence[MergeState]) -> list[Any]:
        """Its own states of these requests of the merge, which then know what was committed while
        it was not asked."""
        k = self.index
        behind = [state for state in states if state.missed[k]]
        if behind:
            none: Int32s = np.empty(0, np.int32)
            missed = [Verdict(none, np.concatenate(state.missed[k])) for state in behind]
            for state in behind:
                state.missed[k] = []
            self.drafter.observe([state.states[k] for state in behind], VerdictBatch.of(missed))
        return [state.states[k] for state in states]


@dataclass(slots=True)
class Asked:
    """How one member was asked in a step, and what that took and gave.

    plan    None: it was not weighed
    groups  of each request; -1: it was not asked for
    """

    member: Member
    budgets: list[int]
    plan: Plan | None = None
    groups: list[int] = field(default_factory=list)
    seconds: float = 0.0
    unread: int = 0  # tokens of their texts that it had not read
    drafts: DraftBatch | None = None
    probs: list[Floats | None] | None = None  # that tokens of its drafts were sampled from

    @property
    def requests(self) -> int:
        return sum(budget > 0 for budget in self.budgets)

    def weigh(self, sure: Sequence[float], states: Sequence[MergeState], price: Price) -> None:
        """Ask only for requests, and for as many nodes, as is expected to pay.

        sure  tokens that the drafts so far are expected to make for each request
        """
        k = self.member.index
        groups = [
            group_of(tokens) if n else -1 for n, tokens in zip(self.budgets, sure, strict=True)
        ]
        unread = [state.length - state.read[k] for state in states]
        wanted = [at for at, group in enumerate(groups) if group >= 0]
        plan = self.member.length.plan(
            [groups[at] for at in wanted], [unread[at] for at in wanted], price
        )
        self.plan = plan
        self.groups = [group if group in plan.groups else -1 for group in groups]
        self.unread = sum(n for n, group in zip(unread, self.groups, strict=True) if group >= 0)
        self.budgets = [
            plan.nodes(n) if group >= 0 else 0
            for group, n in zip(self.groups, self.budgets, strict=True)
        ]

    def start(self, states: Sequence[MergeState], clock: Callable[[], float]) -> None:
        """Let a member that works by itself begin."""
        began, starts = clock(), self.member.able.starts
        assert starts is not None
        starts.start(self.member.own(states), list(self.budgets))
        self.seconds += clock() - began

    def collect(self, states: Sequence[MergeState], clock: Callable[[], float]) -> None:
        """Its drafts, as chosen tokens: whether there are probs depends on what was sampled.

        Raises: InputError for drafts that do not fit; what the drafter raises.
        """
        began, member = clock(), self.member
        given = member.drafter.propose(member.own(states), list(self.budgets))
        self.seconds += clock() - began
        if not isinstance(given, DraftBatch):
            probs = [draft.probs for draft in given]
            given = DraftBatch.of([Draft._trusted(d.tokens, d.parents, d.scores) for d in given])
        else:
            probs = [] if given.probs is None else [draft.probs for draft in given]
        self.probs = probs if any(each is not None for each in probs) else None
        check_lengths(len(states), len(given), "drafts")
        sizes = sizes_of(given.offsets)
        if (sizes > self.budgets).any():
            raise InputError(
                f"drafter {member.index} has a draft of {sizes.max()} nodes; "
                f"expected at most {max(self.budgets)}"
            )
        self.drafts = given.without_probs()  # a copy: the drafter may write into its arrays again

    def settle(self, requests: int, wins: float, step: float, price: Price) -> None:
        """Learn what it took, and what it won; `step` is the time of one without drafts."""
        took, length = self.seconds / step, self.member.length
        if self.member.external:
            return
        if self.requests:
            level = ALL if self.plan is None else self.plan.level
            depth = 0
            if self.plan is not None and self.drafts is not None and len(self.drafts.tokens):
                depth = int(self.drafts.depths.max())
            length.took(level, self.requests, took, depth, self.unread)
        if self.plan is not None and not length.rests:
            length.settle(self.plan, requests, wins - took, price)


class Gating:
    """The members of a merge, and what each of them takes and gains.

    first  whether a request's draft is that of the first member that has one
    clock  the seconds by which they are timed
    """

    def __init__(
        self,
        drafters: Sequence[Drafter[Any]],
        abilities: Sequence[Abilities],
        first: bool,
        clock: Callable[[], float],
    ) -> None:
        share = SHARE / max(1, len(drafters) - 1)
        self.members = [
            Member(k, drafter, able, share)
            for k, (drafter, able) in enumerate(zip(drafters, abilities, strict=True))
        ]
        self.beside_external = [m.external for m in self.members].count(False) == 1 < len(drafters)
        """Whether a single drafter is there beside external drafts."""
        self._first = first
        self._clock = clock
        self.price: Price | None = None  # until the next verdicts; None: everyone is asked
        self._plain: float | None = None  # seconds of a step without drafts, once it was told
        self._step: list[Asked] = []  # of the last proposal, in the order of asking
        self.shared = 0.0
        """Seconds of this step for what members want together: showing, uniting."""
        self.weighed = 0.0
        """Seconds of the last proposal that drafters took because they seemed to pay."""

    def tell(self, token: float, node: float, step: float) -> None:
        """What time is worth in the next proposal, in seconds."""
        self._plain, self._step = max(step, 1e-9), []
        self.price = Price(token / self._plain, node / self._plain)

    def told_later(self, member: Member) -> bool:
        """Whether a member need not hear of the tokens that were just committed: it was not asked,
        and sees nothing but tokens. Before it is asked it has to."""
        asked = any(one.member is member and one.drafts is not None for one in self._step)
        watches = member.gate is not None and member.enabled
        return self.price is not None and not (asked or watches or member.external)

    def ask(
        self, members: Sequence[Member], states: Sequence[MergeState], budgets: list[int]
    ) -> list[Asked]:
        """The drafts of these members, and how each was asked.

        Raises: InputError for a draft that does not fit; what the drafters raise.
        """
        price, requests = self.price, sum(n > 0 for n in budgets)
        quick = [member for member in members if price is None or member.quick(requests)]
        # More than the budget: what one drafter finds unlikely may be good where another agrees.
        more = [min(2 * n + 4, MAX_BUDGET) if n else 0 for n in budgets]
        alone = sum(not member.external for member in quick) == 1
        if alone and (price is not None or self.beside_external):
            lone = [min(each) for each in zip(more, budgets, strict=True)]
        else:
            lone = more
        step: list[Asked] = []
        for member in self._order(members, quick, requests):
            one = Asked(member, lone if member in quick else more)
            step.append(one)
            if price is not None and member not in quick:
                drafts = [each.drafts for each in step]
                one.weigh(_expected(drafts, len(states), price.least_chance), states, price)
            if self._works_alone(member) and any(one.budgets):
                one.start(states, self._clock)
            elif any(one.budgets) or price is None:
                one.collect(states, self._clock)
            if self._first and one.drafts is not None:  # who comes next is asked for what is left
                sizes = sizes_of(one.drafts.offsets).tolist()
                more = [0 if size else n for n, size in zip(more, sizes, strict=True)]
                lone = [min(each) for each in zip(more, lone, strict=True)]
        for one in step:
            if self._works_alone(one.member) and any(one.budgets):
                one.collect(states, self._clock)
        self._forget_failed(step, states)
        self.weighed = sum(one.seconds for one in step if one.plan is not None)
        self._step = self._step or step  # the same proposal again may be remembered, and faster
        return step

    def _works_alone(self, member: Member) -> bool:
        return member.able.starts is not None and not self._first

    def _order(
        self, members: Sequence[Member], quick: Sequence[Member], requests: int
    ) -> Sequence[Member]:
        """The quick ones, the slow ones by their time, and those that work at the same time; where
        nothing has a price, these begin."""
        if self._first:
            return members
        if self.price is None:
            return sorted(members, key=lambda member: not self._works_alone(member))
        return sorted(
            members,
            key=lambda member: (
                self._works_alone(member),
                member not in quick,
                member.length.seconds(ALL, requests),
            ),
        )

    def _forget_failed(self, step: Sequence[Asked], states: Sequence[MergeState]) -> None:
        """A member that has a proposal that was not observed, of a step that failed, and was not
        asked now, is asked for nothing, so that it forgets it."""
        asked = {one.member.index for one in step if one.drafts is not None}
        lasts = [state.last for state in states if state.last is not None]
        for member in self.members if lasts else ():
            if member.index not in asked:
                Asked(member, [0] * len(states)).collect(states, self._clock)

    def observe(
        self,
        unions: Sequence[Union | None],
        batch: VerdictBatch,
        observing: Sequence[float],
    ) -> None:
        """Learn what the drafters of the last proposal took and gained. The price is spent.

        observing  seconds that each drafter took to observe these verdicts
        """
        if self._plain is None:
            return
        price = self.price or Price(0.0, 0.0)  # in this step nobody was asked
        least, bounds = price.least_chance, batch.path_offsets.tolist()
        paths = [batch.path[first:end] for first, end in itertools.pairwise(bounds)]
        wins = [0.0] * len(self.members)
        for union, path in zip(unions, paths, strict=True):
            if union is None or all(own.level < 0 for own in union.members.values()):
                continue
            for k, right, verified in union.gains(path, least):
                own = union.members[k]
                if own.level >= 0:
                    won, nodes = by_part(right), by_part(verified)
                    self.members[k].length.observe(own.group, own.level, won, nodes)
                    wins[k] += len(right) * price.token - len(verified) * price.node
        spent = list(observing)
        resting = [member for member in self.members if member.length.rests]
        for one in () if self.price is None else self._step:
            one.settle(len(unions), wins[one.member.index], self._plain, price)
            spent[one.member.index] += one.seconds
        for member in resting:
            member.length.rested()
        gated = sum(member.gate is not None and member.enabled for member in self.members)
        for member in self.members:
            member.account.earn(1.0)
            if member.gate is None:
                continue
            member.gate.account.earn(1.0)
            gained = 0.0
            for union, path in zip(unions, paths, strict=True) if member.enabled else ():
                if union is not None and len(union.home(member.index)):
                    ((_, right, verified),) = union.gains(path, least, alone=member.index)
                    gained += len(right) * price.token - len(verified) * price.node
            took = spent[member.index] + self.shared / max(gated, 1)
            member.gate.observe(gained - took / self._plain)
        self.price, self._step, self.shared = None, [], 0.0


def _expected(batches: Sequence[DraftBatch | None], requests: int, least: float) -> list[float]:
    """The tokens that nodes worth verifying are expected to make for each request, by the drafter
    that expects the most."""
    most = np.zeros(requests)
    for drafts in batches:
        if drafts is not None and drafts.scores is not None:
            worth = np.where(drafts.scores >= least, drafts.scores, 0.0)
            owner = np.arange(requests).repeat(sizes_of(drafts.offsets))
            most = np.maximum(most, np.bincount(owner, worth, requests))
    found: list[float] = most.tolist()
    return found
