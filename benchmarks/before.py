"""This checkout against an earlier one: what a change of the house costs.

    python benchmarks/before.py --before OTHER/.venv/bin/python [--rounds 4] [--restarts 5]
                                [--only suffix8,vllm256]

Each side is one process that keeps its model and its drafter. The sides take turns measurement by
measurement; a result is the median of the ratios of their times, this checkout's over the other's:
above 1 is slower. Both are started anew several times: what a process times when it starts, and
where its memory lies, makes differences that stay as long as it lives. Only names that both know
are used.

    decode, decode8     an answer of the default model, and 8 at once, without drafts
    suffix, suffix8     the same with the default drafter and policy
    draft64             a step of the suffix drafter for 64 requests: propose and observe
    vllm256             a step of the proposer for vLLM, 256 requests with 4,000 tokens each
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import harness
import workers

PROMPTS = [
    f"List the numbers from {first} to {first + 40}, each on a line of its own."
    for first in range(1, 9)
]
TOKENS = 40


def drafting() -> float:
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


def proposing() -> float:
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
        raise RuntimeError("the proposer drafted nothing; expected drafts from texts that repeat")
    return taken


@cache
def engines() -> dict[str, Any]:
    from foresay import LLM

    plain = LLM(drafter=None, memory=1 << 29)
    return {"decode": plain, "suffix": plain.beside("suffix")}


def answering(engine: str, prompts: int) -> float:
    from foresay import SamplingParams

    llm, params = (
        engines()[engine],
        SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True),
    )
    begin = time.perf_counter()
    llm.generate(PROMPTS[:prompts], params, chat=True)
    return time.perf_counter() - begin


TASKS = {
    "decode": lambda: answering("decode", 1),
    "decode8": lambda: answering("decode", 8),
    "suffix": lambda: answering("suffix", 1),
    "suffix8": lambda: answering("suffix", 8),
    "draft64": drafting,
    "vllm256": proposing,
}


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return workers.serve(TASKS)
    parser = harness.parser(__doc__, parts=tuple(TASKS))
    parser.add_argument("--before", required=True, help="the interpreter of the other checkout")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=5)
    options = harness.parse(parser)
    times: dict[str, list[tuple[float, float]]] = {task: [] for task in options.chosen}
    for start in range(options.restarts):
        with (
            workers.Worker("this checkout", [sys.executable, __file__, "--worker"]) as now,
            workers.Worker("the other one", [options.before, __file__, "--worker"]) as then,
        ):
            for turn in range(options.rounds + 1):
                for task in options.chosen:
                    sides = {side.name: lambda s=side, t=task: s.ask(t) for side in (now, then)}
                    took = harness.take_turns(sides, turn)
                    if turn:  # the first is for warming up
                        times[task].append((took[now.name], took[then.name]))
        ratios = [statistics.median(a / b for a, b in times[task]) for task in options.chosen]
        print(f"start {start + 1}: {', '.join(f'{r:.3f}' for r in ratios)}", flush=True)
    tasks = {}
    for task, pairs in times.items():
        low, middle, high = statistics.quantiles([a / b for a, b in pairs], n=4)
        tasks[task] = {
            "ratio": round(middle, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "now_seconds": round(statistics.median(a for a, _ in pairs), 4),
            "before_seconds": round(statistics.median(b for _, b in pairs), 4),
        }

    def show(figures: dict[str, Any]) -> None:
        for task, one in figures["tasks"].items():
            print(f"{task:8} {one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f})")

    other: dict[str, Any] = {"rounds": options.rounds, "restarts": options.restarts}
    other["before"] = harness.commit(Path(options.before).absolute().parent)
    harness.finish("house", {**other, "tasks": tasks}, options, show)


if __name__ == "__main__":
    main()
