"""What steps took, kept as one table of the requests that decode, and added to a request's
statistics when they are read: a step adds to arrays and not to every request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from foresay.engine.request import Request

__all__ = ["PHASES", "Ledger"]

PHASES = ("schedule", "draft", "forward", "verify", "commit")
_DRAFTED, _ACCEPTED = len(PHASES), len(PHASES) + 1


class Ledger:
    """A row for each request of the last step that was noted: seconds by phase, drafted and
    accepted nodes. `settle` moves a row into the request's statistics.

    Mutates: the statistics of requests.
    """

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._rows: dict[Request, int] = {}
        self._table = np.zeros((0, len(PHASES) + 2))

    def note(
        self,
        requests: list[Request],
        seconds: Mapping[str, float],
        drafted: NDArray[Any],
        accepted: NDArray[Any],
    ) -> None:
        """Add a step of these requests; the seconds are those of each."""
        if requests != self._requests:
            self._follow(requests)
        self._table[:, : len(PHASES)] += [seconds[phase] for phase in PHASES]
        self._table[:, _DRAFTED] += drafted
        self._table[:, _ACCEPTED] += accepted
        for request in requests:
            if request.finish_reason is not None:  # who holds its statistics has all of them now
                self.settle(request)

    def settle(self, request: Request) -> None:
        """Add what was noted of a request to its statistics."""
        row = self._table[self._rows[request]]
        values = row.tolist()
        row[:] = 0.0
        stats = request.counted
        spent = stats.seconds
        for phase, more in zip(PHASES, values, strict=False):
            spent[phase] += more
        stats.drafted += int(values[_DRAFTED])
        stats.accepted += int(values[_ACCEPTED])

    def _follow(self, requests: Sequence[Request]) -> None:
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
