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
from pathlib import Path
from typing import Any

import numpy as np

import record
from edge_options import count as whole
from edge_options import in_a_sentence, minutes
from foresay.bench.cloud import Cloud, cloud
from foresay.bench.proxy import Proxy
from foresay.edge.client import EdgeClient
from foresay.edge.messages import WAITS
from foresay.errors import ForesayError, StreamError
from foresay.models import weights
from foresay.models.load import find_model
from foresay.sampling.params import SamplingParams
from server_client import FORMS, MORE, SOME
from server_parts import PAGE, SAMPLE, memory_slopes

PATIENCE = 120.0  # seconds for one answer
FORGOTTEN = 75.0  # seconds until the server has forgotten streams that were left
DRAFTERS = ("suffix", "ngram", None)
EVERY = 20  # streams, of which one is left
HISTORY_MB = 2  # full within the first fifth of ten minutes
FRAIL = 5  # clients, of which one loses its connections
LEAST_SECONDS = 300  # before which memory still fills and its growth says nothing
STRETCHES = 5  # of the time, with a rest behind each


@dataclass
class Seen:
    """What all clients have got so far."""

    answers: int = 0
    tokens: int = 0
    left: int = 0
    cut: int = 0
    lost_at_start: int = 0
    different: int = 0
    accepted: int = 0
    resumes: int = 0
    reopens: int = 0
    seconds: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Question:
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
        form = FORMS[at % len(FORMS)]
        words = [(SOME if n % 2 else MORE)[(at + 3 * n) % 9] for n in range(form.count("{}"))]
        prompt = server.encode(form.format(*words))
        params = SamplingParams(max_tokens=tokens, temperature=0.8 * (at % 2), seed=at)
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
        kind = (number + turn) % EVERY
        try:
            if kind == 0:
                await asyncio.wait_for(leave(client, question), PATIENCE)
                seen.left += 1
            else:
                await asyncio.wait_for(ask(client, question, seen), PATIENCE)
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


async def cut_some(proxies: list[Proxy], end: float, seen: Seen) -> None:
    """Cut the connections of one proxy at a time."""
    for at in count():
        await asyncio.sleep(2.0)
        if time.monotonic() >= end:
            return
        proxy = proxies[at % len(proxies)]
        seen.cut += proxy.open
        proxy.cut()


def memory_of(pid: int) -> tuple[float, float]:
    """MB in memory, and MB of them that are not mapped from files."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    resident, shared = int(fields[1]), int(fields[2])
    return resident * PAGE / 1e6, (resident - shared) * PAGE / 1e6


async def crowd(
    server: Cloud, clients: int, questions: list[Question], seconds: float
) -> tuple[Seen, list[tuple[float, float, float]], list[float]]:
    """All clients, for so long, in `STRETCHES`: what they saw, the memory under load, and at rest
    after each stretch."""
    seen, start = Seen(), time.monotonic()
    samples: list[tuple[float, float, float]] = []
    rests: list[float] = []
    for _ in range(STRETCHES):
        samples += await stretch(server, clients, questions, seconds / STRETCHES, seen, start)
        left_over(server)
        await asyncio.sleep(2 * SAMPLE)
        rests.append(round(memory_of(server.pid)[0], 1))
    return seen, samples, rests


async def stretch(
    server: Cloud,
    clients: int,
    questions: list[Question],
    seconds: float,
    seen: Seen,
    start: float,
) -> list[tuple[float, float, float]]:
    """All clients until the stretch ends; some behind a proxy that is cut. Mutates `seen`."""
    end = time.monotonic() + seconds
    samples: list[tuple[float, float, float]] = []
    async with Proxy(server.port) as steady, Proxy(server.port) as frail:
        tasks = [
            asyncio.create_task(
                one_client(n, server, steady if n % FRAIL else frail, questions, end, seen)
            )
            for n in range(clients)
        ]
        tasks.append(asyncio.create_task(cut_some([frail], end, seen)))
        while (now := time.monotonic()) < end:
            samples.append((now - start, *memory_of(server.pid)))
            await asyncio.sleep(SAMPLE)
        await asyncio.wait_for(asyncio.gather(*tasks), 2 * PATIENCE)
    return samples


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
    minutes = found["seconds"] / 60 * (len(rests) - 1) / len(rests)
    growth = (rests[-1] - rests[0]) / minutes
    long = found["seconds"] >= LEAST_SECONDS
    requests = left["running"] + left["waiting"]
    lines = [
        *(
            (f"{name}, least", found[name], 1, found[name] >= 1)
            for name in ("answers", "resumes", "accepted")
        ),
        ("errors", found["errors"], 0, found["errors"] == 0),
        ("texts that differ", found["different"], 0, found["different"] == 0),
        ("streams left", left["edge_streams"], 0, left["edge_streams"] == 0),
        ("requests left", requests, 0, requests == 0),
        ("growth of memory at rest, MB/min", growth, 1.0, growth < 1.0 if long else None),
    ]
    return [dict(zip(("name", "value", "bar", "met"), line, strict=True)) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
    parser.add_argument("--minutes", type=minutes, default=10.0)
    parser.add_argument("--clients", type=whole, default=100)
    parser.add_argument("--questions", type=whole, default=24)
    parser.add_argument("--tokens", type=whole, default=32, help="of each answer")
    parser.add_argument("--memory-mb", type=whole, default=512, help="for keys and values")
    parser.add_argument("--json", action="store_true", help="print the record")
    record.add_option(parser)
    options = parser.parse_args()
    with in_a_sentence(parser.prog):
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """Measure, record, and exit with 1 if a bar is not met."""
    find_model(options.model)
    with cloud(options.model, ["one"], "--drafter", "none", memory_mb=options.memory_mb) as server:
        questions = asyncio.run(plain_answers(server, options.questions, options.tokens))
    seconds = 60 * options.minutes
    with cloud(
        options.model, ["one"], "--tenant-mb", str(HISTORY_MB), memory_mb=options.memory_mb
    ) as server:
        seen, samples, rests = asyncio.run(crowd(server, options.clients, questions, seconds))
        left = left_over(server)
        counts = {
            name.partition(".")[2]: int(value)
            for name, value in server.metrics().items()
            if name.startswith("foresay_edge_total.")
        }
    found: dict[str, Any] = {
        "model": options.model,
        "clients": options.clients,
        "history_mb": HISTORY_MB,
        "seconds": seconds,
        "answers": seen.answers,
        "tokens_per_second": round(seen.tokens / seconds, 2),
        "left_streams": seen.left,
        "cut_connections": seen.cut,
        "lost_at_start": seen.lost_at_start,
        "resumes": seen.resumes,
        "reopens": seen.reopens,
        "accepted": seen.accepted,
        "different": seen.different,
        "errors": sum(seen.errors.values()),
        "first_errors": seen.errors.most_common(5),
        "total_seconds": percentiles(seen.seconds),
        "first_token_seconds": percentiles(seen.first),
        "server_counts": counts,
        "left_over": left,
        "memory": {"at_rest_mb": rests, **memory_slopes(samples, seconds / STRETCHES)},
    }
    found["bars"] = judged(found)
    short = "" if options.minutes >= 10 else "-quick"
    path = record.write(f"edge-load{short}", found, options.record)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    print(f"recorded in {path.name}")
    if any(line["met"] is False for line in found["bars"]):
        sys.exit(1)


def percentiles(values: list[float]) -> dict[str, float]:
    if not values:
        return {}
    return {f"p{p}": round(float(np.percentile(values, p)), 4) for p in (50, 95, 99)}


def show(found: dict[str, Any]) -> None:
    print(f"{found['clients']} clients for {found['seconds']:.0f} s: {found['answers']} answers, "
          f"{found['tokens_per_second']} tokens/s")  # fmt: skip
    print(f"left {found['left_streams']}, cut {found['cut_connections']}, resumes "
          f"{found['resumes']}, reopens {found['reopens']}, accepted {found['accepted']}, "
          f"lost before their first answer {found['lost_at_start']}")  # fmt: skip
    print(f"total {found['total_seconds']}, first token {found['first_token_seconds']}")
    memory = found["memory"]
    print(f"memory at rest {memory['at_rest_mb']} MB, most {memory['most_mb']}")
    print(f"left over: {found['left_over']}")
    for error, times in found["first_errors"]:
        print(f"{times} times: {error}")
    for line in found["bars"]:
        met = {None: "too short to tell", True: "met", False: "NOT MET"}[line["met"]]
        print(f"  {line['name']:<34}{line['value']:10.4f}   bar {line['bar']:g}   {met}")


if __name__ == "__main__":
    main()
