"""What requests took. What steps took is kept as one table of the requests that decode, and added
to a request's statistics when they are read: a step adds to arrays and not to every request.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foresay.counts import tokens_per_step

__all__ = ["PHASES", "Ledger", "RequestStats"]

PHASES = ("schedule", "draft", "forward", "verify", "commit")
_FEW = 4  # requests, which are counted at once: the table takes longer
_DRAFTED, _ACCEPTED = len(PHASES), len(PHASES) + 1


@dataclass(slots=True)
class RequestStats:
    """What a request took. Seconds are its share of the steps that it was in."""

    steps: int = 0
    """Forward passes in which a token of the answer was chosen."""
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    preemptions: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @property
    def tokens_per_step(self) -> float:
        """See `foresay.counts`."""
        return tokens_per_step(self.tokens, self.steps)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "tokens": self.tokens,
            "prompt_tokens": self.prompt_tokens,
            "shared_tokens": self.shared_tokens,
            "preemptions": self.preemptions,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "seconds": {phase: round(spent, 6) for phase, spent in self.seconds.items()},
        }


class Counted(Hashable, Protocol):
    """A request, as the ledger knows it."""

    counted: RequestStats
    """Its statistics without what its ledger has."""
    ledger: Ledger | None

    finish_reason: Any
    """None while it runs."""


class Ledger:
    """A row for each request of the last step that was noted: seconds by phase, drafted and
    accepted nodes. `settle` moves a row into the request's statistics.
    """

    def __init__(self) -> None:
        self._requests: list[Counted] = []
        self._rows: dict[Counted, int] = {}
        self._table = np.zeros((0, len(PHASES) + 2))

    def note(
        self,
        requests: Sequence[Counted],
        seconds: Mapping[str, float],
        drafted: NDArray[Any],
        accepted: NDArray[Any],
    ) -> None:
        """Add a step of these requests; the seconds are those of each."""
        each = [seconds[phase] for phase in PHASES]
        if len(requests) <= _FEW:
            pairs = zip(drafted.tolist(), accepted.tolist(), strict=True)
            for request, nodes in zip(requests, pairs, strict=True):
                _add(request.counted, each, *nodes)
            return
        if list(requests) != self._requests:
            self._follow(requests)
        self._table[:, : len(PHASES)] += each
        self._table[:, _DRAFTED] += drafted
        self._table[:, _ACCEPTED] += accepted
        for request in requests:
            if request.finish_reason is not None:  # who holds its statistics has all of them now
                self.settle(request)

    def settle(self, request: Counted) -> None:
        """Add what was noted of a request to its statistics."""
        row = self._table[self._rows[request]]
        values = row.tolist()
        row[:] = 0.0
        drafted, accepted = int(values[_DRAFTED]), int(values[_ACCEPTED])
        _add(request.counted, values[: len(PHASES)], drafted, accepted)

    def _follow(self, requests: Sequence[Counted]) -> None:
        """Rows for these requests: those that it has, and new ones; the others are settled."""
        rows = {request: at for at, request in enumerate(requests)}
        for request in self._rows.keys() - rows.keys():
            self.settle(request)
            request.ledger = None
        table = np.zeros((len(rows), self._table.shape[1]))
        kept = self._rows.keys() & rows.keys()
        if kept:
            table[[rows[one] for one in kept]] = self._table[[self._rows[one] for one in kept]]
        for request in rows.keys() - kept:
            request.ledger = self
        self._requests, self._rows, self._table = list(requests), rows, table


def _add(stats: RequestStats, seconds: Sequence[float], drafted: int, accepted: int) -> None:
    spent = stats.seconds
    for phase, more in zip(PHASES, seconds, strict=True):
        spent[phase] += more
    stats.drafted += drafted
    stats.accepted += accepted
