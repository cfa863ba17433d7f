"""How many nodes to ask a drafter for, where drafting takes time.

A lookup drafter takes microseconds, and is asked for as much as may be of use. A draft model takes
a forward pass per token. The cost of the first k nodes of a draft, and how many of them are
verified and accepted, are remembered; the k with the most tokens per second is taken. Asking for
more, or at all, is a trial: a text can begin to be copied at any time.

A drafter that weighs its own slow work is asked for everything or nothing, by the rest of its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import Int32s
from foresay.budget.cost import StepCost, seconds_lost
from foresay.budget.load import Load
from foresay.budget.recent import MEMORY, RecentMedian
from foresay.budget.trials import HOLDS, MOST_LOSS, QUICK

__all__ = ["DraftSize", "DraftSizePlan"]

_LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096)


class DraftSizePlan(NamedTuple):
    """How many nodes to ask for, and how many for a trial (0: none), at what loss."""

    best: int
    trial: int
    loss: float
    seconds_per_token: float


class DraftSize:
    """What drafting costs and gains, by the number of nodes asked for."""

    def __init__(self, most: int) -> None:
        self._took: dict[int, RecentMedian] = {}  # seconds of a draft, by nodes asked for
        # Nodes of a request and step by place in the draft: verified, and accepted.
        self._tried, self._won = self._means = np.zeros((2, most))
        self._steps = 0
        self._plan = DraftSizePlan(0, 0, 0.0, 0.0)
        self._made_for = (0, 0, 0)  # cap, requests, and how many of them are asked for
        self._holds = 0  # steps until the next plan
        self._cheap = False
        self.weighs = False
        """Whether the drafter weighs its own slow work: it is asked for everything or nothing."""

    def seconds(self, asked: int) -> float:
        """The expected time of drafting. Where it was not measured: between two levels that were,
        on the line through them; else proportional to the nodes of the nearest one.
        """
        took = self._took
        if asked in took:
            return took[asked].value
        if not asked or not took:
            return 0.0
        below = max((level for level in took if level < asked), default=0)
        above = min((level for level in took if level > asked), default=0)
        if not below or not above:
            nearest = below or above
            return took[nearest].value * asked / nearest
        share = (asked - below) / (above - below)
        return took[below].value + share * (took[above].value - took[below].value)

    def plan(self, cost: StepCost, cap: int, load: Load, asked: int, plain: float) -> DraftSizePlan:
        """What to ask for, at most `cap` nodes for each of `asked` of the requests; without drafts
        the step would take `plain`.
        """
        self._cheap = self.seconds(cap) < QUICK * plain
        if self._cheap or self._steps < HOLDS:
            return DraftSizePlan(cap, 0, 0.0, 0.0)
        for_whom = cap, len(load), asked
        self._holds -= 1
        if self._holds < 0 or for_whom != self._made_for:
            self._holds, self._made_for = HOLDS, for_whom
            self._plan = self._made(cost, cap, load, asked, plain)
        return self._plan

    def _made(
        self, cost: StepCost, cap: int, load: Load, asked: int, plain: float
    ) -> DraftSizePlan:
        levels = [0, cap]
        if not self.weighs:
            levels[1:1] = [level for level in _LEVELS if level < cap]
        requests, keys = len(load), load.keys
        tried = np.append(0.0, self._tried.cumsum())[levels] * asked
        won = np.append(0.0, self._won.cumsum())[levels] * load.worth
        reads = keys + tried * (keys / requests + 1)
        times = cost.seconds(requests + tried, reads, keys, requests)
        times = times + np.array([self.seconds(level) for level in levels])
        tokens = load.worth + won
        best = int((tokens / times).argmax())
        per_token = float(times[best] / tokens[best])
        loss: NDArray[np.float64] = seconds_lost(tokens, times, per_token)
        more = np.flatnonzero(loss[best + 1 :] <= MOST_LOSS * plain)
        if best + 1 == len(levels):
            return DraftSizePlan(levels[best], 0, 0.0, per_token)
        trial = best + 1 + (int(more[-1]) if len(more) else 0)
        return DraftSizePlan(levels[best], levels[trial], float(loss[trial]), per_token)

    def observe(
        self,
        asked: int,
        seconds: float,
        requests: int,
        nodes: Int32s,
        accepted: NDArray[np.bool_],
    ) -> None:
        """Learn what drafts of `asked` nodes for that number of requests took and gained; 0 teaches
        nothing.
        """
        if not asked:
            return
        self._took.setdefault(asked, RecentMedian()).observe(seconds)
        if self._cheap:
            return  # its gain is not needed
        self._steps += 1
        rate = 1 / min(self._steps, MEMORY)
        _core.follow_places(self._means, nodes, accepted, asked, requests, rate)
