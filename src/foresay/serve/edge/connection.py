"""One WebSocket of an edge client: OPEN or RESUME, then drafts up and commits down.

A frame that is not valid ends the connection with an ERROR; its stream lives on, and can be resumed
by a new connection. Nothing that a client sends can change a text: drafts only say what to verify.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from foresay.edge.ids import count_of, unpack
from foresay.edge.json_frames import Frames, size_of
from foresay.edge.messages import (
    CODES,
    MAX_NODES,
    MAX_PAD,
    Close,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Resume,
    Wait,
)
from foresay.edge.prefix import Prefix
from foresay.edge.wire import checked_opened, hash_of_open
from foresay.engine.llm import LLM
from foresay.errors import InputError
from foresay.sampling.noise import SPEC, new_seed
from foresay.serve.driver import Driver
from foresay.serve.edge.streams import EdgeStream, EdgeStreams
from foresay.serve.limits import Limits, Refused
from foresay.serve.shield import Shield
from foresay.serve.validate import GenerationRequest, Most, Validator

__all__ = ["EdgeRoute"]

T = TypeVar("T")
_LARGE = 1 << 16  # bytes that take too long to read in the event loop
_LATER = 4096  # bytes of a frame that is not the first: a draft of 255 nodes takes a third of it
_FLOODED = 0.01  # seconds until the next draft is read, if there were too many
_FLUSH = 5.0  # seconds for a client to read the last message
_DEFAULT: Wait = "adaptive"
_BY_STATUS = {401: "unauthorized", 429: "busy", 503: "busy"}
_log = logging.getLogger("foresay.serve")


@dataclass(eq=False)
class EdgeRoute:
    """The route `/v1/edge`. It lives in the event loop.

    check_model  refuses another model's name
    in_thread    calls a function in a worker thread, in the tenant's turn: what takes long
    counts       is added to: what happened, by name, for the metrics
    """

    llm: LLM
    driver: Driver
    limits: Limits
    shield: Shield
    validator: Validator
    check_model: Callable[[str], None]
    in_thread: Callable[..., Awaitable[Any]]
    counts: Counter[str]
    streams: EdgeStreams = field(init=False)

    def __post_init__(self) -> None:
        self.streams = EdgeStreams(self.driver, self.limits)

    async def stop(self) -> None:
        """Forget all streams."""
        await self.streams.stop()

    async def serve(self, socket: WebSocket) -> None:
        """Serve one connection until it ends."""
        await socket.accept()
        line = _Line(socket, self.counts, self.limits, min(self.shield.pad, MAX_PAD))
        said: Error | None = None
        try:
            await self._run(line, *await self._begin(line, socket.state.tenant))
        except WebSocketDisconnect:
            pass
        except Refused as error:
            code = error.code if error.code in CODES else _BY_STATUS.get(error.status)
            said = Error(code or "bad_request", str(error), error.param or "")
        except InputError as error:
            said = Error("bad_frame", str(error))
        except Exception:
            _log.exception("an edge connection failed")
            said = Error("internal", "the server failed at this connection; see its log")
        finally:
            # Before the last message: whoever does not read it must not keep the stream.
            if line.stream is not None:
                self.streams.detach(line.stream, line)
        await line.end(said)

    async def _begin(self, line: _Line, tenant: str | None) -> tuple[EdgeStream, int]:
        """The stream that the first message opens or resumes, and up to where the client has it."""
        try:
            frame = await asyncio.wait_for(line.frame(), self.limits.head_seconds)
        except asyncio.TimeoutError:
            raise Refused(
                408,
                f"no message came within {self.limits.head_seconds:g} s; expected OPEN or RESUME",
                code="timeout",
            ) from None
        first: Message = await self._aside(tenant, len(frame), lambda: line.read(frame))
        if isinstance(first, Open):
            return await self._open(line, first, tenant)
        if not isinstance(first, Resume):
            raise InputError(
                f"the first message is {type(first).__name__}; expected OPEN or RESUME"
            )
        stream = self.streams.find(first.stream, first.key, tenant)
        if not stream.prefix.agrees(first.have, first.prefix):
            raise Refused(
                400,
                f"the prefix up to {first.have} is another one; expected that of this stream, from "
                f"{stream.prefix.start} to {stream.position}",
                code="unknown_prefix",
            )
        self.counts["resumes"] += 1
        line.take(stream)
        line.owes = True
        self.streams.attach(stream, line)
        return stream, first.have

    async def _open(self, line: _Line, asked: Open, tenant: str | None) -> tuple[EdgeStream, int]:
        self.check_model(asked.model)
        vocabulary, known = self.llm.target.vocabulary, self.llm.tokenizer_hash
        told: dict[str, tuple[object, object]] = {"vocabulary": (asked.vocabulary, vocabulary)}
        if asked.tokenizer and known is not None:
            told["tokenizer"] = asked.tokenizer.hex(), known.hex()
        for name, (value, own) in told.items():
            if value != own:
                raise Refused(
                    400,
                    f"{name} is {value}; expected {own}, the model's",
                    param=name,
                    code="bad_request",
                )
        self.driver.admit(1, tenant)
        count, seed = count_of(asked.prompt, vocabulary), asked.seed
        self.validator.check_size(count, Most("max_tokens", asked.max_tokens), "prompt")
        seed = new_seed() if seed is None else seed

        def read() -> tuple[GenerationRequest, Prefix, int]:
            prompt = unpack(asked.prompt, vocabulary)
            generation = self.validator.ids(prompt, asked.params(), seed)
            return generation, Prefix(prompt), hash_of_open(asked)

        generation, prefix, hashed = await self._aside(tenant, len(asked.prompt), read)
        if not self.llm.engine.drafter.takes_external_drafts:
            _log.warning("an edge stream opens, and this server's drafter takes no drafts of edges")
        wait: Wait = asked.wait or _DEFAULT
        answer = await self.driver.submit(generation, tenant, wait)
        answer.asked = count
        window, hide = self.limits.edge_window, self.shield.hide
        stream = EdgeStream(answer, prefix, vocabulary, window, asked.pad, hide=hide)
        self.streams.add(stream)
        self.counts["streams"] += 1
        line.take(stream)
        self.streams.attach(stream, line)
        opened = Opened(
            stream=stream.name,
            key=stream.key,
            check=0,
            position=count,
            vocabulary=vocabulary,
            seed=seed,
            noise=SPEC,
            window=window,
            nodes=MAX_NODES,
            seconds=int(self.limits.edge_seconds),
            ends=() if generation.params.ignore_eos else tuple(self.llm.tokenizer.ends),
            wait=wait,
        )
        await line.send(checked_opened(opened, hashed))
        return stream, count

    async def _aside(self, tenant: str | None, size: int, work: Callable[[], T]) -> T:
        """The result of the work; for many bytes in a thread, for the event loop's sake.

        Raises: what the work raises.
        """
        if size <= _LARGE:
            return work()
        found: T = await self.in_thread(tenant, work)
        return found

    async def _run(self, line: _Line, stream: EdgeStream, have: int) -> None:
        """Drafts up and commits down, until one side ends."""
        both = reading, writing = [
            asyncio.ensure_future(self._read(line, stream)),
            asyncio.ensure_future(self._write(line, stream, have)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            # After CLOSE both end, and the writer only because there is no stream any more.
            (reading if reading.done() else writing).result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _read(self, line: _Line, stream: EdgeStream) -> None:
        while True:
            await asyncio.sleep(0)  # hundreds of drafts may have come at once: others have a turn
            message = await line.receive()
            if stream.owner is not line:
                raise _resumed()
            if isinstance(message, Close):
                self.streams.drop(stream)
                return
            if not isinstance(message, DraftMessage):
                raise InputError(
                    f"a message is {type(message).__name__}; expected DRAFT or CLOSE in a stream"
                )
            self.counts["drafts"] += 1
            draft = stream.draft(message)
            if draft is None or not self.streams.pass_on(stream, draft):
                self.counts["drafts_ignored"] += 1
                if stream.flooded:
                    await asyncio.sleep(_FLOODED)  # so that the client has to wait too
            else:
                self.counts["drafted_tokens"] += len(draft.draft)

    async def _write(self, line: _Line, stream: EdgeStream, have: int) -> None:
        begun = monotonic()
        while True:
            if not line.owes:
                await self._due(line, stream, have, begun)
            stream.changed.clear()
            if stream.owner is not line:
                raise _resumed()
            # What comes while this is sent waits for its own time: the shield may have one.
            due, ended = stream.position, bool(stream.finish)
            while have < due or ended or line.owes:
                line.owes = False
                commit = stream.commit(have)
                have = commit.upto
                await line.send(commit)
                if commit.finish:
                    # Until the client says CLOSE, or leaves.
                    await asyncio.sleep(self.limits.edge_seconds)
                    return

    async def _due(self, line: _Line, stream: EdgeStream, have: int, begun: float) -> None:
        """Wait until the next commit may be sent: at once when there is something new, or as the
        shield has it. `begun`: when the writing began."""
        every, coalesce = self.shield.every, self.shield.coalesce
        if not every and not coalesce:
            await stream.changed.wait()
            return
        now = monotonic()
        end = now + (every - (now - begun) % every if every else self.limits.ping_seconds)
        while stream.owner is line and (left := end - monotonic()) > 0:
            if coalesce and (stream.finish or stream.position - have >= coalesce):
                return
            stream.changed.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stream.changed.wait(), left)
        line.owes = bool(every)  # a commit at each time, also without new tokens


def _resumed() -> Refused:
    return Refused(409, "the stream was resumed by another connection", code="resumed")


class _Line:
    """A WebSocket that sends and receives messages. Who is asked in JSON answers in JSON.

    pad  the least that messages are padded to
    """

    def __init__(
        self, socket: WebSocket, counts: Counter[str], limits: Limits, pad: int = 0
    ) -> None:
        self._socket = socket
        self._counts = counts
        self._limits = limits
        self._most = limits.body
        self._frames = Frames("cloud", pad=pad)
        self.stream: EdgeStream | None = None
        """The stream that it opened or resumed; another connection may have it by now."""
        self.owes = False
        """Whether a commit is owed even without new tokens: the answer to RESUME."""

    def take(self, stream: EdgeStream) -> None:
        """From now on messages are of this stream."""
        self.stream, self._most = stream, _LATER + 2 * stream.pad
        frames = self._frames
        frames.vocabulary, frames.stream = stream.vocabulary, stream.name
        frames.pad = max(stream.pad, frames.pad)

    async def receive(self) -> Message:
        """The next message. Raises: InputError, WebSocketDisconnect."""
        return self.read(await self.frame())

    async def frame(self) -> bytes | str:
        """The next message, not read yet. Raises: WebSocketDisconnect."""
        got = await self._socket.receive()
        if got["type"] != "websocket.receive":
            raise WebSocketDisconnect(got.get("code") or 1006)
        text: str | None = got.get("text")
        frame: bytes | str = text if text is not None else got.get("bytes") or b""
        self._counts["bytes_up"] += size_of(frame)
        self._frames.json |= text is not None
        return frame

    def read(self, frame: bytes | str) -> Message:
        """The message in a frame. Raises: InputError."""
        longer = 4 if isinstance(frame, str) and self.stream is not None else 1
        return self._frames.read(frame, self._most * longer)

    async def send(self, message: Message) -> None:
        """Send a message, padded as the stream or the shield asks.

        Raises: WebSocketDisconnect, also for a client that does not read for so long that its
        stream would be dropped.
        """
        try:
            await asyncio.wait_for(self._send(message), self._limits.edge_seconds)
        except asyncio.TimeoutError:
            raise WebSocketDisconnect(1006, "the client does not read") from None

    async def _send(self, message: Message) -> None:
        frame = self._frames.write(message)
        self._counts["bytes_down"] += size_of(frame)
        try:
            if isinstance(frame, str):
                await self._socket.send_text(frame)
            else:
                await self._socket.send_bytes(frame)
        except RuntimeError:  # the socket has closed, and the reader has not heard of it yet
            raise WebSocketDisconnect(1006, "the connection has closed") from None

    async def end(self, said: Error | None) -> None:
        """Send an error, if there is one, and close the socket, if the client still reads."""
        self._counts["errors"] += said is not None
        with suppress(Exception):
            await asyncio.wait_for(self._end(said), _FLUSH)

    async def _end(self, said: Error | None) -> None:
        if said is not None:
            await self._send(Error(said.code, said.message[:1000], said.param))
        if self._socket.client_state is WebSocketState.CONNECTED:
            await self._socket.close(1000)
