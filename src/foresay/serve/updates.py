"""What the engine's thread sends to the event loop, and when.

Each time the event loop wakes, it takes a processor from the engine's own threads, and all of them
wait. So with many streams, the updates of several steps are sent together.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from foresay.engine.answers import Chunk
from foresay.serve.steps import Ended, StepReport
from foresay.serve.stream import AnswerStream

__all__ = ["StepUpdate", "UpdateBuffer"]

_MANY = 8  # pieces
_PAUSE = 0.04  # seconds: short enough for smooth streaming


class StepUpdate(NamedTuple):
    """The result of one step; or of answers that ended without a step."""

    pieces: list[tuple[AnswerStream, Chunk]]
    step: StepReport | None
    ended: list[Ended]
    gauges: dict[str, float]


class UpdateBuffer:
    """Updates that wait to be sent, in their order."""

    def __init__(self) -> None:
        self._waiting: list[StepUpdate] = []
        self._sent = 0.0

    def add(self, update: StepUpdate, *, first: bool = False) -> list[StepUpdate]:
        """Returns the updates to send now, this one included; none if it may wait for the next.
        The `first` token of an answer does not wait, nor does its end.
        """
        self._waiting.append(update)
        now = perf_counter()
        many = len(update.pieces) >= _MANY
        if many and not (first or update.ended) and now - self._sent < _PAUSE:
            return []
        due, self._waiting, self._sent = self._waiting, [], now
        return due
