"""Padding and coalescing against traffic analysis.

The size and the time of a stream's packets, even encrypted, show how many tokens a step gave. That
tells something about the text: tokens drafted from known text are accepted where the text repeats
it. A shield hides this, at the price of bytes and delay. It is off by default.
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
    """How the acceptance of a stream is hidden.

    bucket  every write has a multiple of so many bytes; 0: no padding
    every   seconds from one write to the next, with or without new text; 0: at once
    tokens  a write waits for so many tokens; 0: for none
    hide    clients do not get drafted, accepted and sources

    Raises: InputError when constructed.
    """

    bucket: int = 0
    every: float = 0.0
    tokens: int = 0
    hide: bool = False

    def __post_init__(self) -> None:
        # A stream must not be silent for longer: proxies would close it.
        for name, most in (("bucket", 1 << 16), ("every", 15.0), ("tokens", 4096)):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise InputError(f"{name} is {value!r} ({_OPTIONS[name]}); expected 0 to {most}")
        if self.every and self.tokens:
            raise InputError(
                f"every is {self.every:g} and tokens is {self.tokens}; expected one of them "
                "(--every or --coalesce)"
            )

    def pad(self, body: bytes) -> bytes:
        """The events, and a comment that fills the bucket. Its letters are random, or a proxy that
        compresses would remove them.
        """
        if not self.bucket:
            return body
        filler = -(len(body) + 4) % self.bucket
        return body + b": " + secrets.token_hex(filler // 2 + 1)[:filler].encode() + b"\n\n"

    async def take(self, stream: AnswerStream, seconds: float, begun: float) -> list[Piece]:
        """The pieces of the next write; none if no piece came within `seconds`, or by the time of
        the write. `begun`: when the stream began.
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
        end = monotonic() + seconds  # of all: a longer silence would make proxies close it
        while sum(len(p.token_ids) for p in found) < self.tokens:
            more = await stream.take(max(end - monotonic(), 0.0))
            found += more
            if not more or stream.ended:
                break
        return merged(found)
