"""Does asking a slow drafter pay, beside what others drafted already?

A draft model takes time for every node. What it gains are accepted tokens that nobody else
proposed, and where the others are sure of a long path it gains little. So the gain is learned by
*group*: how many tokens the others' drafts are expected to make. The number of nodes asked for and
the requests to ask for are those with the largest

    tokens gained * seconds that a token is worth - seconds of verifying - seconds of drafting

and none where that is negative. A drafter that was not asked for long reads first what it missed,
which may be the whole prompt; this serves many drafts, but a trial alone has to pay for it.

What is never asked is never learned: a small share of the time may be lost by asking for more than
seems to pay. Such a trial is charged to an account, and its gain paid into it: where trials
succeed, they follow each other at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

__all__ = ["ALL", "NOTHING", "Paying", "Plan", "Price", "group_of", "nodes_of", "part_of"]

_LEVELS = (1, 2, 3, 4, 6)  # nodes that are asked for, or all
ALL = len(_LEVELS)
_EXPECTED = (0.25, 0.75, 1.5, 3.0, 6.0)  # tokens: the bounds of the groups
_PRIOR = (0.6, 0.36, 0.22, 0.13, 0.13, 0.07)  # tokens gained by each part of a draft: hopeful
_PRIOR_COUNTS = 4  # as so many drafts; a group begins as half of that with what all gained
_MEMORY = 32  # drafts
_LEAST = 1e-3  # tokens: below that nothing is said about what comes behind
_TIMED = 3  # drafts before anything is believed: the first may load a library, or read a prompt
_FIRST = 1  # the level of these
_DEPTH = 6  # of drafts that were not seen yet
_MOST_ACCOUNT = 1.0  # steps without drafts, where no trial costs more
_UNREAD = 16  # tokens of a request, from which on reading them is counted apart
_SERVES = 32  # drafts that reading a text serves
_RESTS = 8  # steps; each rest that follows another is twice as long
_LONGEST = 64  # of a rest
_BURST = 4  # trials in a row: the first one has to read what was committed since the last


class Price(NamedTuple):
    """What a committed token is worth and what verifying a node takes, in the unit of time."""

    token: float
    node: float

    @property
    def least_chance(self) -> float:
        """Of a node that is worth verifying."""
        return self.node / self.token if self.token > 0 else 0.0


class Plan(NamedTuple):
    """Which groups are asked for, how much, and the seconds that this is expected to win.

    loss  of a trial: of this one, or of the next one; None: there is nothing to try
    """

    level: int
    groups: frozenset[int]
    wins: float
    loss: float | None = None
    trial: bool = False


NOTHING = Plan(0, frozenset(), 0.0)


def group_of(expected: float) -> int:
    """The group of a request whose drafts so far are expected to make so many tokens."""
    return bisect_right(_EXPECTED, expected)


def part_of(place: int) -> int:
    """The level that a node first belongs to, by its place in the draft."""
    return bisect_right(_LEVELS, place)


def nodes_of(level: int, most: int) -> int:
    """How many nodes a level asks for."""
    return most if level >= ALL else min(_LEVELS[level], most)


class _Gain:
    """Tokens gained and nodes verified by each part of a draft, on average."""

    def __init__(self, won: Sequence[float], nodes: Sequence[float], count: int) -> None:
        self.won, self.nodes, self.count = list(won), list(nodes), count

    def observe(self, level: int, won: Sequence[int], nodes: Sequence[int]) -> None:
        self.count += 1
        rate = 1 / min(self.count, _MEMORY)
        before = max(self.won[level], _LEAST)
        for mean, found in ((self.won, won), (self.nodes, nodes)):
            for part in range(level + 1):
                mean[part] += (found[part] - mean[part]) * rate
        # What comes behind the nodes that were asked for is right only where they are.
        change = max(self.won[level], _LEAST) / before
        for part in range(level + 1, len(self.won)):
            self.won[part] = min(self.won[part] * change, 1.0)


class Paying:
    """What one drafter takes and gains. Seconds are of any unit, such as steps without drafts.

    share  of what committed tokens are worth, which trials may lose
    """

    def __init__(self, share: float = 0.004) -> None:
        self._share = share
        # Seconds of the last drafts and their median, by level and doublings of the requests.
        self._drafts: dict[tuple[int, int], deque[float]] = {}
        self._took: dict[tuple[int, int], float] = {}
        self._expected: dict[tuple[int, int], float] = {}  # the same, where it was not measured too
        self._timed = 0
        self._first = (0.0, 0.0)  # seconds and tokens of drafts before which a text was read
        self._reads: deque[float] = deque(maxlen=5)  # seconds of a token that is read
        self._depth = 0
        self._every = _Gain(_PRIOR, [0.0] * len(_PRIOR), _PRIOR_COUNTS)
        self._groups: dict[int, _Gain] = {}
        self._account = 0.0
        self._loss = 0.0  # of the last trial that was planned
        self._rest = 0  # for so many steps nothing is planned
        self._next_rest = _RESTS
        self._burst = 0  # trials left of those that follow each other
        self._deeper = False  # what the next trial prefers: more nodes, or more requests

    @property
    def timed(self) -> bool:
        """Whether it is known how long its drafts take."""
        return self._timed >= _TIMED

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
        return self._took[nearest] * fewer * nodes_of(level, depth) / nodes_of(nearest[0], depth)

    @property
    def _per_read(self) -> float:
        return sorted(self._reads)[len(self._reads) // 2] if self._reads else 0.0

    @property
    def rests(self) -> bool:
        """Whether nothing needs to be planned: it paid for no group a few steps ago."""
        return self._rest > 0

    def plan(self, groups: Sequence[int], unread: Sequence[int], price: Price) -> Plan:
        """What to ask for, of requests in these groups, of whose texts it has not read so many
        tokens. Nothing changes by it.
        """
        if not groups:
            return NOTHING
        if not self.timed:
            return Plan(_FIRST, frozenset(groups), 0.0)
        per_read, reading = self._per_read, dict.fromkeys(groups, 0.0)
        for group, count in zip(groups, unread, strict=True):
            reading[group] += count * per_read
        plans = self._plans(Counter(groups), reading, price)
        best = max([NOTHING, *plans], key=lambda plan: plan.wins)
        trial = self._trial(best, plans)
        if trial is None:
            return best
        loss = best.wins - trial.wins
        loss += (1 - 1 / _SERVES) * sum(reading[group] for group in trial.groups - best.groups)
        debt = (_BURST - 1) * loss if self._burst else 0.0
        if self._account + debt >= loss:
            return trial._replace(loss=loss, trial=True)
        return best._replace(loss=loss)

    def _plans(
        self, counts: Counter[int], reading: Mapping[int, float], price: Price
    ) -> list[Plan]:
        """At each level the best group alone, the best two, and so on."""
        gains = {group: self._groups.get(group, self._every) for group in counts}
        worth = {
            group: list(
                accumulate(
                    won * price.token - nodes * price.node
                    for won, nodes in zip(gain.won, gain.nodes, strict=True)
                )
            )
            for group, gain in gains.items()
        }
        plans = []
        for level in range(ALL + 1):
            requests, won, taken = 0, 0.0, []
            for group in sorted(counts, key=lambda group: -worth[group][level]):
                requests += counts[group]
                won += counts[group] * worth[group][level] - reading[group] / _SERVES
                taken.append(group)
                wins = won - self.seconds(level, requests)
                plans.append(Plan(level, frozenset(taken), wins))
        return plans

    def _pays_for_none(self, requests: int, price: Price) -> bool:
        """Whether it would not be asked for, in whatever group the requests are."""
        return all(
            plan.wins <= 0
            for group in range(len(_EXPECTED) + 1)
            for plan in self._plans(Counter({group: requests}), {group: 0.0}, price)
        )

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
        """Drafting took so long, with reading so many tokens; the deepest draft had so many
        levels.
        """
        self._timed += 1
        self._depth = max(self._depth, depth)
        self._expected.clear()
        if unread > _UNREAD * requests:
            if self._took:
                self._reads.append(max(seconds - self.seconds(level, requests), 0.0) / unread)
            else:
                self._first = seconds, float(unread)
            return
        if not self._took and self._first[1]:
            self._reads.append(max(self._first[0] - seconds, 0.0) / self._first[1])
        key = level, requests.bit_length()
        last = self._drafts.setdefault(key, deque(maxlen=5))
        last.append(seconds)
        self._took[key] = sorted(last)[len(last) // 2]

    def observe(self, group: int, level: int, won: Sequence[int], nodes: Sequence[int]) -> None:
        """Of one request's draft, by its parts: tokens that were gained, nodes to verify."""
        if group not in self._groups:
            self._groups[group] = _Gain(self._every.won, self._every.nodes, _PRIOR_COUNTS // 2)
        for gain in (self._every, self._groups[group]):
            gain.observe(level, won, nodes)

    def rested(self, committed: int, price: Price) -> None:
        """A step of a rest committed so many tokens."""
        self._rest -= 1
        self._earn(committed, price)

    def _earn(self, committed: int, price: Price) -> None:
        self._account += self._share * committed * price.token
        self._account = min(self._account, max(2 * self._loss, _MOST_ACCOUNT))

    def settle(self, plan: Plan, requests: int, committed: int, wins: float, price: Price) -> None:
        """Pay the trial of a step that committed so many tokens, or its gain into the account."""
        if self.rests:
            self.rested(committed, price)
            return
        if plan.groups:
            self._next_rest = _RESTS
        elif self._pays_for_none(requests, price):
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST)
        loss = self._loss = plan.loss or 0.0
        self._earn(committed, price)
        if not plan.trial:
            return
        before = plan.wins + loss  # what the best plan was expected to win
        self._account = min(self._account + wins - before, 2 * loss)
        self._burst = (self._burst or _BURST) - 1
        if not self._burst:
            self._deeper = not self._deeper
