"""What time is worth: the seconds of a committed token and of one more verified node.

Where steps make t tokens in s seconds, a second more is worth spending if it makes t / s tokens
more. The mean of the last steps counts, relative to steps without drafts: so the
price follows the load at once.
"""

from __future__ import annotations

from math import inf

from foresay.budget.cost import StepCost
from foresay.budget.load import Load, StepFacts
from foresay.budget.recent import RecentMean
from foresay.budget.trials import HOLDS

__all__ = ["PriceOfTime"]

_MEMORY = 16  # steps: a token gained here saves the seconds of a token near it
_NODES = (2, 4, 8)  # for each request, over which the cost of one is averaged: the least of them,
# since costs rise in stairs, and a policy stops where one begins


class PriceOfTime:
    """Seconds of a token, learned from steps; seconds of a node, by the cost model."""

    def __init__(self) -> None:
        self._tokens = RecentMean(1.0, memory=_MEMORY)  # of a step for each request
        self._time = RecentMean(1.0, memory=_MEMORY)  # of a step, by that of one without drafts
        self._node = 0.0
        self._made_for = 0  # requests
        self._holds = 0  # steps until the next estimate

    def of(self, cost: StepCost, load: Load, plain: float) -> tuple[float, float, float]:
        """Seconds of a token, of a node, and of a step without drafts, which takes `plain`."""
        requests, keys = len(load), load.keys
        self._holds -= 1
        if self._holds < 0 or requests != self._made_for:
            self._holds, self._made_for, self._node = HOLDS, requests, inf
            for nodes in _NODES:
                more = nodes * requests
                reads = keys + more * (keys / requests + 1)
                taken = cost.of(requests + more, reads, keys, requests) - plain
                self._node = min(self._node, max(taken, 0.0) / more)
        return plain * self._time.value / (requests * self._tokens.value), self._node, plain

    def observe(self, step: StepFacts, plain: float) -> None:
        """Learn from a step; from one with other rows nothing, since their time is not known."""
        requests = len(step.load)
        if not requests or step.load.other_rows or plain <= 0 or not step.committed:
            return
        # A step that was interrupted for long says nothing about what time is worth.
        time = min((step.seconds + step.draft_seconds) / plain, 4 * self._time.value)
        self._time.observe(time)
        self._tokens.observe(step.committed / requests)
