"""How far `foresay simulate` can be trusted, and what it says about long tails.

    python benchmarks/simulate.py [--only engine,published] [--model M] [--prompts TRACE] [--quick]

    engine     our own engine: a table of step costs is measured, rollouts are run and timed, and
               the simulator predicts their time from what they wrote. One constant is fitted, on
               three configurations; the others are held out
    published  a published setting (32B shapes, at most 8 requests, 3 tokens, own text): 1.10 times
               overall (3904 to 3549 s) and 1.35 times in the tail. What the simulator says of it,
               and of what foresay does instead

Published answers are not to be had, so they are stood in for by countdown searches
(`examples/countdown.py`), whose lengths have a long tail. Two constants are fitted to the two
published figures: GARBLED, the share of tokens that nothing can predict (to the tail's speed-up),
and SAMPLES of each of the 24 prompts that a replica gets, which was not published (to the overall
one: more requests make the tail a smaller part). Both are varied below, and so are the prompts.
Assumed: the step costs (a roofline, but for two points), 20 µs for drafting, and that each token
counts as so many tokens of context that the longest answer has the published limit. As published:
128 requests at once, at most 8 with drafts, 3 tokens each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import harness
from foresay.bench.compare import compare, inputs_of
from foresay.bench.measure_costs import measure_table
from foresay.bench.plans import Plan, Setup
from foresay.bench.simulate import simulate
from foresay.bench.step_costs import read_table
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from foresay.traces import Trace, read_traces
from harness import HERE

sys.path.insert(0, str(HERE.parent / "examples"))
from countdown import Task, draw_puzzle, search_trace

GARBLED, SAMPLES = 0.13, 12
LIMIT = 34816  # tokens of a published answer
PUBLISHED = {"speedup": 1.10, "tail_speedup": 1.35}
PLANS = ("threshold", "adaptive", "adaptive:group:stagger", "adaptive:all:stagger", "oracle")
DRAFTING = 2e-5


@dataclass(frozen=True)
class Config:
    """One rollout: a plan and how many requests run at once; `fitted`: it is not held out."""

    plan: str
    running: int
    k: int | None = None
    fitted: bool = False

    @property
    def name(self) -> str:
        return f"{self.plan}, {self.running} at once" + ("" if self.k is None else f", k {self.k}")

    def made(self) -> Plan:
        return Plan.parse(self.plan, k=self.k)


CONFIGS = (
    Config("none", 1, fitted=True),
    Config("none", 16, fitted=True),
    Config("fixed:all:stagger", 4, k=6, fitted=True),
    Config("none", 4),
    Config("none", 8),
    Config("fixed:all:stagger", 1, k=4),
    Config("fixed:all:stagger", 8, k=3),
    Config("threshold:none:file", 16),
    Config("dynamic-k:all:stagger", 8),
    Config("adaptive:all:stagger", 1),
    Config("adaptive:all:stagger", 8),
    Config("adaptive:all:stagger", 16),
)


class Timed(NamedTuple):
    """What a rollout took, and what it wrote."""

    seconds: float
    steps: int
    traces: list[Trace]

    @property
    def texts(self) -> list[list[int]]:
        return [trace.output.tolist() for trace in self.traces]


def rollout(llm: LLM, prompts: Sequence[Any], options: argparse.Namespace, config: Config) -> Timed:
    """All samples of all prompts, in the order of the plan.

    Not by `foresay.rl.Rollouts`, whose samples always share with their group: a plan may say that
    they do not, and the engine must do what is simulated.
    """
    plan, samples = config.made(), options.samples
    params = SamplingParams(temperature=0.8, max_tokens=options.tokens, logprobs=0)
    drafter: Any = plan.drafter([])
    if drafter is not None and plan.policy != "threshold":
        drafter = SuffixDrafter(history=plan.share == "all")
    policy = plan.policy if plan.policy == "adaptive" else plan.policy_with(None)
    engine = Engine(llm.target, drafter, policy=policy, max_running=config.running)
    keys = [(at, sample) for at in range(len(prompts)) for sample in range(samples)]
    if plan.order == "stagger":
        keys.sort(key=lambda key: (key[1], key[0]))
    asked = {}
    for at in range(len(prompts)):
        engine.groups.open(None, f"{at}")
    for at, sample in keys:
        asked[at, sample] = engine.add(
            prompts[at],
            params,
            seed=1 + at * samples + sample,
            stops=llm.tokenizer.ends,
            group=None if plan.share == "none" else f"{at}",
            together=True,
        )
    begin, steps = time.perf_counter(), 0
    while engine.busy:
        engine.step()
        steps += 1
    seconds = time.perf_counter() - begin
    traces = []
    for (at, sample), request in sorted(asked.items()):
        texts = (np.array(tokens, np.int32) for tokens in (prompts[at], request.token_ids))
        traces.append(Trace(f"{at}.{sample}", f"{at}", *texts))
    return Timed(seconds, steps, traces)


def engine(options: argparse.Namespace) -> dict[str, Any]:
    """Measured and predicted seconds of every configuration, which take turns. One constant is
    fitted: how much longer steps take in rollouts than in the table, on average over the fitted
    configurations. `error` is with it, `raw_error` without it.
    """
    llm = LLM(options.model, drafter=None, dtype=options.dtype)
    small: dict[str, Any] = {}
    if options.quick:
        small = {"batches": (1, 4, 16), "contexts": (64,), "nodes": (0, 1, 7), "repeats": 2}
    table = measure_table(llm.target, "own", options.model, **small)
    prompts = _prompts(options, llm)
    rounds = [
        {config: rollout(llm, prompts, options, config) for config in CONFIGS}
        for _ in range(options.rounds)
    ]
    texts, rows = rounds[0][CONFIGS[0]].texts, []
    for config in CONFIGS:
        timed = [found[config] for found in rounds]
        setup = Setup(
            table,
            running=config.running,
            max_tokens=options.tokens,
            draft_seconds=table.draft_seconds or 0.0,
        )
        predicted = simulate(timed[0].traces, config.made(), setup)
        seconds = [run.seconds for run in timed]
        rows.append(
            {
                "config": config.name,
                "held_out": not config.fitted,
                "seconds": median(seconds),
                "spread": max(seconds) / min(seconds),
                "steps": median(run.steps for run in timed),
                "predicted_steps": len(predicted.steps),
                "predicted": predicted.seconds,
                "identical": all(run.texts == texts for run in timed),
            }
        )
    factor = median(row["seconds"] / row["predicted"] for row in rows if not row["held_out"])
    for row in rows:
        row["raw_error"] = row["predicted"] / row["seconds"] - 1
        row["error"] = factor * row["predicted"] / row["seconds"] - 1
        print(
            f"{row['config']:36} {row['seconds']:8.3f} s  predicted {row['predicted']:8.3f} s"
            f"  error {row['error']:+6.1%}  {'held out' if row['held_out'] else 'fitted'}"
            f"  steps {row['steps']:.0f}, predicted {row['predicted_steps']}"
        )
    errors = [abs(row["error"]) for row in rows if row["held_out"]]
    mean = sum(errors) / len(errors)
    print(f"held out: mean error {mean:.1%}, largest {max(errors):.1%}; bar 10 %")
    found = {"factor": factor, "mean_error": mean, "largest_error": max(errors), "rows": rows}
    return {"model": options.model, "table": table.as_dict(), **found}


def _prompts(options: argparse.Namespace, llm: LLM) -> list[Any]:
    if options.prompts is not None:
        first = {trace.group: trace.prompt.tolist() for trace in read_traces(options.prompts)}
        return list(first.values())[: options.count]
    asked = [f"What is {n} plus {n * 7 % 13} times {n % 5 + 2}? Explain." for n in range(3, 99)]
    chat = llm.tokenizer.chats
    return [llm.encode(text, chat=chat).tolist() for text in asked[: options.count]]


def countdown_groups(
    prompts: int, samples: int, *, garbled: float, first: int = 0, seed: int
) -> list[Trace]:
    """`samples` searches for each prompt. How far they differ is set by the task's noise.

    garbled  the share of tokens that are replaced by random numbers: searches repeat themselves
             more than what models write
    first    the number of the first sample: other samples of the same prompts are another epoch
    """
    task, traces = Task(cap=4096), []
    for at in range(prompts):
        puzzle = draw_puzzle(task, np.random.default_rng([seed, at]))
        for sample in range(first, first + samples):
            random = np.random.default_rng([seed, at, sample])
            output = np.array(search_trace(puzzle, task, random), np.int32)
            wrong = random.random(len(output)) < garbled
            output[wrong] = random.integers(task.most, size=int(wrong.sum()))
            prompt = np.array(puzzle.prompt, np.int32)
            traces.append(Trace(f"{at}.{sample}", f"p{at}", prompt, output))
    return traces


def published(options: argparse.Namespace) -> dict[str, Any]:
    """The published setting, its sensitivity, and what else could be done."""
    quick, resamples = options.quick, 2 if options.quick else options.resamples
    samples = 4 if quick else SAMPLES
    made = partial(countdown_groups, 4 if quick else 24)
    usual = {"samples": samples, "garbled": GARBLED, "seed": 1}
    found = {
        "published": PUBLISHED,
        "fitted": {"garbled": GARBLED, "samples": SAMPLES},
        "sets": {},
    }

    def add(name: str, traces: list[Trace], plans: Sequence[str], drawn: int, **more: Any) -> None:
        found["sets"][name] = _compared(name, traces, plans, drawn, options, **more)

    add("countdown", made(**usual), PLANS, resamples)
    few = (PLANS[0], "adaptive:all:stagger")
    earlier = made(**usual, first=samples)
    add("countdown, after an earlier epoch", made(**usual), few[1:], resamples, history=earlier)
    if not quick:
        for garbled in (0.0, 0.08, 0.18):
            add(f"countdown, garbled {garbled}", made(**usual | {"garbled": garbled}), few, 0)
        for count in (8, 16):
            add(f"countdown, {count} samples", made(**usual | {"samples": count}), few, 0)
        for seed in (2, 3):
            add(f"countdown, other prompts {seed}", made(**usual | {"seed": seed}), few, 0)
    for path in options.trace:
        recorded = [trace for trace in read_traces(path) if len(trace.output)]
        add(path.name, recorded[: options.most], PLANS, resamples)
    return found


def _compared(
    name: str,
    traces: list[Trace],
    plans: Sequence[str],
    resamples: int,
    options: argparse.Namespace,
    history: Sequence[Trace] = (),
) -> dict[str, Any]:
    stretch = LIMIT / max(len(trace.output) for trace in traces)
    table = read_table(options.costs).stretched(stretch)
    setup = Setup(table, running=options.running, draft_seconds=DRAFTING)
    wanted = [Plan.parse(plan) for plan in plans]
    results = compare(traces, wanted, setup, resamples=resamples, history=history)
    print(f"\n{name}: {len(traces)} requests, stretch {stretch:.1f}, {options.costs}")
    for result in (one.as_dict() for one in results):
        shown = [result["plan"]]
        for what in ("speedup", "tail_speedup"):
            if result[what] is not None:
                shown.append(f"{what} {result[what]:.2f}")
                ends = result[f"{what}_interval"]
                shown += [] if ends is None else [f"({ends[0]:.2f} to {ends[1]:.2f})"]
        shown.append(f"tail {result['tail_share']:.0%} of its time")
        print(*shown, f"{result['tokens_per_step']:.2f} tokens per step", flush=True)
    inputs = inputs_of(traces, setup, stretch=stretch)
    return {
        "costs": options.costs,
        "running": options.running,
        "stretch": stretch,
        "inputs": [[i.what, i.kind, i.about] for i in inputs],
        "plans": [result.as_dict() for result in results],
    }


PARTS = {"engine": engine, "published": published}


def main() -> None:
    parser = harness.parser(__doc__, parts=tuple(PARTS), quick=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompts", type=Path, help="trace file whose prompts are asked")
    parser.add_argument("--count", type=int, default=8, help="prompts")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=96, help="max_tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--costs", default="h200-32b")
    parser.add_argument("--running", type=int, default=128)
    parser.add_argument("--resamples", type=int, default=8)
    parser.add_argument("--trace", type=Path, nargs="*", default=[], help="recorded answers, too")
    parser.add_argument("--most", type=int, default=512, help="requests of a recorded trace")
    options = harness.parse(parser)
    figures = {name: PARTS[name](options) for name in options.chosen}
    harness.finish("simulate", figures, options)


if __name__ == "__main__":
    main()
