"""Asks the drafters of a merge: all of them, or where time has a price those that pay.

The quick ones are asked first and always. What their drafts are expected to make decides for which
requests the slow ones are asked, and for how much (`paying`). A drafter that works in a process of
its own takes the time that it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from foresay.arrays import Floats, Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.drafter import MAX_BUDGET, Drafter, check_lengths
from foresay.drafters.merge.gains import alone, by_part, deepest, expected, gains
from foresay.drafters.merge.merged import Laws, Tree, Union, chosen, laws_of
from foresay.drafters.merge.paying import (
    ALL,
    NOTHING,
    Paying,
    Plan,
    Price,
    group_of,
    nodes_of,
)
from foresay.drafters.merge.seeing import Seeing
from foresay.errors import InputError
from foresay.verdict import VerdictBatch

__all__ = ["Members", "Notes"]

_QUICK = 0.02  # of a step: what is faster is always asked, since texts can begin to be copied
_SHARE = 0.004
"""Of what committed tokens are worth, for the trials of all drafters together. In simulations they
lose 0.4 to 0.7 % of the time."""


Notes: TypeAlias = list[tuple[int, int, int]]
"""How a request was asked for: drafter, group and level, in the order of asking; a quick drafter
has level -1."""


@dataclass(slots=True)
class _Asked:
    """How one drafter was asked in a step, and what that took."""

    drafter: int
    plan: Plan | None  # None: quick
    groups: list[int]  # of each request; -1: it was not asked for
    seconds: float = 0.0
    depth: int = 0
    budgets: list[int] = field(default_factory=list)
    unread: int = 0  # tokens of their texts that it had not read

    @property
    def requests(self) -> int:
        return sum(group >= 0 for group in self.groups)


class Members:
    """The drafters of a merge, and what each of them takes and gains.

    rule   as for MergeDrafter
    clock  the seconds by which drafters are timed
    """

    def __init__(
        self, drafters: Sequence[Drafter[Any]], rule: str, clock: Callable[[], float]
    ) -> None:
        self._drafters = drafters
        self._first = rule == "first"
        self._clock = clock
        share = _SHARE / max(1, len(drafters) - 1)
        self._paying = [Paying(share) for _ in drafters]
        self._workers = [hasattr(drafter, "ask") for drafter in drafters]
        # Of those that want to see more than the committed tokens.
        self._seeing = {
            k: Seeing() for k, each in enumerate(drafters) if each.wants.topk or each.wants.hidden
        }
        self.laws: dict[int, Laws] = {}  # of drafters that sampled in the last proposal
        self._uniting = 0.0  # seconds of the last proposal
        self._seconds = 1.0  # of a step without drafts
        self._price: Price | None = None  # until the next verdicts
        self._priced = False  # whether there ever was one
        self._step: list[_Asked] = []  # of the last proposal, in the order of asking
        self._scoring: set[int] = set()  # drafters whose drafts have scores
        self._catch_up: Callable[[int], None] = _nothing_to_tell
        self.weighed = 0.0
        """Seconds of the last proposal that slow drafters took."""

    def price(self, token: float, node: float, step: float) -> None:
        """What time is worth in the next proposal, in seconds. Without a price everyone is asked.

        What is remembered is relative to a step without drafts: machines have slow phases, in
        which all takes longer.
        """
        self._seconds, self._step, self._priced = max(step, 1e-9), [], True
        self._price = Price(token / self._seconds, node / self._seconds)

    def awake(self, k: int) -> bool:
        """Whether a drafter takes part in the next step; see `seeing`."""
        return k not in self._seeing or self._seeing[k].awake

    def only(self, requests: int) -> int | None:
        """The drafter that takes part in this step alone: it is quick and the others rest. None:
        several do, and `proposed` asks them. Then `passed` ends the step."""
        self.weighed = 0.0
        if self._price is None or self._first:
            return None
        if any(seeing.awake for seeing in self._seeing.values()):
            return None  # it has to see every step
        active = [k for k, paying in enumerate(self._paying) if self.awake(k) and not paying.rests]
        if len(active) != 1 or active[0] not in self._scoring:
            return None
        return active[0] if self._quick(active[0], requests) else None

    def passed(self, committed: int) -> None:
        """A step in which one drafter alone took part committed so many tokens."""
        price, self._price, self._step = self._price, None, []
        assert price is not None
        for paying in self._paying:
            if paying.rests:
                paying.rested(committed, price)
        for seeing in self._seeing.values():
            seeing.observe(0.0)

    def told_later(self, k: int) -> bool:
        """Whether a drafter need not hear of the tokens that were just committed: it was not asked,
        and sees nothing but tokens. Before it is asked it has to."""
        if self._price is None or any(one.drafter == k and one.requests for one in self._step):
            return False
        return not (k in self._seeing and self._seeing[k].awake)

    def proposed(
        self,
        own: list[list[Any]],
        budgets: list[int],
        unread: Sequence[Sequence[int]],
        united: Callable[[Sequence[DraftBatch]], Tree],
        *,
        catch_up: Callable[[int], None],
        fresh: bool,
    ) -> tuple[list[DraftBatch], Tree, list[Notes]]:
        """The drafts of each drafter, more than the budgets, the best of all, and how each request
        was asked for.

        own       the states of each drafter
        unread    tokens that each drafter has not read, by request: it was not asked since
        united    makes the tree, with the chances of its nodes as scores
        catch_up  tells a drafter, before it is asked, of tokens that it was not told of
        fresh     whether no state has a proposal that was not observed. A drafter that has one, of
                  a step that failed, is asked for nothing, so that it forgets it

        Raises: InputError for a draft with too many nodes; what the drafters raise.
        """
        self._catch_up = catch_up
        try:
            return self._proposed(own, budgets, unread, united, fresh)
        finally:
            # It knows the states, which may end before the next proposal.
            self._catch_up = _nothing_to_tell

    def _proposed(
        self,
        own: list[list[Any]],
        budgets: list[int],
        unread: Sequence[Sequence[int]],
        united: Callable[[Sequence[DraftBatch]], Tree],
        fresh: bool,
    ) -> tuple[list[DraftBatch], Tree, list[Notes]]:
        # More than the budget: what one drafter finds unlikely may be good where another agrees.
        asked = [min(2 * n + 4, MAX_BUDGET) if n else 0 for n in budgets]
        self.weighed = self._uniting = 0.0
        self.laws = {}
        if self._price is None:
            everything = self._everyone(own, asked)
            return everything, united(everything), [[]] * len(asked)
        step: list[_Asked] = []
        batches = [_no_drafts(len(asked))] * len(own)
        for k in () if fresh else [k for k in self._seeing if not self.awake(k)]:
            self._drafts(_Asked(k, NOTHING, [], budgets=[0] * len(asked)), own[k])
        order = [one for one in self._order(sum(n > 0 for n in asked)) if self.awake(one[0])]
        tree: Tree | None = None  # of the drafts so far
        for k, quick in order:
            one = _Asked(k, None, [0 if n else -1 for n in asked], budgets=asked)
            if quick and sum(quick for _, quick in order) == 1:
                # It drafts alone most often, so the budget is enough.
                one.budgets = [min(each) for each in zip(asked, budgets, strict=True)]
            if not quick:
                tree = self._tree(batches, budgets, united) if tree is None else tree
                sure = expected(tree.drafts, self._price.least_chance)
                self._plan(one, sure, [counts[k] for counts in unread])
            step.append(one)
            if fresh and not any(one.budgets):
                continue
            if self._workers[k] and not self._first:
                self._timed(one, self._ask, own[k])
                continue  # it works while others do
            batches[k] = self._timed(one, self._drafts, own[k])
            sizes = sizes_of(batches[k].offsets)
            if sizes.any():
                tree = None
            if self._first:  # who comes next is asked for what is left
                asked = [0 if size else n for n, size in zip(asked, sizes.tolist(), strict=True)]
        for one in step:
            if self._workers[one.drafter] and not self._first and not (fresh and not one.requests):
                batches[one.drafter] = self._timed(one, self._drafts, own[one.drafter])
                tree = None
        self.weighed = sum(one.seconds for one in step if one.plan is not None)
        self._step = self._step or step  # the same proposal again may be remembered, and faster
        notes = [
            [
                (one.drafter, one.groups[at], -1 if one.plan is None else one.plan.level)
                for one in step
                if one.groups[at] >= 0
            ]
            for at in range(len(budgets))
        ]
        return batches, self._tree(batches, budgets, united) if tree is None else tree, notes

    def _tree(
        self,
        batches: Sequence[DraftBatch],
        budgets: Sequence[int],
        united: Callable[[Sequence[DraftBatch]], Tree],
    ) -> Tree:
        """The best of all. Of one drafter alone it is its own draft, as it is: that takes less time
        than a small gain is worth."""
        having = [k for k, batch in enumerate(batches) if len(batch.tokens)]
        only = batches[having[0]] if having else batches[0]
        if len(having) > 1 or only.scores is None or (sizes_of(only.offsets) > budgets).any():
            began = self._clock()
            tree = united(batches)
            self._uniting += self._clock() - began
            return tree
        none: Int32s = np.empty(0, np.int32)
        homes = [none] * len(batches)
        if having:
            sizes = sizes_of(only.offsets)
            first = np.repeat(only.offsets[:-1], sizes)
            homes[having[0]] = np.arange(len(only.tokens), dtype=np.int32) - first
        return Tree(only, homes, False)

    def _everyone(self, own: list[list[Any]], asked: list[int]) -> list[DraftBatch]:
        self._step = []
        if not self._first:  # they work at the same time; who answers first changes nothing
            for k, inner in enumerate(own):
                self._ask(_Asked(k, None, [], budgets=asked), inner)
        batches = []
        for k, inner in enumerate(own):
            batches.append(self._drafts(_Asked(k, None, [], budgets=asked), inner))
            if self._first:
                sizes = sizes_of(batches[k].offsets).tolist()
                asked = [0 if size else n for n, size in zip(asked, sizes, strict=True)]
        return batches

    def _order(self, requests: int) -> list[tuple[int, bool]]:
        """The quick ones, the slow ones, and those that work at the same time, each by its time;
        and whether they are quick."""
        took = [paying.seconds(ALL, requests) for paying in self._paying]
        every = [(k, self._quick(k, requests)) for k in range(len(took))]
        if self._first:
            return every
        return sorted(every, key=lambda one: (self._workers[one[0]], not one[1], took[one[0]]))

    def _quick(self, k: int, requests: int) -> bool:
        paying = self._paying[k]
        return not self._workers[k] and paying.timed and paying.seconds(ALL, requests) < _QUICK

    def _plan(self, one: _Asked, sure: Sequence[float], unread: Sequence[int]) -> None:
        """For whom a slow drafter is asked, and for how many nodes."""
        assert self._price is not None
        groups = [
            group_of(tokens) if n else -1 for n, tokens in zip(one.budgets, sure, strict=True)
        ]
        wanted = [at for at, group in enumerate(groups) if group >= 0]
        paying, plan = self._paying[one.drafter], NOTHING
        if not paying.rests:
            plan = paying.plan(
                [groups[at] for at in wanted], [unread[at] for at in wanted], self._price
            )
        one.plan = plan
        one.groups = [group if group in plan.groups else -1 for group in groups]
        one.unread = sum(n for n, group in zip(unread, one.groups, strict=True) if group >= 0)
        one.budgets = [
            nodes_of(plan.level, n) if group >= 0 else 0
            for group, n in zip(one.groups, one.budgets, strict=True)
        ]

    def _timed(self, one: _Asked, call: Callable[[_Asked, list[Any]], Any], inner: Any) -> Any:
        began = self._clock()
        found = call(one, inner)
        one.seconds += self._clock() - began
        return found

    def _ask(self, one: _Asked, inner: list[Any]) -> None:
        if self._workers[one.drafter]:
            self._catch_up(one.drafter)
            drafter: Any = self._drafters[one.drafter]
            drafter.ask(list(inner), list(one.budgets))

    def _drafts(self, one: _Asked, inner: list[Any]) -> DraftBatch:
        self._catch_up(one.drafter)
        given = self._drafters[one.drafter].propose(list(inner), list(one.budgets))
        if one.plan is not None and not one.plan.groups and not any(map(len, given)):
            return _no_drafts(len(one.budgets))
        batch, laws = chosen(given), laws_of(given)
        check_lengths(len(one.budgets), len(batch), "drafts")
        sizes = sizes_of(batch.offsets)
        if (sizes > one.budgets).any():
            raise InputError(
                f"drafter {one.drafter} has a draft of {sizes.max()} nodes; "
                f"expected at most {max(one.budgets)}"
            )
        if laws is not None:
            self.laws[one.drafter] = laws
        one.depth = deepest(batch) if one.plan is not None else 0
        if batch.scores is not None:
            self._scoring.add(one.drafter)
        return batch

    def observe(
        self,
        unions: Sequence[Union | None],
        verdicts: VerdictBatch,
        observing: Sequence[float],
        showing: float,
    ) -> None:
        """Learn what the drafters of the last proposal took and gained. The price is spent.

        observing  seconds that each drafter took to observe these verdicts
        showing    seconds that finding what they want to see took
        """
        price, step = self._price, self._step
        self._price, self._step = None, []
        if price is None:
            if self._priced:  # in this step nobody was asked
                self._judge(unions, verdicts, observing, showing, Price(0.0, 0.0))
            return
        committed = len(verdicts.tokens)
        wins = [0.0] * len(self._drafters)
        bounds = verdicts.path_offsets.tolist()
        for at, union in enumerate(unions):
            if union is None or all(level < 0 for _, _, level in union.notes):
                continue
            path = verdicts.path[bounds[at] : bounds[at + 1]]
            for k, group, level, own in gains(union, path, price.least_chance):
                won, nodes = by_part(own[0]), by_part(own[1])
                self._paying[k].observe(group, level, won, nodes)
                wins[k] += sum(won) * price.token - sum(nodes) * price.node
        for one in step:
            paying, took = self._paying[one.drafter], one.seconds / self._seconds
            if one.requests:
                level = ALL if one.plan is None else one.plan.level
                paying.took(level, one.requests, took, one.depth, one.unread)
            if one.plan is not None:
                paying.settle(one.plan, len(unions), committed, wins[one.drafter] - took, price)
        spent = list(observing)
        for one in step:
            spent[one.drafter] += one.seconds
        self._judge(unions, verdicts, spent, showing + self._uniting, price)

    def _judge(
        self,
        unions: Sequence[Union | None],
        verdicts: VerdictBatch,
        took: Sequence[float],
        shared: float,
        price: Price,
    ) -> None:
        """Let the drafters that want to see more be awake or rest, by what each of them took and
        by its share of the seconds that are spent for all of them."""
        awake = sum(seeing.awake for seeing in self._seeing.values())
        bounds = verdicts.path_offsets.tolist()
        for k, seeing in self._seeing.items():
            won = 0.0
            for at, union in enumerate(unions) if seeing.awake else ():
                if union is not None and len(union.homes[k]):
                    path = verdicts.path[bounds[at] : bounds[at + 1]]
                    tokens, nodes = alone(union, k, path, price.least_chance)
                    won += tokens * price.token - nodes * price.node
            seeing.observe(won - (took[k] + shared / max(awake, 1)) / self._seconds)


def _nothing_to_tell(k: int) -> None: ...


def _no_drafts(requests: int) -> DraftBatch:
    none = np.empty(0, np.int32)
    scores: Floats = np.empty(0, np.float32)
    return DraftBatch._trusted(none, none, np.zeros(requests + 1, np.int32), scores)
