"""A crowd of edge clients against one server: errors, texts, memory, and what is left at the end.

    python benchmarks/edge_load.py [--minutes 10] [--clients 100] [--model tests' toy or any]

So many clients stream at once and without a pause, each with its own drafter and `wait`
(suffix, n-gram or none; block, free-run or adaptive), for so many minutes. One stream in twenty is
left in its middle; the connections of one client in five are cut every two seconds, and resumed. A
stream that is cut before the cloud has answered at all fails, as it should: that is counted apart.
Every text is compared with the plain answer: that of a server without drafts, asked before. The
server's memory is sampled every second, and after each fifth of the time at rest, when no client
asks: under load buffers of 100 MB come and go, and a line through such samples has a slope of some
MB a minute, up or down, by chance. What counts is how the memory at rest grows after the first
fifth. The history to draft from is so small that it is full by then: with 16 MB it would grow for
the whole time.

At the end the server must have no stream and no request, at the latest when it has forgotten those
that were left: after a minute. The memory for keys and values that is still in use then is the
prefix cache's.

It ends by itself. The clients share the cores of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import crowd
import harness
from foresay.bench.cloud import Cloud, cloud
from foresay.bench.proxy import Proxy
from foresay.edge.client import EdgeClient
from foresay.edge.messages import WAITS
from foresay.errors import ForesayError, StreamError
from foresay.models import weights
from foresay.models.load import find_model
from foresay.sampling.params import SamplingParams
from harness import bar, percentiles

PATIENCE = 120.0  # seconds for one answer
FORGOTTEN = 75.0  # seconds until the server has forgotten streams that were left
DRAFTERS = ("suffix", "ngram", None)
EVERY = 20  # streams, of which one is left
HISTORY_MB = 2  # full within the first fifth of ten minutes
FRAIL = 5  # clients, of which one loses its connections
STRETCHES = 5  # of the time, with a rest behind each
minutes = harness.number("minutes, above 0", lambda value: value > 0)


@dataclass
class Seen:
    """What all clients have got so far."""

    answers: int = 0
    tokens: int = 0
    left_streams: int = 0
    cut_connections: int = 0
    lost_at_start: int = 0
    different: int = 0
    accepted: int = 0
    resumes: int = 0
    reopens: int = 0
    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


class Question(NamedTuple):
    prompt: list[int]
    params: SamplingParams
    expected: list[int]


async def plain_answers(server: Cloud, number: int, tokens: int) -> list[Question]:
    """So many questions with the answers of a server without drafts."""
    client = EdgeClient(
        server.url, vocabulary=server.vocabulary, api_key=server.keys["one"], drafter=None
    )
    found = []
    for at in range(number):
        asked = crowd.question(at, tokens)
        prompt, params = server.encode(asked.pop("prompt")), SamplingParams(**asked)
        answer = await asyncio.wait_for(client.answer(prompt, params), PATIENCE)
        found.append(Question(prompt, params, list(answer.tokens)))
    client.close()
    return found


async def one_client(
    number: int, server: Cloud, proxy: Proxy, questions: list[Question], end: float, seen: Seen
) -> None:
    """One client, which asks again and again until the end."""
    client = EdgeClient(
        f"http://127.0.0.1:{proxy.port}",
        vocabulary=server.vocabulary,
        api_key=server.keys["one"],
        drafter=DRAFTERS[number % 3],
        wait=WAITS[number // 3 % 3],
    )
    for turn in count():
        if time.monotonic() >= end:
            break
        question = questions[(7 * number + turn) % len(questions)]
        try:
            if (number + turn) % EVERY:
                await asyncio.wait_for(ask(client, question, seen), PATIENCE)
            else:
                await asyncio.wait_for(leave(client, question), PATIENCE)
                seen.left_streams += 1
        except StreamError as error:
            # The same code also says that a stream found no cloud for too long: that is an error.
            at_start = "expected a server of `foresay serve` there" in str(error)
            if not at_start or number % FRAIL:
                seen.errors[str(error)[:200]] += 1
            else:
                seen.lost_at_start += 1
        except (ForesayError, asyncio.TimeoutError) as error:
            seen.errors[f"{type(error).__name__}: {error}"[:200]] += 1
            await asyncio.sleep(0.5)
    client.close()


async def leave(client: EdgeClient, question: Question) -> None:
    stream = client.stream(question.prompt, question.params)
    async for _ in stream:
        break
    await stream.aclose()


async def ask(client: EdgeClient, question: Question, seen: Seen) -> None:
    began = time.perf_counter()
    answer = await client.answer(question.prompt, question.params)
    told = answer.statistics
    if told.drafter_error is not None:
        seen.errors[f"the drafter failed: {told.drafter_error}"[:200]] += 1
    seen.answers += 1
    seen.tokens += len(answer.tokens)
    seen.different += list(answer.tokens) != question.expected
    seen.accepted += told.accepted
    seen.resumes += told.resumes
    seen.reopens += told.reopens
    seen.seconds.append(time.perf_counter() - began)
    seen.first.append(told.ttft or 0.0)


async def cut_some(proxy: Proxy, end: float, seen: Seen) -> None:
    """Cut the connections of the proxy again and again."""
    while True:
        await asyncio.sleep(2.0)
        if time.monotonic() >= end:
            return
        seen.cut_connections += proxy.open
        proxy.cut()


async def clients_of(
    server: Cloud, clients: int, questions: list[Question], seconds: float
) -> tuple[Seen, list[tuple[float, float, float]], list[float]]:
    """All clients, for so long, in `STRETCHES`, some behind a proxy that is cut: what they saw, the
    memory under load, and at rest after each stretch."""
    seen, start = Seen(), time.monotonic()
    samples: list[tuple[float, float, float]] = []
    rests: list[float] = []
    for _ in range(STRETCHES):
        end = time.monotonic() + seconds / STRETCHES
        async with Proxy(server.port) as steady, Proxy(server.port) as frail:
            proxies = [steady if n % FRAIL else frail for n in range(clients)]
            running = [
                *(one_client(n, server, p, questions, end, seen) for n, p in enumerate(proxies)),
                cut_some(frail, end, seen),
            ]
            tasks = [asyncio.create_task(one) for one in running]
            while (now := time.monotonic()) < end:
                samples.append((now - start, *crowd.memory_mb(server.pid)))
                await asyncio.sleep(crowd.SAMPLE)
            await asyncio.wait_for(asyncio.gather(*tasks), 2 * PATIENCE)
        left_over(server)
        await asyncio.sleep(2 * crowd.SAMPLE)
        rests.append(round(crowd.memory_mb(server.pid)[0], 1))
    return seen, samples, rests


def left_over(server: Cloud) -> dict[str, float]:
    """What the server still holds, once it has forgotten what was left, or after a while."""
    names = ("edge_streams", "running", "waiting", "kv_used")
    end = time.monotonic() + FORGOTTEN
    while True:
        now = server.metrics()
        found = {name: now.get(f"foresay_{name}", float("nan")) for name in names}
        held = found["edge_streams"] + found["running"] + found["waiting"]
        if held == 0 or time.monotonic() > end:
            return found
        time.sleep(1.0)


def judged(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The bars. Where nothing was answered, resumed or accepted, nothing was tried."""
    left, rests = found["left_over"], found["memory"]["at_rest_mb"]
    growth = (rests[-1] - rests[0]) / (found["seconds"] / 60 * (len(rests) - 1) / len(rests))
    name = "growth of memory at rest, MB/min"
    return [
        *(bar(f"{name}, least", found[name], 1) for name in ("answers", "resumes", "accepted")),
        bar("errors", found["errors"], 0, at_most=True),
        bar("texts that differ", found["different"], 0, at_most=True),
        bar("streams left", left["edge_streams"], 0, at_most=True),
        bar("requests left", left["running"] + left["waiting"], 0, at_most=True),
        bar(name, growth, 1.0, below=True, known=crowd.long_enough(found)),
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    find_model(options.model)
    memory, seconds = options.memory_mb, 60 * options.minutes
    with cloud(options.model, ["one"], "--drafter", "none", memory_mb=memory) as server:
        questions = asyncio.run(plain_answers(server, options.questions, options.tokens))
    history = "--tenant-mb", str(HISTORY_MB)
    with cloud(options.model, ["one"], *history, memory_mb=memory) as server:
        running = clients_of(server, options.clients, questions, seconds)
        seen, samples, rests = asyncio.run(running)
        left, prefix = left_over(server), "foresay_edge_total."
        counts = {
            name.removeprefix(prefix): int(value)
            for name, value in server.metrics().items()
            if name.startswith(prefix)
        }
    found: dict[str, Any] = {
        "model": options.model,
        "clients": options.clients,
        "history_mb": HISTORY_MB,
        "seconds": seconds,
        "tokens_per_second": round(seen.tokens / seconds, 2),
        **{name: count for name, count in vars(seen).items() if isinstance(count, int)},
        "errors": sum(seen.errors.values()),
        "first_errors": seen.errors.most_common(5),
        "total_seconds": percentiles(seen.seconds, 50, 95, 99),
        "first_token_seconds": percentiles(seen.first, 50, 95, 99),
        "server_counts": counts,
        "left_over": left,
        "memory": {"at_rest_mb": rests, **crowd.memory_slopes(samples, seconds / STRETCHES)},
    }
    return found | {"bars": judged(found)}


def show(found: dict[str, Any]) -> None:
    for name, value in found.items():
        if name != "bars":
            print(f"{name}: {json.dumps(value)}")
    harness.print_bars(found["bars"])


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
    parser.add_argument("--minutes", type=minutes, default=10.0)
    parser.add_argument("--clients", type=harness.count, default=100)
    parser.add_argument("--questions", type=harness.count, default=24)
    parser.add_argument("--tokens", type=harness.count, default=32, help="of each answer")
    parser.add_argument("--memory-mb", type=harness.count, default=512, help="for keys and values")
    options = harness.parse(parser)
    try:
        found = measure(options)
    except (ForesayError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    options.quick = options.minutes < 10
    harness.finish("edge-load", found, options, show, harness.not_met(found["bars"]))


if __name__ == "__main__":
    main()
