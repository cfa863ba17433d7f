"""Padding and coalescing against those who watch the traffic.

How many tokens a step gave shows in the size and the time of a stream's packets, also of encrypted
ones, and tells what is being read: guesses that are looked up are right where the text is known. A
shield hides it at the price of bytes and of delay. It is off by default.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from time import monotonic

from foresay.errors import InputError
from foresay.serve.stream import AnswerStream, Piece, merged

__all__ = ["Shield"]

_OPTIONS = {"bucket": "--pad", "every": "--every", "tokens": "--coalesce"}


@dataclass(frozen=True, slots=True)
class Shield:
    """How a stream is hidden.

    bucket  every write has a multiple of so many bytes; 0: as many as it needs
    every   seconds from one write to the next, whether there is something to say or not; 0: at once
    tokens  a write waits for so many tokens; 0: for none
    hide    clients are not told how many guesses were right

    Raises: InputError when constructed.
    """

    bucket: int = 0
    every: float = 0.0
    tokens: int = 0
    hide: bool = False

    def __post_init__(self) -> None:
        # No stream may be silent for longer: proxies would cut it off.
        for name, most in (("bucket", 1 << 16), ("every", 15.0), ("tokens", 4096)):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise InputError(
                    f"the shield's {name} is {value!r}; valid are 0 to {most} ({_OPTIONS[name]})"
                )
        if self.every and self.tokens:
            raise InputError(
                f"every is {self.every:g} and tokens is {self.tokens}, but a stream is written by "
                "time or by tokens; give one of --every and --coalesce"
            )

    def pad(self, body: bytes) -> bytes:
        """The events with a comment behind them that fills the bucket. Its letters are random, or
        a proxy that compresses would take them away.
        """
        if not self.bucket:
            return body
        filler = -(len(body) + 4) % self.bucket
        return body + b": " + secrets.token_hex(filler // 2 + 1)[:filler].encode() + b"\n\n"

    async def take(self, stream: AnswerStream, seconds: float, begun: float) -> list[Piece]:
        """What the next write tells; nothing if there was nothing in so many seconds, or when the
        time for it has come and nothing is known yet. `begun`: when the stream began.
        """
        if self.every:
            stream.held_back = True  # what comes meanwhile is not a slow reader's fault
            try:
                await asyncio.sleep(self.every - (monotonic() - begun) % self.every)
            finally:
                stream.held_back = False
            return merged(await stream.take(0.0)) if stream.waiting else []
        if not self.tokens:
            return await stream.take(seconds)
        found: list[Piece] = []
        end = monotonic() + seconds  # of all: silence for longer would make proxies cut it off
        while sum(len(p.token_ids) for p in found) < self.tokens:
            more = await stream.take(max(end - monotonic(), 0.0))
            found += more
            if not more or stream.ended:
                break
        return merged(found)
