"""What the engine's thread tells the event loop, and when.

Each time the event loop wakes it takes a processor from the engine's own threads, all of which then
wait. So where many streams are told of each step, steps are told of a few at a time.
"""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

from foresay.serve.steps import Ended, StepReport
from foresay.serve.stream import AnswerStream, Piece

__all__ = ["StepUpdate", "UpdateBuffer"]

_MANY = 8  # pieces
_PAUSE = 0.04  # seconds, at which a text still flows


class StepUpdate(NamedTuple):
    """What came of a step, or of an end without one."""

    told: list[tuple[AnswerStream, Piece]]
    step: StepReport | None
    ended: list[Ended]
    gauges: dict[str, float]


class UpdateBuffer:
    """StepUpdate that wait to be told, in their order."""

    def __init__(self) -> None:
        self._waiting: list[StepUpdate] = []
        self._told = 0.0

    def add(self, update: StepUpdate, *, first: bool = False) -> list[StepUpdate]:
        """What is to be told now, this one included: nothing, if it may wait for the next. The
        `first` token of an answer does not wait, nor does its end.
        """
        self._waiting.append(update)
        now = perf_counter()
        many = len(update.told) >= _MANY
        if many and not (first or update.ended) and now - self._told < _PAUSE:
            return []
        due, self._waiting, self._told = self._waiting, [], now
        return due
