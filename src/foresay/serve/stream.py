"""The pieces of answers, from the engine's thread to the event loop, and to the HTTP response.

Each time the event loop wakes, it takes a processor from the engine's own threads, and all of them
wait. So with many streams, the updates of several steps are sent together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from foresay.engine.answers import Chunk
    from foresay.serve.steps import Ended, StepReport

__all__ = ["AnswerStream", "StepUpdate", "UpdateBuffer", "merged", "split"]

_MANY = 8  # pieces
_PAUSE = 0.04  # seconds: short enough for smooth streaming


class AnswerStream:
    """The pieces of a client's answers, in order. It lives in the event loop.

    answers  how many there will be
    most     pieces that may wait for the reader; then `overflow` is set. None: any number
    """

    def __init__(self, answers: int, tenant: str | None, most: int | None = None) -> None:
        self.answers = answers
        self.tenant = tenant
        self.left = answers
        self.overflow = asyncio.Event()
        self._most = most
        self._pieces: list[Chunk] = []
        self._reader: asyncio.Future[None] | None = None
        self.cancelled = False
        self.held_back = False
        """Whether pieces wait on purpose, not because the reader is slow."""
        self.lost: str | None = None
        """Why the client does not read any more, if so."""
        self.asked = 0
        """Tokens of all prompts."""
        self.written = 0
        """Tokens of all answers so far, counted by the engine's thread."""
        self.ends: dict[int, list[int]] = {}
        """Tokens of the answers that have ended, by prompt; set by the engine's thread."""

    @property
    def ended(self) -> bool:
        """Whether all pieces were put, though some may wait for the reader."""
        return self.left == 0

    @property
    def waiting(self) -> int:
        """Pieces that wait for the reader."""
        return len(self._pieces)

    def put(self, piece: Chunk) -> None:
        """Add a piece."""
        self._pieces.append(piece)
        self.left -= piece.finish_reason is not None
        _release(self._reader)
        if self._most is not None and len(self._pieces) > self._most and not self.held_back:
            self.overflow.set()

    async def take(self, seconds: float | None = None) -> list[Chunk]:
        """The pieces that wait, or the next one. Empty after `seconds` without a piece, or if the
        stream has ended.

        Mutates: the stream, which loses them.
        """
        if not self._pieces and not self.ended:
            await self._piece(seconds)
        taken, self._pieces = self._pieces, []
        return taken

    async def _piece(self, seconds: float | None) -> None:
        # Not asyncio.wait_for, which makes a task each time: this is done for every piece.
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _release, self._reader)
        try:
            await self._reader
        finally:
            self._reader = None
            if timer is not None:
                timer.cancel()


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


def split(piece: Chunk) -> list[Chunk]:
    """A piece as one per token; the step's numbers go to the first."""
    last = len(piece.token_ids) - 1
    if last < 1 or piece.words is None:
        return [piece]
    pieces = []
    for at, word in enumerate(piece.words):
        lists = {name: value and value[at : at + 1] for name, value in _lists_of(piece).items()}
        ends: dict[str, Any] = {}
        if at < last:
            ends = {"finish_reason": None, "stopped": None, "error": None}
        if at:
            ends |= {"prompt_logprobs": None, "drafted": 0, "accepted": 0, "seconds": 0.0}
        pieces.append(replace(piece, text=word, **lists, **ends))
    return pieces


def merged(pieces: Sequence[Chunk]) -> list[Chunk]:
    """Merge the pieces of each answer into one."""
    found: dict[int, Chunk] = {}
    for new in pieces:
        old = found.get(new.index)
        found[new.index] = new if old is None else _joined(old, new)
    return list(found.values())


def _joined(old: Chunk, new: Chunk) -> Chunk:
    lists, more = _lists_of(old), _lists_of(new)
    both: dict[str, Any] = {k: v if v is None else v + (more[k] or []) for k, v in lists.items()}
    return replace(
        new,
        text=old.text + new.text,
        **both,
        prompt_logprobs=old.prompt_logprobs,
        drafted=old.drafted + new.drafted,
        accepted=old.accepted + new.accepted,
        seconds=old.seconds + new.seconds,
    )


def _lists_of(piece: Chunk) -> dict[str, Any]:
    """What a piece has for each of its tokens."""
    return {name: getattr(piece, name) for name in ("token_ids", "words", "logprobs", "sources")}


def _release(reader: asyncio.Future[None] | None) -> None:
    if reader is not None and not reader.done():
        reader.set_result(None)
