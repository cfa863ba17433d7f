"""Frames that no honest client sends: each ends its connection at most, and nothing else.

Most go to `EdgeRoute.serve` by a WebSocket in the server's own event loop, some over the wire; the
slow tests send 42,000 others.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from starlette.websockets import WebSocket, WebSocketState
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from foresay.draft import Draft
from foresay.edge.json_frames import decode_json, encode_json
from foresay.edge.messages import (
    VERSION,
    Close,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
)
from foresay.edge.wire import decode, encode
from foresay.engine.llm import LLM
from foresay.serve.limits import Limits
from serve.edge_client import (
    cloud,
    edge_counts,
    edge_server,
    nothing_left,
    opening,
    right,
    wanted,
    whole,
)
from serve.running import Running

IN_PROCESS = [1_500, pytest.param(40_000, marks=pytest.mark.slow)]
ON_THE_WIRE = [400, pytest.param(2_000, marks=pytest.mark.slow)]
CODES = {"bad_frame", "bad_request", "busy", "unknown_stream", "unknown_prefix", "resumed"}
Frame = bytes | str


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = Limits(draft_seconds=0.005, edge_seconds=0.3)
    with edge_server(folder, limits=limits) as found:
        yield found


class Fuzz:
    """Frames, honest ones and spoiled ones."""

    def __init__(self, server: Running, seed: int) -> None:
        self.random = Random(seed)
        self.vocabulary = server.llm.target.vocabulary
        self.open = opening(server, "abc", max_tokens=6, wait="block")
        stops = Sampling(stop=("x",))
        self.other = Open(VERSION, "another", b"", 257, bytes(9), stops, 5, 9, "adaptive", 32)

    def number(self, below: int) -> int:
        return self.random.randrange(below)

    def message(self, seq: int) -> Message:
        """One that can be read, though it may make no sense."""
        kind, some = self.number(10), self.random.randbytes(16)
        if kind < 7:
            count = self.number(12) if kind < 6 else 255
            tree = Draft(
                [self.number(self.vocabulary) for _ in range(count)],
                [self.number(at + 1) - 1 for at in range(count)],
            )
            base = self.number(16) if kind < 5 else self.number(2**31)
            prefix = self.number(2**32)
            return DraftMessage.of(
                tree, seq=seq, base=base, prefix=prefix, vocabulary=self.vocabulary
            )
        if kind == 7:
            return Resume(some, some[::-1], self.number(2**31), self.number(2**32))
        if kind == 8:
            return Close("x" * self.number(9))
        return self.other if self.number(8) else self.open

    def frame(self, seq: int) -> Frame:
        """Spoiled, but for some."""
        how, message = self.number(12), self.message(seq)
        if how == 0:
            return self.random.randbytes(self.number(60))
        if how == 1:
            return self.text(message)
        data = bytearray(encode(message, self.number(80) if how == 2 else 0))
        if how < 5:
            for _ in range(1 + self.number(3)):
                data[self.number(len(data))] = self.number(256)
        elif how == 5:
            del data[self.number(len(data)) :]
        elif how == 6:
            at = self.number(len(data))
            data[at:at] = self.random.randbytes(1 + self.number(5))
        return bytes(data)

    def frames(self, opens: bool) -> Iterator[Frame]:
        """Of one connection."""
        if opens:
            yield encode(self.open)
        for seq in range(1, 200):
            yield self.frame(seq)

    def text(self, message: Message) -> str:
        kind = self.number(5)
        if kind == 0:
            return "[" * self.number(3000)
        if kind == 1:
            return "".join(chr(self.number(0xD7FF)) for _ in range(self.number(50)))
        text = encode_json(message, vocabulary=self.vocabulary)
        if kind < 4:
            at = self.number(len(text))
            text = text[:at] + chr(32 + self.number(90)) + text[at + self.number(3) :]
        return text


class Client:
    """A WebSocket for `EdgeRoute.serve`; the next frame is always there already."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self.received, self.sent, self._coming = 0, list[Frame](), self._messages(frames)
        scope = {"type": "websocket", "state": {"tenant": None}}
        self.socket = WebSocket(scope, self._receive, self._send)

    def _messages(self, frames: Iterator[Frame]) -> Iterator[dict[str, Any]]:
        yield {"type": "websocket.connect"}
        for frame in frames:
            self.received += 1
            yield {
                "type": "websocket.receive",
                "text" if isinstance(frame, str) else "bytes": frame,
            }
        yield {"type": "websocket.disconnect", "code": 1006}

    async def _receive(self) -> dict[str, Any]:
        return next(self._coming)

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "websocket.send":
            self.sent.append(message.get("text") or message["bytes"])

    @property
    def ended(self) -> bool:
        states = self.socket.client_state, self.socket.application_state
        return WebSocketState.DISCONNECTED in states


def said(frames: list[Frame], vocabulary: int, ends: Counter[str]) -> None:
    """All that was answered can be read, and an error is the last of it."""
    name = b""
    for at, frame in enumerate(frames):
        if isinstance(frame, str):
            message = decode_json(frame, side="edge", vocabulary=vocabulary, stream=name)
        else:
            message = decode(frame, side="edge")
        if isinstance(message, Opened):
            name = message.stream
        if isinstance(message, Error):
            assert at == len(frames) - 1
            assert message.code in CODES, message
            assert message.message
            ends[message.code] += 1


class Beside:
    """Honest streams, one after the other, while the others are sent."""

    def __init__(self, server: Running, plain: LLM) -> None:
        self._server = server
        self._asked = opening(server, "ab ab", seed=8, temperature=0.8, max_tokens=40)
        self._answer = wanted(plain, self._asked)
        self.texts: list[bool] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        while not self._stop.is_set():
            # The server says goodbye 0.3 s after the end of an answer: a busy machine may be later.
            with suppress(ConnectionClosedOK):
                text, _ = await whole(self._server, self._asked, right(self._answer))
                self.texts.append(text.ids == self._answer)
            await asyncio.sleep(0.1)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        assert self.texts and all(self.texts)


@pytest.mark.parametrize("frames", IN_PROCESS)
def test_in_the_servers_own_loop(
    server: Running, plain: LLM, caplog: pytest.LogCaptureFixture, frames: int
) -> None:
    fuzz, route = Fuzz(server, frames), server.server._routes.edge
    before = edge_counts(server).get("drafts", 0)
    loop, ends = server.server._routes.driver._loop, Counter[str]()
    assert loop is not None

    async def run() -> None:
        sent = 0
        while sent < frames:
            # In a stream drafts are read; to open one takes time.
            client = Client(fuzz.frames(opens=sent % 20 == 0))
            await asyncio.wait_for(route.serve(client.socket), 20)
            assert client.ended
            said(client.sent, fuzz.vocabulary, ends)
            sent += client.received
            await asyncio.sleep(0)

    with Beside(server, plain):
        asyncio.run_coroutine_threadsafe(run(), loop).result(300)
    assert ends["bad_frame"] > frames // 50 and ends["unknown_stream"] > frames // 500
    assert edge_counts(server)["drafts"] - before > frames // 30
    _healthy(server, caplog)


@pytest.mark.parametrize("frames", ON_THE_WIRE)
def test_on_the_wire(
    server: Running, plain: LLM, caplog: pytest.LogCaptureFixture, frames: int
) -> None:
    fuzz, ends = Fuzz(server, frames), Counter[str]()

    async def run() -> int:
        sent = 0
        while sent < frames:
            answers: list[Frame] = []
            async with cloud(server) as line:
                with suppress(ConnectionClosed):
                    if fuzz.number(3) == 0:
                        await line.socket.send(encode(fuzz.open))
                    for seq in range(1, 40):
                        sent += 1
                        await line.socket.send(fuzz.frame(seq))
                if fuzz.number(4) == 0:
                    line.socket.transport.abort()
                    continue
                with suppress(ConnectionClosed):
                    while True:
                        answers.append(await asyncio.wait_for(line.socket.recv(), 20))
                assert line.socket.close_code in (1000, 1007), line.socket.close_code
            said(answers, fuzz.vocabulary, ends)
        return sent

    with Beside(server, plain):
        assert asyncio.run(run()) >= frames
    assert sum(ends.values()) > frames // 100
    _healthy(server, caplog)


def _healthy(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    nothing_left(server)
    assert server.http.get("/health").status_code == 200
    assert "failed" not in caplog.text and "Exception" not in caplog.text
    assert "Traceback" not in caplog.text
    assert server.llm.engine.drafter.takes_external_drafts  # it was not given up
