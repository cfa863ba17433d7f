"""Clients of a server, as cheap as they can be: they share its cores. And a crowd of them.

    python benchmarks/server_client.py URL --clients 200 --seconds 600 --warm-up 120

asks as so many clients at once, each again as soon as it has its answer, and prints one line of
JSON. It imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

clock = time.perf_counter
END = b"\r\n0\r\n\r\n"  # of a body that comes in chunks
PATIENCE = 300.0  # seconds for one answer
FORMS = (
    "Write two sentences about a {} and a {}.",
    "A {} meets a {}. Tell what happens.",
    "Question: What do a {} and a {} have in common?\nAnswer:",
    "List: {}, {}, {}, {}, ",
)
SOME = ("cat", "horse", "river", "lamp", "king", "ship", "garden", "clock", "forest", "doctor")
MORE = ("bridge", "violin", "cloud", "baker", "tiger", "castle", "train", "apple", "robot")


@dataclass(frozen=True)
class Answer:
    """What came of one request; seconds count from its sending."""

    text: str
    tokens: int
    first: float
    seconds: float
    error: str | None = None


class Connection(asyncio.Protocol):
    """One connection, which is kept; one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self._sent = self._first = 0.0
        self._done: asyncio.Future[str | None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._first and b"data: {" in data:
            self._first = clock()
        self._data += data
        if self._data.endswith(END):
            self._end(None)
        elif b"\r\n\r\n" in self._data and not self._data.startswith(b"HTTP/1.1 200"):
            head, _, body = self._data.decode("utf-8", "replace").partition("\r\n\r\n")
            self._end(f"{head.splitlines()[0]} {body}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc!r}")

    def _end(self, error: str | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(error)

    async def ask(self, host: str, body: dict[str, Any]) -> Answer:
        """The answer to a streamed completion."""
        assert self._transport is not None
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._data.clear()
        self._done = asyncio.get_running_loop().create_future()
        self._sent, self._first = clock(), 0.0
        self._transport.write(head.encode() + content)
        try:
            error = await asyncio.wait_for(self._done, PATIENCE)
        except asyncio.TimeoutError:
            error = f"no answer within {PATIENCE:.0f} s"
        seconds = clock() - self._sent
        if error is not None:
            return Answer("", 0, 0.0, seconds, error)
        return _read(bytes(self._data), self._first - self._sent, seconds)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _read(data: bytes, first: float, seconds: float) -> Answer:
    """The events of a stream; one that does not end as streams do is an error."""
    text, tokens = [], 0
    events = list(_events(data))
    if not events or events[-1] != b"data: [DONE]":
        return Answer("", 0, first, seconds, f"the stream has no end: {data[-200:]!r}")
    for event in events[:-1]:
        told = json.loads(event[6:])
        if "error" in told:
            return Answer("", 0, first, seconds, str(told["error"]))
        if told["choices"]:
            text.append(told["choices"][0]["text"])
        tokens = (told.get("usage") or {}).get("completion_tokens", tokens)
    return Answer("".join(text), tokens, first, seconds)


def _events(data: bytes) -> Iterator[bytes]:
    body, at = bytearray(), data.index(b"\r\n\r\n") + 4
    while at < len(data):
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        body += data[end + 2 : end + 2 + size]
        at = end + size + 4
    return (event for event in bytes(body).split(b"\n\n") if event.startswith(b"data: "))


def question(number: int, tokens: int, *, past_the_end: bool = False) -> dict[str, Any]:
    """A completion that is the same for the same number; half of them are sampled."""
    draw = random.Random(number)
    prompt = draw.choice(FORMS).format(*draw.sample(SOME + MORE, 4))
    return {
        "prompt": f"{number}. {prompt}",
        "max_tokens": tokens,
        "temperature": 0.8 * (number % 2),
        "seed": number,
        "ignore_eos": past_the_end,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _connect(url: str) -> tuple[str, Connection]:
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    where = parts.hostname or "127.0.0.1", parts.port or 80
    _, connection = await loop.create_connection(Connection, *where)
    return parts.netloc, connection


async def ask_together(url: str, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[Answer]]:
    """All at once, each on a connection of its own that is open before; seconds until the last."""
    connected = [await _connect(url) for _ in bodies]
    start = clock()
    answers = await asyncio.gather(
        *(c.ask(host, body) for (host, c), body in zip(connected, bodies, strict=True))
    )
    seconds = clock() - start
    for _, connection in connected:
        connection.close()
    return seconds, answers


@dataclass
class Crowd:
    """What many clients saw."""

    asked_of: int
    seconds: float
    warm_up: float
    counts: list[int]
    errors: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    texts: dict[int, bytes] = field(default_factory=dict)
    repeated: int = 0
    different: list[int] = field(default_factory=list)

    def note(self, client: int, number: int, begun: float, answer: Answer) -> None:
        """`begun` seconds after the start. What began in the warm-up is checked, not measured."""
        if answer.error is not None:
            self.errors[answer.error[:300]] += 1
            return
        digest = hashlib.sha256(answer.text.encode()).digest()
        self.repeated += number in self.texts
        if self.texts.setdefault(number, digest) != digest:
            self.different.append(number)
        if begun >= self.warm_up:
            self.counts[client] += 1
            self.tokens += answer.tokens
            self.first.append(answer.first)
            self.whole.append(answer.seconds)

    def as_dict(self) -> dict[str, Any]:
        counts = self.counts
        squares = len(counts) * sum(n * n for n in counts)
        return {
            "clients": len(counts),
            "answers": sum(counts),
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens / max(self.seconds - self.warm_up, 1e-9), 1),
            "errors": sum(self.errors.values()),
            "first_errors": self.errors.most_common(5),
            "answers_per_client": {"least": min(counts), "most": max(counts)},
            "jain": round(sum(counts) ** 2 / squares, 5) if squares else 0.0,
            "first_token_seconds": _percentiles(self.first),
            "whole_seconds": _percentiles(self.whole),
            "asked_again": self.repeated,
            "different_texts": len(self.different),
            "generator_cpu_share": round(time.process_time() / max(self.seconds, 1e-9), 4),
        }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {
        f"p{p}": round(ordered[min(len(ordered) * p // 100, len(ordered) - 1)], 3)
        for p in (50, 90, 99, 100)
    }


async def load(url: str, clients: int, seconds: float, warm_up: float, asked_of: int) -> Crowd:
    """So many clients for so long; whoever has begun gets an answer after that, too."""
    crowd = Crowd(asked_of, seconds, warm_up, [0] * clients)
    start = clock()

    async def one(client: int) -> None:
        draw = random.Random(client)
        host, connection = await _connect(url)
        while (begun := clock() - start) < seconds:
            number = draw.randrange(asked_of)
            answer = await connection.ask(host, question(number, 8 + number % 17))
            crowd.note(client, number, begun, answer)
            if answer.error is not None:  # whatever the connection's state is: a new one
                connection.close()
                await asyncio.sleep(1)
                host, connection = await _connect(url)
        connection.close()

    done = await asyncio.gather(*(one(client) for client in range(clients)), return_exceptions=True)
    for found in done:
        if isinstance(found, BaseException):
            crowd.errors[repr(found)[:300]] += 1
    return crowd


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--warm-up", type=float, default=120, help="seconds that are not measured")
    parser.add_argument("--questions", type=int, default=5000, help="different ones")
    given = parser.parse_args()
    asked = given.url, given.clients, given.seconds, given.warm_up, given.questions
    print(json.dumps(asyncio.run(load(*asked)).as_dict()))


if __name__ == "__main__":
    main()
