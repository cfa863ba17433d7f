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
from typing import TYPE_CHECKING

from foresay.errors import InputError
from foresay.serve.stream import AnswerStream, merged

if TYPE_CHECKING:
    from foresay.engine.answers import Chunk

__all__ = ["Shield"]


@dataclass(frozen=True, slots=True)
class Shield:
    """How the acceptance of a stream is hidden.

    pad       every write has a multiple of this number of bytes; 0: no padding
    every     seconds from one write to the next, with or without new text; 0: at once
    coalesce  a write waits for this number of tokens; 0: for none
    hide      clients do not get drafted, accepted and sources

    Raises: InputError when constructed.
    """

    pad: int = 0
    every: float = 0.0
    coalesce: int = 0
    hide: bool = False

    def __post_init__(self) -> None:
        # A stream must not be silent for longer: proxies would close it.
        for name, most, unit in (
            ("pad", 1 << 16, "bytes"),
            ("every", 15, "seconds"),
            ("coalesce", 4096, "tokens"),
        ):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise InputError(f"--{name} is {value}; expected 0 to {most} {unit}")
        if self.every and self.coalesce:
            raise InputError(
                f"--every is {self.every:g} and --coalesce is {self.coalesce}; expected one of them"
            )

    def padded(self, body: bytes) -> bytes:
        """The events, and a comment that fills them up. Its letters are random, or a proxy that
        compresses would remove them.
        """
        if not self.pad:
            return body
        filler = -(len(body) + 4) % self.pad
        return body + b": " + secrets.token_hex(filler // 2 + 1)[:filler].encode() + b"\n\n"

    async def take(self, stream: AnswerStream, seconds: float, begun: float) -> list[Chunk]:
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
        if not self.coalesce:
            return await stream.take(seconds)
        found: list[Chunk] = []
        end = monotonic() + seconds  # of all: a longer silence would make proxies close it
        while sum(len(p.token_ids) for p in found) < self.coalesce:
            more = await stream.take(max(end - monotonic(), 0.0))
            found += more
            if not more or stream.ended:
                break
        return merged(found)
