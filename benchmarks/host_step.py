"""What the host does in a step of the engine, in microseconds by phase: all but the model.

    python benchmarks/host_step.py [TRACE.jsonl.gz …] [--batches 1,8,64,128] [--only chat]

The engine is the real one: its scheduler, drafter and policy. A stand-in answers as recorded texts
do, and a clock says that each step took a GPU's time, so that the policy decides as it would there.

    edits    a text, then the same text with a token in 40 changed: drafts are accepted
    chat     answers of the traces to their own prompts
    new      tokens that never repeat: the drafter is asked and finds nothing

Times are medians over steps of which all requests decode. Laying out the rows counts for the
forward pass; what the stand-in does in place of logits and of sampling counts for nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import harness
from foresay.bench.recorded import CountedTarget, RecordedAnswers
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.step import Outcome, Step, Timings
from foresay.models.rows import StepRows
from foresay.sampling.params import SamplingParams
from foresay.traces import Trace, read_traces
from foresay.verdict import Wants

TEXTS = ("edits", "chat", "new")
PHASES = ("schedule", "draft", "parts", "forward", "commit", "account")
VOCABULARY = 152_000
OWN = Path(__file__).parents[1] / "tests" / "recorded.jsonl.gz"
BARS = {1: 200.0, 128: 250.0}  # microseconds of a step; at 128 requests 5 % of 5 ms
NOTHING = 20.0  # microseconds, at batch 1: asking and finding nothing


class GpuTable:
    """Seconds of a step of a model of 1.5B on a GPU: 1.15 ms, and 5 ms at 512 rows."""

    def seconds(self, requests: int, rows: int, keys: int, reads: int, prefill: int) -> float:
        return 1.15e-3 + 7.5e-6 * (rows + prefill)

    def cost(self) -> StepCost:
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        return StepCost.measured(
            (n, n * keys, self.seconds(1, n, keys, n * keys, 0), keys, 1)
            for n in sizes
            for keys in (128, 1024)
        )


class Clock:
    """Real seconds, and those that the stand-in says a GPU took."""

    def __init__(self) -> None:
        self.now = 0.0  # of the GPU alone

    def __call__(self) -> float:
        return time.perf_counter() + self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class HostTimes:
    """The `Compute` that walks the recorded answers, and times what is around it."""

    def __init__(self, traces: Sequence[Trace], clock: Clock) -> None:
        self.clock = clock
        self.answers = RecordedAnswers(traces, GpuTable(), clock)  # type: ignore[arg-type]

    def __call__(self, step: Step, wants: Wants, laps: Timings) -> Outcome:
        self.parts = self.clock()
        StepRows.of(step.parts)
        self.laps, self.step, self.forward = laps, step, self.clock()
        outcome = self.answers(step, wants, laps)
        self.done = self.clock()
        return outcome


def text_of(kind: str, traces: Sequence[Trace], count: int, tokens: int) -> list[Trace]:
    """Requests with answers of `tokens` tokens."""
    chosen, draw = [], random.Random(kind)
    records = [trace for trace in traces if len(trace.output) >= 64]
    flat = np.concatenate([np.concatenate([t.prompt, t.output]) for t in records])
    for at in range(count):
        if kind == "new":
            text = draw.sample(range(VOCABULARY), 300 + tokens)
            prompt, output = text[:300], text[300:]
        elif kind == "edits":
            start = draw.randrange(len(flat))
            output = np.take(flat, range(start, start + tokens), mode="wrap").tolist()
            prompt = output.copy()
            for place in range(0, tokens, 40):
                output[place] = draw.randrange(VOCABULARY)
        else:
            trace = records[draw.randrange(len(records))]
            prompt = trace.prompt.tolist()
            start = draw.randrange(len(flat))
            rest = np.take(flat, range(start, start + tokens), mode="wrap").tolist()
            output = (trace.output.tolist() + rest)[:tokens]
        arrays = np.array(prompt, np.int32), np.array(output, np.int32)
        chosen.append(Trace(str(at), str(at), *arrays))
    return chosen


def measure(kind: str, traces: Sequence[Trace], batch: int, drafts: bool, tokens: int) -> Any:
    """Microseconds by phase, and tokens and nodes of a request and step."""
    texts, clock = text_of(kind, traces, batch, tokens), Clock()
    compute = HostTimes(texts, clock)
    engine = Engine(
        CountedTarget(vocabulary=VOCABULARY, context=1 << 16),
        SuffixDrafter(history=False) if drafts else None,
        policy=Adaptive(GpuTable().cost()) if drafts else "none",
        memory=1 << 24,
        max_rows=8192,
        compute=compute,
        clock=clock,
    )
    for text in texts:
        params = SamplingParams(max_tokens=tokens)
        engine.add(text.prompt, params, seed=0)
    found: list[list[float]] = []
    committed = drafted = 0
    while engine.busy:
        begun = clock()
        ended = engine.step()
        end = clock()
        if any(request.finished for request in ended):
            break
        step, took = compute.step, compute.laps.seconds
        if len(step.decoding) < batch or step.load.other_rows:
            continue
        parts = compute.parts - begun - took["schedule"] - took["draft"]
        laid = compute.forward - compute.parts
        before, after = compute.forward - begun, end - compute.done
        known = [took["schedule"], took["draft"], parts, laid, took["commit"]]
        found.append([*known, before + after - sum(known), before + after])
        committed += compute.answers.committed
        drafted += len(step.chosen.drafts.tokens)
    phases = np.median(found[3:], axis=0) * 1e6
    named = dict(zip((*PHASES, "step"), phases.round(1).tolist(), strict=True))
    steps = len(found) * batch
    mean = float(np.mean([times[-1] for times in found[3:]]) * 1e6)
    return named | {
        "mean": round(mean, 1),
        "steps": len(found),
        "tokens_per_step": round(committed / steps, 2),
        "nodes_per_step": round(drafted / steps, 2),
    }


def main() -> None:
    parser = harness.parser(__doc__, parts=TEXTS, quick=True)
    parser.add_argument("traces", nargs="*", default=[OWN])
    parser.add_argument("--batches", default="1,8,64,128")
    parser.add_argument("--tokens", type=harness.count, default=400, help="of an answer")
    parser.add_argument("--rounds", type=harness.count, default=3, help="the best one counts")
    options = harness.parse(parser)
    batches = [int(size) for size in options.batches.split(",")]
    tokens, rounds = (60, 1) if options.quick else (options.tokens, options.rounds)
    traces = [trace for path in options.traces for trace in read_traces(path)]
    figures: dict[str, Any] = {"steps": {}}
    for kind in options.chosen:
        for batch in batches:
            for drafter in ("none", "suffix"):
                runs = [
                    measure(kind, traces, batch, drafter == "suffix", tokens) for _ in range(rounds)
                ]
                best = min(runs, key=lambda run: run["step"])
                figures["steps"][f"{kind} {batch} {drafter}"] = best
    figures["bars"] = bars(figures["steps"])

    def show(figures: dict[str, Any]) -> None:
        head = [*PHASES, "step", "mean", "tokens", "nodes"]
        values = [*PHASES, "step", "mean", "tokens_per_step", "nodes_per_step"]
        rows = [
            [name, *(f"{run[value]:.1f}" for value in values)]
            for name, run in figures["steps"].items()
        ]
        harness.print_table(["microseconds", *head], rows)
        harness.print_bars(figures["bars"])

    harness.finish("host-step", figures, options, show)


def bars(steps: dict[str, Any]) -> list[dict[str, Any]]:
    """The host's time of a step, and what asking for nothing costs, against their bars."""
    lines = [
        harness.bar(f"host, {name}", run["step"], BARS[batch], at_most=True, unit=" us")
        for name, run in steps.items()
        if (batch := int(name.split()[1])) in BARS
    ]
    if "new 1 suffix" in steps:
        more = steps["new 1 suffix"]["step"] - steps["new 1 none"]["step"]
        lines.append(harness.bar("asked, found nothing", more, NOTHING, at_most=True, unit=" us"))
    return lines


if __name__ == "__main__":
    main()
