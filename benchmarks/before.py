"""This checkout against an earlier one: what a change of the house costs.

    python benchmarks/before.py --before OTHER/.venv/bin/python [--rounds 4] [--restarts 5]
                                [--record NAME] [--tasks suffix8,vllm256]

Each side is one process that keeps its model and its drafter, and measures when it is told to. The
sides take turns measurement by measurement, and the first one changes; a result is the median
of the ratios of their times, this checkout's over the other's: above 1 is slower. Both sides are
started anew several times: what a process times when it starts, and where its memory lies, makes
differences that stay as long as it lives. Only names that
both know are used: `LLM`, `SamplingParams`, `SuffixDrafter`, `SuffixProposer`.

    decode, decode8     an answer of the default model, and 8 at once, without drafts
    suffix, suffix8     the same with the default drafter and policy
    draft64             a step of the suffix drafter for 64 requests: propose and observe
    vllm256             a step of the proposer for vLLM, 256 requests with 4,000 tokens each
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import record

PROMPTS = [
    f"List the numbers from {first} to {first + 40}, each on a line of its own."
    for first in range(1, 9)
]
TOKENS = 40
TASKS = ("decode", "decode8", "suffix", "suffix8", "draft64", "vllm256")


def worker() -> None:
    """Measure what is named on stdin, a line each; the answer is the time in seconds."""
    tasks = _answers() | {"draft64": _drafting, "vllm256": _proposing}
    print("ready", flush=True)
    for line in sys.stdin:
        print(tasks[line.strip()](), flush=True)


def _drafting() -> float:
    from foresay import Verdict
    from foresay.drafters import SuffixDrafter

    random, drafter = np.random.default_rng(0), SuffixDrafter()
    texts = [random.integers(0, 40, 600).astype(np.int32) for _ in range(64)]
    states = [drafter.begin(text) for text in texts]
    begin = time.perf_counter()
    for step in range(60):
        drafter.propose(states, [8] * 64)
        drafter.observe(states, [Verdict([], [int(text[step * 7])]) for text in texts])
    taken = time.perf_counter() - begin
    for state in states:
        drafter.finish(state)
    return taken


def _proposing() -> float:
    from foresay.integrations.vllm import SuffixProposer

    os.environ["FORESAY_VLLM_MEASURE"] = "0"  # there is no model here whose time drafts could save
    rows, prompt, steps = 256, 4000, 240
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=8),
        model_config=SimpleNamespace(max_model_len=8192),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
    )
    proposer = SuffixProposer(config)
    proposer._may_draft = True  # there is no vLLM here whose sampler must be patched first
    random = np.random.default_rng(0)
    stretches = random.integers(0, 40000, (500, 40)).astype(np.int32)  # texts repeat these
    texts = stretches[random.integers(0, 500, (rows, 120))].reshape(rows, -1)
    lengths = np.full(rows, prompt, np.int32)
    taken, drafted = 0.0, 0
    for step in range(steps + 1):
        lengths += 1
        sampled = texts[:, prompt + step : prompt + step + 1].tolist()
        begin = time.perf_counter()
        drafts = proposer.propose(sampled, lengths, texts)
        if step:  # the first reads the prompts
            taken += time.perf_counter() - begin
            drafted += sum(map(len, drafts))
    if not drafted:
        raise SystemExit("the proposer drafted nothing; expected drafts from texts that repeat")
    return taken


def _answers() -> dict[str, Callable[[], float]]:
    from foresay import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    plain = LLM(drafter=None, memory=1 << 29)
    drafted = plain.beside("suffix")

    def answers(llm: LLM, count: int) -> Callable[[], float]:
        def timed() -> float:
            begin = time.perf_counter()
            llm.generate(PROMPTS[:count], params, chat=True)
            return time.perf_counter() - begin

        return timed

    return {
        "decode": answers(plain, 1),
        "decode8": answers(plain, 8),
        "suffix": answers(drafted, 1),
        "suffix8": answers(drafted, 8),
    }


class Side:
    """A process that measures with one checkout."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{python} cannot measure; run it with --worker to see why")

    def seconds(self, task: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{task}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()


Times = dict[str, list[tuple[float, float]]]  # by task: this checkout's, the other's


def measure(before: str, rounds: int, tasks: Sequence[str], times: Times) -> None:
    """Start both sides and add their times."""
    now, then = Side(sys.executable), Side(before)
    try:
        for turn in range(rounds + 1):
            for task in tasks:
                if turn % 2:
                    theirs, ours = then.seconds(task), now.seconds(task)
                else:
                    ours, theirs = now.seconds(task), then.seconds(task)
                if turn:  # the first is for warming up
                    times[task].append((ours, theirs))
    finally:
        now.end()
        then.end()


def compare(
    before: str, rounds: int, restarts: int, tasks: Sequence[str]
) -> dict[str, dict[str, float]]:
    """By task: the median ratio, its quartiles, and both medians in seconds."""
    times: Times = {task: [] for task in tasks}
    for start in range(restarts):
        measure(before, rounds, tasks, times)
        so_far = (statistics.median(a / b for a, b in times[task]) for task in tasks)
        print(f"start {start + 1}: {', '.join(f'{ratio:.3f}' for ratio in so_far)}", flush=True)
    found = {}
    for task, pairs in times.items():
        low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        found[task] = {
            "ratio": round(middle, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "now_seconds": round(statistics.median(a for a, _ in pairs), 4),
            "before_seconds": round(statistics.median(b for _, b in pairs), 4),
        }
        print(f"{task:8} {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="the interpreter of the other checkout")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=5)
    parser.add_argument("--record", help="write benchmarks/record/DATE-NAME.json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tasks", default=",".join(TASKS), help="some of them")
    given = parser.parse_args()
    tasks = given.tasks.split(",")
    if given.worker:
        worker()
        return
    if not given.before:
        parser.error("--before is missing; expected the interpreter of the other checkout")
    if unknown := set(tasks) - set(TASKS):
        parser.error(
            f"--tasks has {', '.join(sorted(unknown))}; expected some of {', '.join(TASKS)}"
        )
    found = compare(given.before, given.rounds, given.restarts, tasks)
    if given.record:
        print(
            record.write(
                given.record, {"rounds": given.rounds, "restarts": given.restarts, "tasks": found}
            )
        )


if __name__ == "__main__":
    main()
