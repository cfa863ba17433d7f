"""The draft-length controller: for which requests a drafter is asked, and for how many nodes.

Drafting takes time, a draft model a forward pass for every token. What it gains are accepted tokens
that would not have been there without it. Both are learned: the seconds by the level (how many
nodes are asked for) and by the number of requests; the tokens by the places of nodes in a draft,
and by *group*: how many tokens the drafts of others are expected to make for the request. What is
asked for is what has the largest

    tokens gained * seconds that a token is worth - seconds of verifying - seconds of drafting

and nothing where that is negative. A drafter that was not asked for long reads first what it
missed, which may be the whole prompt; this serves many drafts, but a trial alone has to pay for it.

Trials ask for more than seems to pay; their account is `trials.TrialAccount`. A merge has one
controller for each of its members; how many nodes the whole drafter is asked for is the policy's
(`draft_size`), which knows no groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from foresay.budget.recent import RecentMean, RecentMedian
from foresay.budget.trials import QUICK, TrialAccount

__all__ = ["ALL", "NOTHING", "DraftLength", "Plan", "Price", "by_part", "group_of"]

_LEVELS = (1, 2, 3, 4, 6, 8, 16, 32)  # nodes that are asked for, or all
ALL = len(_LEVELS)
_EXPECTED = (0.25, 0.75, 1.5, 3.0, 6.0)  # tokens: the bounds of the groups
_HOPE = 0.6  # chance of a token, given the one before, before anything is known: it is tried then
_HOPED = 4  # drafts that this counts as
_TIMED = 3  # drafts before anything is believed: the first may load a library, or read a prompt
_DEPTH = 6  # levels of a draft that was not seen yet
_UNREAD = 16  # tokens of a request, from which on reading them is timed apart
_SERVES = 32  # drafts that reading a text serves
_LONGEST = 64  # steps without a plan: prices change


class Price(NamedTuple):
    """What a committed token is worth and what verifying a node takes, in steps without drafts."""

    token: float
    node: float

    @property
    def least_chance(self) -> float:
        """Of a node that is worth verifying."""
        return self.node / self.token if self.token > 0 else 0.0


class Plan(NamedTuple):
    """Which groups are asked for, how much, and the time that this is expected to win.

    loss  of a trial: of this one, or of the next one; None: there is nothing to try
    """

    level: int
    groups: frozenset[int]
    wins: float
    loss: float | None = None
    trial: bool = False

    def nodes(self, most: int) -> int:
        """How many nodes each of its requests is asked for, of `most` it may have."""
        return nodes_of(self.level, most) if self.groups else 0


NOTHING = Plan(0, frozenset(), 0.0)


def group_of(expected: float) -> int:
    """The group of a request whose other drafts are expected to make this number of tokens."""
    return bisect_right(_EXPECTED, expected)


def nodes_of(level: int, most: int) -> int:
    """How many nodes a level asks for."""
    return most if level >= ALL else min(_LEVELS[level], most)


def by_part(places: Sequence[int]) -> list[float]:
    """How many of these nodes each level has beyond the one below, by their places in the draft."""
    counts = [0.0] * (ALL + 1)
    for place in places:
        counts[bisect_right(_LEVELS, place)] += 1
    return counts


class _Gain:
    """Tokens gained and nodes verified by each part of a draft, on average."""

    won: list[RecentMean]
    nodes: list[RecentMean]

    def __init__(self, like: _Gain | None = None) -> None:
        first, hoped = (0, *_LEVELS), [_HOPE ** (place + 1) for place in range(2 * _LEVELS[-1])]
        if like is not None:  # half as sure of it
            self.won = [RecentMean(mean.value, _HOPED // 2) for mean in like.won]
            self.nodes = [RecentMean(mean.value, _HOPED // 2) for mean in like.nodes]
        else:
            parts = [sum(hoped[a:b]) for a, b in zip(first, (*_LEVELS, None), strict=True)]
            self.won = [RecentMean(part, _HOPED) for part in parts]
            self.nodes = [RecentMean(0.0, _HOPED) for _ in parts]

    def observe(self, level: int, won: Sequence[float], nodes: Sequence[float]) -> None:
        before = max(self.won[level].value, 1e-3)
        for part in range(level + 1):
            self.won[part].observe(won[part])
            self.nodes[part].observe(nodes[part])
        # What comes behind the nodes that were asked for is right only where they are.
        change = max(self.won[level].value, 1e-3) / before
        for mean in self.won[level + 1 :]:
            mean.value = min(mean.value * change, 1.0)

    def worth(self, price: Price) -> list[float]:
        """What a draft of each level wins, without the time of drafting."""
        parts = zip(self.won, self.nodes, strict=True)
        return list(accumulate(w.value * price.token - n.value * price.node for w, n in parts))


class DraftLength:
    """What one drafter takes and gains. Time is counted in steps without drafts: machines have
    slow phases, in which all takes longer.

    account  what trials may lose; who owns it lets it earn
    """

    def __init__(self, account: TrialAccount) -> None:
        self.account = account
        self._took: dict[tuple[int, int], RecentMedian] = {}  # by level and doublings of requests
        self._expected: dict[tuple[int, int], float] = {}  # the same, where it was not measured too
        self._timed = 0
        self._first = (0.0, 0)  # time and tokens of drafts before which a text was read
        self._per_read = RecentMedian()  # time of a token that is read
        self._depth = 0
        self._every = _Gain()
        self._groups: dict[int, _Gain] = {}
        self._rest = 0  # steps for which nothing is planned
        self._deeper = False  # what the next trial prefers: more nodes, or more requests

    @property
    def timed(self) -> bool:
        """Whether it is known how long its drafts take."""
        return self._timed >= _TIMED

    @property
    def rests(self) -> bool:
        """Whether nothing needs to be planned: it would not pay for any request, and the account
        does not cover a trial yet."""
        return self._rest > 0

    def quick(self, requests: int) -> bool:
        """Whether drafting for these requests takes next to no time: then it is asked for all."""
        return self.timed and self.seconds(ALL, requests) < QUICK

    def seconds(self, level: int, requests: int) -> float:
        """The expected time of drafting, 0 if nothing is known. What was not measured is rather too
        short: it is measured then.
        """
        key = level, requests.bit_length()
        known = self._expected.get(key)
        if known is None:
            known = self._expected[key] = self._estimate(*key)
        return known

    def _estimate(self, level: int, size: int) -> float:
        if not self._took or not size:
            return 0.0
        nearest = min(self._took, key=lambda key: (abs(key[0] - level), abs(key[1] - size)))
        fewer = 2.0 ** min(0, size - nearest[1])
        depth = self._depth or _DEPTH  # a model takes a pass per level
        passes = nodes_of(level, depth) / nodes_of(nearest[0], depth)
        return self._took[nearest].value * fewer * passes

    def plan(
        self,
        groups: Sequence[int],
        unread: Sequence[int],
        price: Price,
        lowest: int = 0,
    ) -> Plan:
        """What to ask for, of requests in these groups, of whose texts it has not read `unread`
        tokens; nothing below the level `lowest`. The same until something is observed.
        """
        if not groups or self.rests:
            return NOTHING
        if not self.timed:
            return Plan(max(lowest, 1), frozenset(groups), 0.0)
        reading = dict.fromkeys(groups, 0.0)
        for group, count in zip(groups, unread, strict=True):
            reading[group] += count * self._per_read.value
        plans = self._plans(Counter(groups), reading, price, lowest)
        best = max([NOTHING, *plans], key=lambda plan: plan.wins)
        trial = self._trial(best, plans)
        if trial is None:
            return best
        loss = best.wins - trial.wins
        loss += (1 - 1 / _SERVES) * sum(reading[group] for group in trial.groups - best.groups)
        if self.account.covers(loss):
            return trial._replace(loss=loss, trial=True)
        return best._replace(loss=loss)

    def _plans(
        self, counts: Counter[int], reading: Mapping[int, float], price: Price, lowest: int = 0
    ) -> list[Plan]:
        """At each level the best group alone, the best two, and so on."""
        worth = {group: self._groups.get(group, self._every).worth(price) for group in counts}
        plans = []
        for level in range(lowest, ALL + 1):
            requests, won, taken = 0, 0.0, []
            for group in sorted(counts, key=lambda group: -worth[group][level]):
                requests += counts[group]
                won += counts[group] * worth[group][level] - reading[group] / _SERVES
                taken.append(group)
                wins = won - self.seconds(level, requests)
                plans.append(Plan(level, frozenset(taken), wins))
        return plans

    def _trial(self, best: Plan, plans: Sequence[Plan]) -> Plan | None:
        if not best.groups:
            return max(plans, key=lambda plan: plan.wins)
        deeper = [p for p in plans if p.groups == best.groups and p.level == best.level + 1]
        wider = [p for p in plans if p.groups > best.groups and p.level == best.level][:1]
        found = deeper + wider if self._deeper else wider + deeper
        return found[0] if found else None

    def took(
        self, level: int, requests: int, seconds: float, depth: int = 0, unread: int = 0
    ) -> None:
        """Drafting took `seconds`, with reading `unread` tokens; the deepest draft has `depth`."""
        self._timed += 1
        self._depth = max(self._depth, depth)
        self._expected.clear()
        if unread > _UNREAD * requests:
            if self._took:
                spent = max(seconds - self.seconds(level, requests), 0.0)
                self._expected.clear()
                self._per_read.observe(spent / unread)
            else:
                self._first = seconds, unread
            return
        if not self._took and self._first[1]:
            self._per_read.observe(max(self._first[0] - seconds, 0.0) / self._first[1])
        self._took.setdefault((level, requests.bit_length()), RecentMedian()).observe(seconds)

    def observe(self, group: int, level: int, won: Sequence[float], nodes: Sequence[float]) -> None:
        """Of one request's draft, by its parts: tokens that were gained, nodes to verify."""
        if group not in self._groups:
            self._groups[group] = _Gain(self._every)
        for gain in (self._every, self._groups[group]):
            gain.observe(level, won, nodes)

    def rested(self) -> None:
        """A step in which nothing was planned has ended."""
        self._rest -= 1

    def settle(self, plan: Plan, requests: int, wins: float, price: Price) -> None:
        """A step with this plan has ended, and drafting won `wins`: pay for a trial, or pay in
        what it won. Where nothing pays for anybody, nothing is planned until a trial is covered."""
        if plan.trial:
            before = plan.wins + (plan.loss or 0.0)  # what the best plan was expected to win
            self.account.settle(before - wins)
            self._deeper = not self._deeper
        elif not plan.groups and plan.loss and self._pays_for_none(requests, price):
            steps = (plan.loss - self.account.balance) / max(self.account.share, 1e-9)
            self._rest = int(min(max(steps, 0), _LONGEST))

    def _pays_for_none(self, requests: int, price: Price) -> bool:
        """Whether it would not be asked for, in whatever group the requests are."""
        return all(
            plan.wins <= 0
            for group in range(len(_EXPECTED) + 1)
            for plan in self._plans(Counter({group: requests}), {group: 0.0}, price)
        )
