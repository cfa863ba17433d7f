"""The least chance that a drafted token must have, for hosts that only tell how long steps take.

`adaptive` looks at the drafts and takes the nodes that pay. A host that asks for chains and
verifies them all, for the whole batch, leaves one choice, before anything is drafted: how likely a
token must be. It is worth verifying if its chance to be accepted is above its cost in tokens: the
seconds that one more token adds to a step, times the tokens that are made per second. Both are
measured from the times between steps, separately for every size of batch; the time of drafting
counts too. If drafting as a whole does not pay, nothing is drafted but a trial now and then, and
tokens that are nearly sure: known text can come at any time, whatever earlier drafts were worth.
Sure tokens have an account of their own, and pauses that grow as long as they do not pay either.

The times are a line by verified tokens, with a short memory, and not a `StepCost`: that one is
fitted before the first answer, which a host gives no time for, and bounds what a step may teach it.
Without a fit it does not notice when verification has become cheap.

Ranks of a tensor-parallel group measure different times, and must draft the same. There nothing is
measured: the number of requests and the chances, which are equal on all ranks, decide alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from foresay.budget.cost import seconds_lost

__all__ = ["LeastChance"]

_MEMORY = 0.98  # what is left of a step's weight one step later
_ENOUGH = 12  # steps before a measurement counts
_TRIAL = 64  # steps between two trials
_LATE = 4  # times the usual: a step that waited for something else
_SURE = 0.8  # a chance from which on a token is tried even if others do not pay
_SURE_MEMORY = 0.8  # shorter than the other: a few steps show whether sure tokens pay


class LeastChance:
    """Decides, for each step, the least chance that a drafted token must have.

    least         it is never lower than this
    max_requests  nothing is drafted while more requests run; 0: no bound
    measure       whether times count; must be off where several ranks draft for themselves
    """

    def __init__(self, least: float, *, max_requests: int = 0, measure: bool = True) -> None:
        self._least = least
        self._max_requests = max_requests
        self._measure = measure
        self._times: dict[int, _Times] = {}

    def of(self, requests: int) -> float | None:
        """What a drafted token's chance must be in a step of `requests`; None: no drafts.

        Valid until: the next `observe`.
        """
        if self._max_requests and requests > self._max_requests:
            return None
        times = self._times.get(requests.bit_length())
        if not self._measure or times is None or times.steps < _ENOUGH:
            return None if self._measure and times and times.steps % 4 == 3 else self._least
        trial = times.steps % _TRIAL == 0
        if not times.pays():
            if trial:
                return self._least
            return max(self._least, _SURE) if times.steps >= times.sure_again else None
        if trial:
            return None  # to know what a step costs without
        return min(1.0, max(self._least, times.per_node() * times.rate()))

    def observe(
        self,
        requests: int,
        nodes: int,
        tokens: int,
        seconds: float,
        draft_seconds: float,
        least: float = 0.0,
    ) -> None:
        """A step of `requests` verified `nodes` drafted tokens, each with a chance of `least`
        or more, and made `tokens`.

        Mutates: what is known of such steps.
        """
        if self._measure:
            times = self._times.setdefault(requests.bit_length(), _Times())
            times.observe(requests, nodes, tokens, seconds, draft_seconds, least >= _SURE)


@dataclass(slots=True)
class _Times:
    """Sums over the steps of one size of batch, older ones fading; x: tokens that are verified."""

    steps: int = 0
    weight: float = 0.0
    rows: float = 0.0  # one per request
    x: float = 0.0
    t: float = 0.0
    xx: float = 0.0
    xt: float = 0.0
    tokens: float = 0.0
    # Of the steps that verified drafts alone:
    drafts: float = 0.0  # their weight
    nodes: float = 0.0
    won: float = 0.0  # tokens beyond one per request
    drafting: float = 0.0  # seconds
    # Steps without drafts, and steps that verified nothing but sure tokens:
    plain_tokens: float = 0.0
    plain_seconds: float = 0.0
    sure_tokens: float = 0.0
    sure_seconds: float = 0.0
    sure_pause: int = 0  # steps to wait after a trial of sure tokens
    sure_again: int = 0  # the step from which on they may be tried

    def observe(
        self, rows: int, nodes: int, tokens: int, seconds: float, drafting: float, sure: bool
    ) -> None:
        if self.steps >= _ENOUGH:
            seconds = min(seconds, _LATE * self.t / self.weight)
        self.steps += 1
        x = rows + nodes
        self.weight = self.weight * _MEMORY + 1
        self.rows = self.rows * _MEMORY + rows
        self.x = self.x * _MEMORY + x
        self.t = self.t * _MEMORY + seconds
        self.xx = self.xx * _MEMORY + x * x
        self.xt = self.xt * _MEMORY + x * seconds
        self.tokens = self.tokens * _MEMORY + tokens
        if nodes:
            self.drafts = self.drafts * _MEMORY + 1
            self.nodes = self.nodes * _MEMORY + nodes
            self.won = self.won * _MEMORY + tokens - rows
            self.drafting = self.drafting * _MEMORY + drafting
        else:
            self.plain_tokens = self.plain_tokens * _MEMORY + tokens
            self.plain_seconds = self.plain_seconds * _MEMORY + seconds
        if nodes and sure:
            self.sure_tokens = self.sure_tokens * _SURE_MEMORY + tokens
            self.sure_seconds = self.sure_seconds * _SURE_MEMORY + seconds + drafting
            # Rates are compared: the slope still remembers the steps in which drafts were bad.
            plain = self.plain_seconds / self.plain_tokens if self.plain_tokens else inf
            pays = seconds_lost(self.sure_tokens, self.sure_seconds, plain) <= 0
            self.sure_pause = 0 if pays else min(_TRIAL, max(1, 2 * self.sure_pause))
            self.sure_again = self.steps + self.sure_pause

    def per_node(self) -> float:
        """Seconds that one more token adds to a step: the slope, never negative."""
        spread = self.xx * self.weight - self.x * self.x
        if spread <= 1e-6 * self.xx * self.weight:
            return 0.0
        return max(0.0, (self.xt * self.weight - self.x * self.t) / spread)

    def rate(self) -> float:
        """Tokens per second, as it is now."""
        return self.tokens / self.t

    def pays(self) -> bool:
        """Whether drafts make more tokens than their time would have made without them."""
        if not self.drafts:
            return True
        slope = self.per_node()
        plain = max(1e-9, self.t - slope * (self.x - self.rows)) / self.rows
        return bool(seconds_lost(self.won, self.drafting + self.nodes * slope, plain) <= 0)
