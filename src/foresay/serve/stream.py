"""The pieces of one client's answers, from the engine's thread to the HTTP response."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from foresay.drafter import Source
from foresay.errors import ForesayError

if TYPE_CHECKING:  # they import torch, which takes seconds
    from foresay.engine.request import FinishReason
    from foresay.sampling.logprobs import TokenLogprob

__all__ = ["AnswerStream", "Piece", "merged", "split"]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step added to one answer.

    index            which of the client's answers
    words            the text of each token, if requested; together they are `text`
    sources          where each token was drafted from
    prompt_tokens    of the prompt; `shared_tokens` of them came from the prefix cache
    prompt_logprobs  of the prompt's tokens, in the answer's first piece, if requested
    drafted, accepted, seconds   of the step, or of all steps where the answer comes in one piece
    kv_length        tokens of prompt and answer in the KV cache after the step; 0: it has none
    finish_reason    in the last piece
    error            why the answer failed, in the last piece, if it did
    """

    index: int
    text: str
    token_ids: list[int]
    words: list[str] | None = None
    logprobs: list[TokenLogprob] | None = None
    sources: list[Source] | None = None
    prompt_tokens: int = 0
    shared_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    kv_length: int = 0
    finish_reason: FinishReason | None = None
    error: ForesayError | None = None


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
        self._pieces: deque[Piece] = deque()
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

    def put(self, piece: Piece) -> None:
        """Add a piece."""
        self._pieces.append(piece)
        self.left -= piece.finish_reason is not None
        _release(self._reader)
        if self._most is not None and len(self._pieces) > self._most and not self.held_back:
            self.overflow.set()

    async def take(self, seconds: float | None = None, most: int | None = None) -> list[Piece]:
        """The pieces that wait, at most `most`, or the next one. Empty after `seconds` without a
        piece, or if the stream has ended.

        Mutates: the stream, which loses them.
        """
        if not self._pieces and not self.ended:
            await self._piece(seconds)
        taken = list(islice(self._pieces, most))
        for _ in taken:
            self._pieces.popleft()
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


def split(piece: Piece) -> list[Piece]:
    """A piece as one per token; the step's numbers go to the first."""
    if len(piece.token_ids) < 2 or piece.words is None:
        return [piece]
    pieces = []
    for at, (token, word) in enumerate(zip(piece.token_ids, piece.words, strict=True)):
        last, one = at == len(piece.token_ids) - 1, slice(at, at + 1)
        pieces.append(
            replace(
                piece,
                text=word,
                token_ids=[token],
                words=[word],
                logprobs=None if piece.logprobs is None else piece.logprobs[one],
                sources=None if piece.sources is None else piece.sources[one],
                prompt_logprobs=piece.prompt_logprobs if at == 0 else None,
                drafted=piece.drafted if at == 0 else 0,
                accepted=piece.accepted if at == 0 else 0,
                seconds=piece.seconds if at == 0 else 0.0,
                finish_reason=piece.finish_reason if last else None,
                error=piece.error if last else None,
            )
        )
    return pieces


def merged(pieces: Sequence[Piece]) -> list[Piece]:
    """Merge the pieces of each answer into one."""
    found: dict[int, Piece] = {}
    for new in pieces:
        old = found.get(new.index)
        found[new.index] = new if old is None else _joined(old, new)
    return list(found.values())


def _joined(old: Piece, new: Piece) -> Piece:
    return replace(
        new,
        text=old.text + new.text,
        token_ids=old.token_ids + new.token_ids,
        words=None if old.words is None else old.words + (new.words or []),
        logprobs=None if old.logprobs is None else old.logprobs + (new.logprobs or []),
        sources=None if old.sources is None else old.sources + (new.sources or []),
        prompt_logprobs=old.prompt_logprobs,
        drafted=old.drafted + new.drafted,
        accepted=old.accepted + new.accepted,
        seconds=old.seconds + new.seconds,
    )


def _release(reader: asyncio.Future[None] | None) -> None:
    if reader is not None and not reader.done():
        reader.set_result(None)
