"""Server-sent events: pings, slow readers, lost clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from foresay.engine.answers import Chunk
from foresay.serve.driver import Driver
from foresay.serve.limits import Limits
from foresay.serve.shield import Shield
from foresay.serve.stream import AnswerStream
from foresay.serve.validate import GenerationRequest

__all__ = ["AnswerShape", "Events", "shaped", "unless_gone"]

T = TypeVar("T")
_MANY = 256  # tokens with log probabilities: some milliseconds of work
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # asks proxies not to collect events
]
_log = logging.getLogger("foresay.serve")


class AnswerShape(Protocol):
    """How one request is answered: what is generated, and its answers as an API has them."""

    generation: GenerationRequest
    ping: bytes
    """What is sent while nothing else is."""

    def whole(self, pieces: Sequence[Chunk]) -> object:
        """The body of an answer that is not streamed.

        Raises: Refused if it has failed.
        """

    def begin(self) -> bytes:
        """Events before the first piece."""

    def events(self, piece: Chunk) -> bytes:
        """A piece as server-sent events."""

    def tail(self) -> bytes:
        """The last events of a stream."""


@dataclass(frozen=True, slots=True)
class Events:
    """A streaming response. It ends if the client leaves or does not read.

    Mutates: the stream; cancels its requests in the engine.
    """

    _driver: Driver
    _stream: AnswerStream
    _shape: AnswerShape
    _limits: Limits
    _shield: Shield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [
            asyncio.ensure_future(self._stream_events(send)),
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self._stream.overflow.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[1].done() and not tasks[0].done():
                self._stream.lost = "client left"
            elif self._stream.overflow.is_set() and not tasks[0].done():
                self._stream.lost = "client too slow"
                _log.warning(
                    "a client was cut off: %d pieces of its answer waited to be read",
                    self._stream.waiting,
                )
        finally:
            self._driver.cancel(self._stream)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _stream_events(self, send: Send) -> None:
        stream, shield, begun = self._stream, self._shield, monotonic()
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if begin := self._shape.begin():
            await _body(send, shield.padded(begin), more=True)
        while not stream.ended or stream.waiting:
            pieces = await shield.take(stream, self._limits.ping_seconds, begun)
            events = await shaped(self._events, pieces)
            await _body(send, shield.padded(events or self._shape.ping), more=True)
        await _body(send, shield.padded(self._shape.tail()), more=False)

    def _events(self, pieces: list[Chunk]) -> bytes:
        return b"".join(map(self._shape.events, pieces))


async def shaped(shape: Callable[[list[Chunk]], bytes], pieces: list[Chunk]) -> bytes:
    """The result of a function of pieces; in a thread if it takes long, for the event loop's sake.

    Raises: what the function raises.
    """
    if sum(len(p.logprobs or ()) + len(p.prompt_logprobs or ()) for p in pieces) < _MANY:
        return shape(pieces)
    return await asyncio.to_thread(shape, pieces)


async def unless_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of the work; None if the client leaves first, and the work is cancelled.

    Raises: what the work raises.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
