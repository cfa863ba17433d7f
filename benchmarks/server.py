"""The server: what it costs over the engine alone, and how it bears a crowd.

    python benchmarks/server.py [--only overhead,load] [--minutes 10] [--quick]

overhead   The same questions, 16 at once and streamed, through a server and straight through an
           engine, each in a process of its own, in rounds: one answers while the other idles, and
           who begins changes. Both have the same drafter and policy, and see the same questions in
           the same order, half of them greedy, half sampled with a seed, so every text must be
           the same; one difference and the script fails. Seconds are from the first question to
           the end of the last answer; the client's work shares the cores and is part of the
           server's time. A result is the median over rounds of (server's seconds / engine's
           seconds); both have written as many tokens. By default once with the policy adaptive,
           which measures the machine in each process for itself, so that the two may come to draft
           differently much, and once without drafts, where the steps are the same.
load       200 clients that stream short answers without a pause for 10 minutes. The memory of the
           server is sampled every second, and its slope is that of least squares after the
           warm-up, a fifth of the time. The bytes for keys and values and for history are fixed
           and small, so that both are full by then. Clients are a process of their own, whose
           share of a core is in the record. The same question must always get the same text.

Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import crowd
import harness
import workers
from foresay.bench.cloud import Cloud, cloud
from foresay.models import weights
from harness import bar

BARS = {"overhead": 0.10, "slope": 1.0, "jain": 0.95}
CLOCKS = {"times": "seconds", "cpu_times": "cpu_seconds"}
HISTORY_MB = 8  # of the crowd's answers: full within the warm-up


class Engine:
    """Answers rounds of questions in a process of its own."""

    def load(self, model: str, drafter: str, policy: str, dtype: str, memory_mb: int) -> None:
        from foresay import LLM
        from foresay.serve.start import tenant_drafter

        own: Any = tenant_drafter(1, 256 << 20) if drafter == "suffix" else drafter
        own = None if drafter == "none" else own
        self._llm = LLM(model, own, policy, dtype=dtype, memory=memory_mb << 20)  # type: ignore[arg-type]

    def answer(self, questions: list[dict[str, Any]]) -> dict[str, Any]:
        from foresay import SamplingParams

        timer, prompts = workers.Timer(), [one.pop("prompt") for one in questions]
        params = [SamplingParams(**one, ignore_eos=True) for one in questions]
        # Streamed, as the server's are: who waits for all of them would have other drafts made.
        asked = self._llm.stream(prompts, params)
        ended = {chunk.prompt_index: chunk.result for chunk in asked if chunk.result is not None}
        results = [ended[index] for index in range(len(questions))]
        return {
            **timer.read(),
            "tokens": sum(len(r.token_ids) for r in results),
            "texts": [r.text for r in results],
            "steps": max(r.stats.steps for r in results),
            "drafted": sum(r.stats.drafted for r in results),
        }


def cpu(server: Cloud) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def server(settings: dict[str, Any], history_mb: int = 256) -> Any:
    """`foresay serve` without keys, to be used in a `with`."""
    named = {name: settings[name] for name in ("dtype", "drafter", "policy")}
    options = [text for name, value in named.items() for text in (f"--{name}", value)]
    options += ["--tenant-mb", str(history_mb)]
    return cloud(settings["model"], (), *options, memory_mb=settings["memory_mb"], keys={})


def counted(server: Cloud) -> dict[str, int]:
    """Steps that a server has made, and tokens that it has drafted and verified."""
    found = server.metrics()
    names = {"steps": "foresay_steps", "drafted": "vllm:spec_decode_num_draft_tokens"}
    return {short: int(found.get(f"{name}_total", 0)) for short, name in names.items()}


def worker() -> workers.Worker:
    return workers.Worker("the other process", [sys.executable, __file__, "--worker"], seconds=7200)


def overhead(settings: dict[str, Any], at_once: int, rounds: int, tokens: int) -> dict[str, Any]:
    """Rounds of the same questions, of the server and of the engine alone, which take turns."""
    turns, different = [], 0
    with server(settings) as one, worker() as other:
        other.ask("load", **settings)

        def through_the_server(questions: list[dict[str, Any]]) -> dict[str, Any]:
            ran, before = cpu(one), counted(one)
            seconds, answers = asyncio.run(crowd.ask_together(one.url, questions))
            if errors := [answer.error for answer in answers if answer.error is not None]:
                sys.exit(f"a client got no answer: {errors[0]}")
            after = counted(one)
            return {
                "seconds": seconds,
                "cpu_seconds": cpu(one) - ran,
                "tokens": sum(answer.tokens for answer in answers),
                "texts": [answer.text for answer in answers],
                **{name: after[name] - before[name] for name in after},
            }

        for turn in range(rounds + 1):  # the first one warms up
            numbers = range(turn * at_once, (turn + 1) * at_once)
            asked = [crowd.question(number, tokens) for number in numbers]
            found = harness.take_turns(
                {
                    "server": lambda asked=asked: through_the_server(asked),
                    "engine": lambda asked=asked: other.ask("answer", questions=asked),
                },
                turn,
            )
            texts = [found[name].pop("texts") for name in ("server", "engine")]
            different += sum(a != b for a, b in zip(*texts, strict=True))
            mine, alone = found["server"], found["engine"]
            if mine["tokens"] != alone["tokens"]:
                sys.exit(f"the server wrote {mine['tokens']} tokens, the engine {alone['tokens']}")
            for name in CLOCKS:
                found[name] = round(mine[CLOCKS[name]] / alone[CLOCKS[name]], 4)
            turns.append(found)
    measured = turns[1:]
    return {
        "at_once": at_once,
        "tokens": tokens,
        **{name: round(median(turn[name] for turn in measured), 4) for name in CLOCKS},
        "different_texts": different,
        "rounds": measured,
    }


def load(settings: dict[str, Any], clients: int, seconds: float) -> dict[str, Any]:
    """Many clients for so long, while the server's memory is looked at."""
    warm_up = seconds / 5
    with server(settings, HISTORY_MB) as one, worker() as other:
        start, ran = time.monotonic(), cpu(one)
        samples: list[tuple[float, float, float]] = []
        asked = {"clients": clients, "seconds": seconds, "warm_up": warm_up}
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(other.ask, "crowd", url=one.url, **asked)
            while not running.done():
                now = time.monotonic() - start
                if now <= seconds:  # answers that end later are not counted
                    samples.append((now, *crowd.memory_mb(one.pid)))
                time.sleep(crowd.SAMPLE)
        share = (cpu(one) - ran) / (time.monotonic() - start)
        found = running.result()
    return {
        "seconds": seconds,
        "warm_up_seconds": warm_up,
        "history_mb": HISTORY_MB,
        "server_cpu_share": round(share, 3),
        "clients": found,
        "memory": crowd.memory_slopes(samples, warm_up),
    }


def judged(parts: dict[str, Any]) -> list[dict[str, Any]]:
    """What must be reached."""
    adds = "what the server adds to the time"
    lines = [
        bar(f"{adds}, {policy}", found["times"] - 1, BARS["overhead"], below=True)
        for policy, found in parts.get("overhead", {}).items()
    ]
    if "load" in parts:
        found, clients = parts["load"], parts["load"]["clients"]
        slope, long = found["memory"]["slope_mb_per_minute"], crowd.long_enough(found)
        lines += [
            bar("errors", clients["errors"], 0, at_most=True),
            bar("slope of memory, MB/min", slope, BARS["slope"], below=True, known=long),
            bar("Jain's index of answers, least", clients["jain"], BARS["jain"]),
        ]
    return lines


def show(figures: dict[str, Any]) -> None:
    for policy, found in figures["parts"].get("overhead", {}).items():
        print(
            f"overhead, {policy}: {found['times']} times, {found['cpu_times']} of the processor's"
        )
    for name, value in figures["parts"].get("load", {}).items():
        print(f"{name}: {json.dumps(value)}")
    harness.print_bars(figures["bars"])
    print(f"different texts: {figures['different_texts']}")


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        engine = Engine()
        tasks = {"load": engine.load, "answer": engine.answer, "crowd": crowd.crowd_of}
        return workers.serve(tasks)
    parser = harness.parser(__doc__, parts=("overhead", "load"), quick=True)
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
    parser.add_argument("--minutes", type=float, help="of load; 10 by default")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=16, help="questions in a round")
    parser.add_argument("--rounds", type=int, help="of overhead; 28 by default")
    parser.add_argument("--tokens", type=int, help="of each answer in a round; 64 by default")
    parser.add_argument("--memory-mb", type=int, default=512, help="for keys and values")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--drafter", default="suffix")
    parser.add_argument(
        "--policies", default="adaptive,none", help="of overhead; the first one also for load"
    )
    options = harness.parse(parser)
    policies = options.policies.split(",")
    settings = {
        "model": str(weights.find(options.model, convert=True)),
        "memory_mb": options.memory_mb,
        "dtype": options.dtype,
        "drafter": options.drafter,
        "policy": policies[0],
    }
    parts: dict[str, Any] = {}
    if "overhead" in options.chosen:
        rounds = options.rounds or (4 if options.quick else 28)
        size = options.at_once, rounds, options.tokens or (32 if options.quick else 64)
        parts["overhead"] = {p: overhead(settings | {"policy": p}, *size) for p in policies}
    if "load" in options.chosen:
        minutes = options.minutes or (1 if options.quick else 10)
        parts["load"] = load(settings, options.clients, 60 * minutes)
    different = parts["load"]["clients"]["different_texts"] if "load" in parts else 0
    different += sum(found["different_texts"] for found in parts.get("overhead", {}).values())
    figures = {
        "settings": settings | {"model": options.model},
        "parts": parts,
        "bars": judged(parts),
        "different_texts": different,
    }
    options.quick = options.quick or any((options.minutes, options.rounds, options.tokens))
    failed = "texts differ between server and engine, or from one answer to the next"
    harness.finish("serve", figures, options, show, failed if different else "")


if __name__ == "__main__":
    main()
