"""Crowds of clients: their questions, those of an OpenAI server, and the memory of the server."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from harness import percentiles
from workers import resident

FORMS = (
    "Write two sentences about a {} and a {}.",
    "A {} meets a {}. Tell what happens.",
    "Question: What do a {} and a {} have in common?\nAnswer:",
    "List: {}, {}, {}, {}, ",
)
WORDS = (
    *("cat", "horse", "river", "lamp", "king", "ship", "garden", "clock", "forest", "doctor"),
    *("bridge", "violin", "cloud", "baker", "tiger", "castle", "train", "apple", "robot"),
)
PATIENCE = 300.0  # seconds for one answer
QUESTIONS = 5000  # different ones, of the crowd
END = b"\r\n0\r\n\r\n"  # of a body that comes in chunks
SAMPLE = 1.0  # seconds between two looks at the server's memory


def question(number: int, tokens: int) -> dict[str, Any]:
    """A prompt and its parameters, the same for the same number; half of them are sampled."""
    draw = random.Random(number)
    return {
        "prompt": f"{number}. {draw.choice(FORMS).format(*draw.sample(WORDS, 4))}",
        "max_tokens": tokens,
        "temperature": 0.8 * (number % 2),
        "seed": number,
    }


def memory_mb(pid: int) -> tuple[float, float]:
    """MB of a process in memory, and MB of them that are not mapped from files."""
    every, own = resident(pid)
    return every / 1e6, own / 1e6


def long_enough(found: dict[str, Any]) -> bool:
    """Whether a load lasted until its memory was full: before that its slope says nothing."""
    return bool(found["seconds"] >= 300)


def memory_slopes(samples: list[tuple[float, float, float]], warm_up: float) -> dict[str, Any]:
    """Slopes by least squares of (seconds, MB, own MB) after the warm-up, and where the line comes
    from. Buffers come and go with the steps: a leak also lifts the lowest values of each stretch,
    which they do not. The error is from the means of stretches: neighbours are not independent.
    """
    after = np.array([sample for sample in samples if sample[0] >= warm_up] or samples[-1:])
    minutes, memory, own = after.T[0] / 60, after.T[1], after.T[2]
    stretches = np.array_split(np.arange(len(minutes)), min(16, len(minutes)))
    lowest = [int(stretch[memory[stretch].argmin()]) for stretch in stretches]
    error = None
    if len(minutes) >= 48:
        x, y = (np.array([values[s].mean() for s in stretches]) for values in (minutes, memory))
        left = y - np.polyval(np.polyfit(x, y, 1), x)
        error = float(np.sqrt((left**2).sum() / (len(x) - 2) / ((x - x.mean()) ** 2).sum()))
    return {
        "slope_mb_per_minute": _slope(minutes, memory),
        "anonymous_slope_mb_per_minute": _slope(minutes, own),
        "slope_error_mb_per_minute": None if error is None else round(error, 4),
        "lowest_slope_mb_per_minute": _slope(minutes[lowest], memory[lowest]),
        "first_mb": round(float(memory[0]), 1),
        "last_mb": round(float(memory[-1]), 1),
        "most_mb": round(float(memory.max()), 1),
        "samples": len(after),
        "every_10_seconds_mb": [round(mb, 1) for _, mb, _ in samples[::10]],
    }


def _slope(minutes: Any, values: Any) -> float:
    return 0.0 if len(values) < 2 else round(float(np.polyfit(minutes, values, 1)[0]), 4)


class Answer(NamedTuple):
    """What came of one request; seconds count from its sending."""

    text: str
    tokens: int
    first: float
    seconds: float
    error: str | None = None


class Client:
    """A connection that is kept; one request at a time. As cheap as it can be: clients share the
    server's cores."""

    @classmethod
    async def connect(cls, url: str) -> Client:
        self, parts = cls(), urlsplit(url)
        self._host = parts.netloc
        self._reader, self._writer = await asyncio.open_connection(
            parts.hostname, parts.port, limit=1 << 24
        )
        return self

    async def ask(self, question: dict[str, Any], **more: Any) -> Answer:
        """The answer to a streamed completion."""
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        content = json.dumps({**question, **usage, **more}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        start = time.perf_counter()
        try:
            exchanged = self._exchange(head.encode() + content)
            first, data = await asyncio.wait_for(exchanged, PATIENCE)
            return self._read(data, first - start, time.perf_counter() - start)
        except (OSError, EOFError, asyncio.TimeoutError, ValueError) as error:
            return Answer("", 0, 0.0, time.perf_counter() - start, repr(error))

    async def _exchange(self, request: bytes) -> tuple[float, bytes]:
        """When the first event came, and the chunks of the whole body."""
        self._writer.write(request)
        status = await self._reader.readuntil(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            body = await self._reader.read(300)
            raise OSError(f"{status.splitlines()[0].decode()} {body.decode()}")
        begun = await self._reader.readuntil(b"data: {")
        first = time.perf_counter()
        return first, begun + await self._reader.readuntil(END)

    def _read(self, data: bytes, first: float, seconds: float) -> Answer:
        """The events of a stream. Raises: ValueError for one that does not end as streams do."""
        body, at = bytearray(), 0
        while at < len(data):
            end = data.index(b"\r\n", at)
            size = int(data[at:end], 16)
            body += data[end + 2 : end + 2 + size]
            at = end + size + 4
        events = [e[6:] for e in bytes(body).split(b"\n\n") if e.startswith(b"data: ")]
        if not events or events[-1] != b"[DONE]":
            raise ValueError(f"the stream has no end: {data[-200:]!r}")
        text, tokens = [], 0
        for event in map(json.loads, events[:-1]):
            if "error" in event:
                raise ValueError(str(event["error"]))
            text += [choice["text"] for choice in event["choices"]]
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        return Answer("".join(text), tokens, first, seconds)

    def close(self) -> None:
        self._writer.close()


async def ask_together(url: str, questions: Sequence[dict[str, Any]]) -> tuple[float, list[Answer]]:
    """All at once, each on a connection of its own that is open before; seconds until the last."""
    clients = [await Client.connect(url) for _ in questions]
    start = time.perf_counter()
    asked = zip(clients, questions, strict=True)
    answers = await asyncio.gather(*(c.ask(one, ignore_eos=True) for c, one in asked))
    seconds = time.perf_counter() - start
    for client in clients:
        client.close()
    return seconds, answers


async def load_of(url: str, clients: int, seconds: float, warm_up: float) -> dict[str, Any]:
    """So many clients for so long; whoever has begun gets an answer after that, too. What began in
    the warm-up is checked, not measured."""
    errors: Counter[str] = Counter()
    texts: dict[int, bytes] = {}
    counts, answers = [0] * clients, list[Answer]()
    repeated = different = 0
    start = time.perf_counter()

    async def one(number: int) -> None:
        nonlocal repeated, different
        draw, client = random.Random(number), await Client.connect(url)
        while (begun := time.perf_counter() - start) < seconds:
            which = draw.randrange(QUESTIONS)
            answer = await client.ask(question(which, 8 + which % 17))
            if answer.error is not None:  # whatever the connection's state is: a new one
                errors[answer.error[:300]] += 1
                client.close()
                await asyncio.sleep(1)
                client = await Client.connect(url)
                continue
            digest = hashlib.sha256(answer.text.encode()).digest()
            repeated += which in texts
            different += texts.setdefault(which, digest) != digest
            if begun >= warm_up:
                counts[number] += 1
                answers.append(answer)
        client.close()

    for found in await asyncio.gather(*map(one, range(clients)), return_exceptions=True):
        if isinstance(found, BaseException):
            errors[repr(found)[:300]] += 1
    tokens, squares = sum(a.tokens for a in answers), clients * sum(n * n for n in counts)
    return {
        "clients": clients,
        "answers": sum(counts),
        "tokens": tokens,
        "tokens_per_second": round(tokens / (seconds - warm_up), 1),
        "errors": sum(errors.values()),
        "first_errors": errors.most_common(5),
        "answers_per_client": {"least": min(counts), "most": max(counts)},
        "jain": round(sum(counts) ** 2 / squares, 5) if squares else 0.0,
        "first_token_seconds": percentiles([a.first for a in answers], 50, 90, 99, 100),
        "whole_seconds": percentiles([a.seconds for a in answers], 50, 90, 99, 100),
        "asked_again": repeated,
        "different_texts": different,
        "generator_cpu_share": round(time.process_time() / seconds, 4),
    }


def crowd_of(**values: Any) -> dict[str, Any]:
    return asyncio.run(load_of(**values))
