"""Asks the drafters of a merge: all of them, or where time has a price those that pay.

The quick ones are asked first and always. What their drafts are expected to make decides for which
requests the slow ones are asked, and for how much (`paying`). A drafter that works in a process of
its own takes the time that it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from foresay.arrays import Floats, Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.drafter import MAX_BUDGET, Drafter, check_lengths
from foresay.drafters.merge.merged import Union, chosen
from foresay.drafters.merge.paying import (
    ALL,
    NOTHING,
    Paying,
    Plan,
    Price,
    group_of,
    nodes_of,
    part_of,
)
from foresay.errors import InputError
from foresay.verdict import VerdictBatch

__all__ = ["Members", "Notes", "Tree"]

_QUICK = 0.02  # of a step: what is faster is always asked, since texts can begin to be copied
_SHARE = 0.004
"""Of what committed tokens are worth, for the trials of all drafters together. In simulations they
lose 0.4 to 0.7 % of the time."""


Notes: TypeAlias = list[tuple[int, int, int]]
"""How a request was asked for: drafter, group and level, in the order of asking; a quick drafter
has level -1."""


class Tree(NamedTuple):
    """The tree of all drafters' drafts, and for each drafter where its nodes went.

    united  whether several were united; else it is the draft of the only one that has some
    """

    drafts: DraftBatch
    homes: list[Int32s]
    united: bool


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
        self._seconds = 1.0  # of a step without drafts
        self._price: Price | None = None  # until the next verdicts
        self._step: list[_Asked] = []  # of the last proposal, in the order of asking
        self.weighed = 0.0
        """Seconds of the last proposal that slow drafters took."""

    def price(self, token: float, node: float, step: float) -> None:
        """What time is worth in the next proposal, in seconds. Without a price everyone is asked.

        What is remembered is relative to a step without drafts: machines have slow phases, in
        which all takes longer.
        """
        self._seconds, self._step = max(step, 1e-9), []
        self._price = Price(token / self._seconds, node / self._seconds)

    def proposed(
        self,
        own: list[list[Any]],
        budgets: list[int],
        unread: Sequence[Sequence[int]],
        united: Callable[[Sequence[DraftBatch]], Tree],
        *,
        fresh: bool,
    ) -> tuple[list[DraftBatch], Tree, list[Notes]]:
        """The drafts of each drafter, more than the budgets, the best of all, and how each request
        was asked for.

        own     the states of each drafter
        unread  tokens that each drafter has not read, by request: it was not asked since
        united  makes the tree, with the chances of its nodes as scores
        fresh   whether no state has a proposal that was not observed. A drafter that has one, of a
                step that failed, is asked for nothing, so that it forgets it

        Raises: InputError for a draft with too many nodes; what the drafters raise.
        """
        # More than the budget: what one drafter finds unlikely may be good where another agrees.
        asked = [min(2 * n + 4, MAX_BUDGET) if n else 0 for n in budgets]
        self.weighed = 0.0
        if self._price is None:
            everything = self._everyone(own, asked)
            return everything, united(everything), [[]] * len(asked)
        step: list[_Asked] = []
        order = self._order(sum(n > 0 for n in asked))
        batches = [_no_drafts(len(asked))] * len(own)
        tree: Tree | None = None  # of the drafts so far
        for k, quick in order:
            one = _Asked(k, None, [0 if n else -1 for n in asked], budgets=asked)
            if quick and sum(quick for _, quick in order) == 1:
                # It drafts alone most often, so the budget is enough.
                one.budgets = [min(each) for each in zip(asked, budgets, strict=True)]
            if not quick:
                tree = self._tree(batches, budgets, united) if tree is None else tree
                sure = _expected(tree.drafts, self._price.least_chance)
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

    @staticmethod
    def _tree(
        batches: Sequence[DraftBatch],
        budgets: Sequence[int],
        united: Callable[[Sequence[DraftBatch]], Tree],
    ) -> Tree:
        """The best of all. Of one drafter alone it is its own draft, as it is: that takes less time
        than a small gain is worth."""
        having = [k for k, batch in enumerate(batches) if len(batch.tokens)]
        if len(having) > 1:
            return united(batches)
        only = batches[having[0]] if having else batches[0]
        if only.scores is None or (sizes_of(only.offsets) > budgets).any():
            return united(batches)
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
            self._drafters[one.drafter].ask(inner, one.budgets)  # type: ignore[attr-defined]

    def _drafts(self, one: _Asked, inner: list[Any]) -> DraftBatch:
        given = self._drafters[one.drafter].propose(inner, one.budgets)
        if one.plan is not None and not one.plan.groups and not any(map(len, given)):
            return _no_drafts(len(one.budgets))
        batch = chosen(given)
        check_lengths(len(one.budgets), len(batch), "drafts")
        sizes = sizes_of(batch.offsets)
        if (sizes > one.budgets).any():
            raise InputError(
                f"drafter {one.drafter} has a draft of {sizes.max()} nodes; "
                f"expected at most {max(one.budgets)}"
            )
        one.depth = _deepest(batch) if one.plan is not None else 0
        return batch

    def observe(self, unions: Sequence[Union | None], verdicts: VerdictBatch) -> None:
        """Learn what the drafters of the last proposal took and gained. The price is spent."""
        price, step = self._price, self._step
        self._price, self._step = None, []
        if price is None:
            return
        committed = len(verdicts.tokens)
        wins = [0.0] * len(self._drafters)
        bounds = verdicts.path_offsets.tolist()
        for at, union in enumerate(unions):
            if union is None or all(level < 0 for _, _, level in union.notes):
                continue
            path = verdicts.path[bounds[at] : bounds[at + 1]]
            for k, group, level, own in _gains(union, path, price.least_chance):
                won, nodes = _by_part(own[0]), _by_part(own[1])
                self._paying[k].observe(group, level, won, nodes)
                wins[k] += sum(won) * price.token - sum(nodes) * price.node
        for one in step:
            paying, took = self._paying[one.drafter], one.seconds / self._seconds
            if one.requests:
                level = ALL if one.plan is None else one.plan.level
                paying.took(level, one.requests, took, one.depth, one.unread)
            if one.plan is not None:
                paying.settle(one.plan, len(unions), committed, wins[one.drafter] - took, price)


def _expected(drafts: DraftBatch, least: float) -> list[float]:
    """The tokens that nodes worth verifying are expected to make for each request."""
    if drafts.scores is None:
        return [0.0] * len(drafts)
    if len(drafts) == 1:
        return [float(drafts.scores[drafts.scores >= least].sum())]
    worth = np.where(drafts.scores >= least, drafts.scores, 0.0)
    sums = np.append(0.0, worth.cumsum())
    found: list[float] = (sums[drafts.offsets[1:]] - sums[drafts.offsets[:-1]]).tolist()
    return found


def _gains(
    union: Union, path: Int32s, least: float
) -> list[tuple[int, int, int, tuple[list[int], list[int]]]]:
    """For each slow drafter: itself, its group and level, and the places in its own draft of nodes
    that nobody who was asked before has: those on the path, and those that are worth verifying.
    """
    found = []
    had = np.zeros(union.size, bool)
    for k, group, level in union.notes:
        home = union.homes[k]
        kept = home >= 0
        if level >= 0:
            alone = kept.copy()
            alone[kept] = ~had[home[kept]]
            places = np.flatnonzero(alone)
            nodes = home[places]
            on_path = places[np.isin(nodes, path)].tolist()
            verified = places[union.scores[nodes] >= least].tolist()
            found.append((k, group, level, (on_path, verified)))
        had[home[kept]] = True
    return found


def _by_part(places: Sequence[int]) -> list[int]:
    counts = [0] * (ALL + 1)
    for place in places:
        counts[part_of(place)] += 1
    return counts


def _deepest(batch: DraftBatch) -> int:
    """The levels of the deepest draft."""
    depths: list[int] = []
    starts = np.repeat(batch.offsets[:-1], sizes_of(batch.offsets)).tolist()
    for parent, start in zip(batch.parents.tolist(), starts, strict=True):
        depths.append(1 + (depths[start + parent] if parent >= 0 else 0))
    return max(depths, default=0)


def _no_drafts(requests: int) -> DraftBatch:
    none = np.empty(0, np.int32)
    scores: Floats = np.empty(0, np.float32)
    return DraftBatch._trusted(none, none, np.zeros(requests + 1, np.int32), scores)
