"""Rollouts of the default model with and without drafts, in which order samples begin, memory.

    python benchmarks/rollouts.py --prompts QUESTIONS.jsonl [--only group,order] [--dtypes auto]
    python benchmarks/rollouts.py --only memory [--traces TRACE.jsonl.gz]

Prompts are JSON lines with "question", asked through the model's chat template, at temperature 0.8.

    group   8 samples of one prompt, all waited for, prompt after prompt: without drafts, with one
            drafter that keeps what it has seen, and with a new drafter for each prompt; in every
            dtype. Its ratio is that of seconds, the prompt's prefill included
    order   16 prompts with 4 samples each where 16 run at once: one sample of every prompt first,
            or prompt after prompt, or without drafts: seconds until all have ended, and until all
            samples of one prompt have
    memory  128 groups of 8 answers of 8,192 tokens that all grow at once, without a model, through
            the drafter that `Rollouts` makes: the most bytes that it holds, and what it still holds
            when all have ended and their groups are dropped. The answers are searches of
            countdown-trace, one behind the other, the same puzzles for a whole group; with --traces
            recorded answers, the samples of one prompt at the same place

Sides take turns, and who begins changes. The tokens of all sides are compared, and one difference
makes the script fail; of log probabilities the largest difference is recorded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

import harness
import workers
from foresay import LLM, SamplingParams
from foresay.arrays import Int32s
from foresay.budget.policy import make_policy
from foresay.counts import tokens_per_step
from foresay.engine.measure import measured_cost
from foresay.models.options import Dtype
from foresay.models.weights import DEFAULT_MODEL
from foresay.rl import Rollout, Rollouts
from foresay.rl.rollouts import Order, rollout_drafter
from foresay.traces import read_records, read_traces
from foresay.verdict import VerdictBatch
from harness import HERE, ratio, say, take_turns
from workers import resident

sys.path.insert(0, str(HERE.parent / "examples"))
from countdown import Task, draw_puzzle, search_trace

PARTS = ("group", "order", "memory")
NONE, KEPT, NEW = "no drafts", "drafts", "drafts, nothing seen before"
ORDERS: dict[str, tuple[str | None, Order]] = {
    "no drafts, prompt": (None, "prompt"),
    "drafts, prompt": ("suffix", "prompt"),
    "no drafts, stagger": (None, "stagger"),
    "drafts, stagger": ("suffix", "stagger"),
}
HISTORY: int = signature(Rollouts).parameters["history_bytes"].default
BUDGET = 4  # drafted tokens of a request in a step of `memory`


class Model:
    """One model in memory, and as many `Rollouts` over it as are wanted."""

    def __init__(self, options: argparse.Namespace, dtype: Dtype) -> None:
        self.options = options
        self.llm = LLM(options.model, None, "none", dtype=dtype, memory=16 << 20)
        self.params = SamplingParams(temperature=0.8, max_tokens=options.tokens)
        self._cost = measured_cost(self.llm.target)

    def rollouts(
        self, drafter: str | None, order: Order = "stagger", max_running: int = 256
    ) -> Rollouts:
        """As a user gets it; but the machine is measured once, for all of them."""
        policy = "none" if drafter is None else make_policy("adaptive", deepcopy(self._cost))
        made = Rollouts(
            self.llm.target, drafter, policy, order=order, max_running=max_running, memory=2 << 30
        )
        made.sample([[1, 2, 3]], SamplingParams(max_tokens=2), samples=1, seed=0)
        return made

    def prompts(self, count: int) -> list[Int32s]:
        asked = [str(row["question"]) for _, row in read_records(self.options.prompts)][:count]
        if len(asked) < count:
            raise SystemExit(f"the prompts have {len(asked)} questions; expected {count}")
        return [self.llm.encode(question, chat=True) for question in asked]

    def sampled(
        self, make: Callable[[], Rollouts], prompts: Sequence[Int32s], samples: int, seed: int
    ) -> Sampled:
        """One rollout, timed from the prompts' tokens to the last token of the last answer."""
        rollouts = make()
        scheduler, first = rollouts.engine.scheduler, list[float]()

        def watch(_: int) -> None:
            groups = {request.group for request in (*scheduler.running, *scheduler.waiting)}
            if not first and len(groups) < len(prompts):
                first.append(time.perf_counter())

        begin, ends = time.perf_counter(), self.llm.tokenizer.ends
        texts = rollouts.sample(
            prompts, self.params, samples=samples, seed=seed, stops=ends, progress=watch
        )
        seconds = time.perf_counter() - begin
        every = [one for group in texts for one in group]
        return Sampled(seconds, first[0] - begin, len(rollouts.steps), every)


class Sampled(NamedTuple):
    """A rollout, and what it took."""

    seconds: float
    first_group: float
    passes: int
    texts: list[Rollout]

    def as_dict(self) -> dict[str, Any]:
        stats = [one.stats for one in self.texts]
        tokens, steps = sum(len(one.token_ids) for one in self.texts), sum(s.steps for s in stats)
        return {
            "seconds": round(self.seconds, 4),
            "first_group_seconds": round(self.first_group, 4),
            "passes": self.passes,
            "tokens": tokens,
            "tokens_per_second": round(tokens / self.seconds, 2),
            "steps": steps,
            "tokens_per_step": round(tokens_per_step(tokens, steps), 3),
            "drafted": sum(s.drafted for s in stats),
            "accepted": sum(s.accepted for s in stats),
        }


Run = dict[str, Sampled]


class Compared:
    """What drafts changed: no token may differ; of log probabilities the largest difference."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.logprob = 0.0

    def note(self, what: str, run: Run) -> None:
        name, *others = run
        for other in others:
            pairs = [*zip(run[name].texts, run[other].texts, strict=True)]
            if any(a.token_ids != b.token_ids for a, b in pairs):
                self.differences.append(f"{what}: {other} and {name}")
                continue
            apart = [a.logprobs - b.logprobs for a, b in pairs]
            apart += [a.raw_logprobs - b.raw_logprobs for a, b in pairs]
            self.logprob = max(float(np.abs(one).max(initial=self.logprob)) for one in apart)


def bars(runs: Sequence[Run], field: str, than: str, sides: Sequence[str]) -> list[dict[str, Any]]:
    """How many times less of `field` a side takes, run by run."""
    of = attrgetter(field)
    return [
        ratio(f"{side} by {than}, {field}", [of(run[than]) / of(run[side]) for run in runs])
        for side in sides
    ]


def group(model: Model, options: argparse.Namespace, compared: Compared) -> dict[str, Any]:
    runs: list[Run] = []
    none, kept = model.rollouts(None), model.rollouts("suffix")
    makers: dict[str, Callable[[], Rollouts]] = {
        NONE: lambda: none,
        KEPT: lambda: kept,
        NEW: partial(model.rollouts, "suffix"),
    }
    for turn, prompt in enumerate(model.prompts(options.groups)):
        asked = [prompt], options.samples, turn
        sides = {name: partial(model.sampled, make, *asked) for name, make in makers.items()}
        runs.append(take_turns(sides, turn))
        compared.note(f"group, {model.llm.target.dtype}, prompt {turn + 1}", runs[-1])
        say(f"group, prompt {turn + 1}: {runs[-1][NONE].seconds:.2f} s without drafts")
    return {
        "samples": options.samples,
        "bars": bars(runs, "seconds", NONE, (KEPT, NEW)) + bars(runs, "passes", NONE, (KEPT, NEW)),
        "runs": [{side: one.as_dict() for side, one in run.items()} for run in runs],
    }


def order(model: Model, options: argparse.Namespace, compared: Compared) -> dict[str, Any]:
    """Each rollout has an engine of its own, so that none has seen the prompts."""
    prompts, runs = model.prompts(options.order_prompts), list[Run]()
    for turn in range(options.rounds):
        sides = {}
        for name, (drafter, begins) in ORDERS.items():
            make = partial(model.rollouts, drafter, begins, options.order_running)
            sides[name] = partial(model.sampled, make, prompts, options.order_samples, turn)
        runs.append(take_turns(sides, turn))
        compared.note(f"order, round {turn + 1}", runs[-1])
        say(f"order, round {turn + 1}")
    plain, drafts, *others = ORDERS
    return {
        "prompts": len(prompts),
        "samples": options.order_samples,
        "max_running": options.order_running,
        "bars": [
            *bars(runs, "seconds", plain, (drafts, *others)),
            *bars(runs, "first_group", plain, (drafts, *others)),
            *bars(runs, "seconds", drafts, others[-1:]),
        ],
        "runs": [{side: one.as_dict() for side, one in run.items()} for run in runs],
    }


def searches(groups: int, samples: int, length: int) -> Iterator[list[Int32s]]:
    """The answers of each group: searches of the same puzzles, each with noise of its own."""
    task = Task(cap=length)
    for number in range(groups):
        rng = np.random.default_rng([7, number])
        texts: list[list[int]] = [[] for _ in range(samples)]
        while min(map(len, texts)) < length:
            puzzle = draw_puzzle(task, rng)
            for text in texts:
                text += search_trace(puzzle, task, rng)
        yield [np.array(text[:length], np.int32) for text in texts]


def recorded(file: Path, groups: int, samples: int, length: int) -> Iterator[list[Int32s]]:
    """The answers of each group: recorded answers to some prompts, drawn anew for each group, one
    behind the other; where a sample is used again, a token of it is changed here and there, since a
    text that is there twice would take less."""
    of: dict[str, list[Int32s]] = {}
    for trace in read_traces(file):
        of.setdefault(trace.group, []).append(trace.output)
    full = [outputs for outputs in of.values() if len(outputs) >= samples]
    largest = max(int(output.max()) for outputs in full for output in outputs)
    for number in range(groups):
        rng = np.random.default_rng([8, number])
        texts: list[list[Int32s]] = [[] for _ in range(samples)]
        while min(sum(map(len, text)) for text in texts) < length:
            drawn = full[int(rng.integers(len(full)))]
            for text, at in zip(texts, rng.permutation(len(drawn)), strict=False):
                text.append(drawn[int(at)])
        joined = [np.concatenate(text)[:length].astype(np.int32) for text in texts]
        for answer in joined:
            places = rng.random(length) < 1 / 32
            answer[places] = rng.integers(largest, size=int(places.sum()), dtype=np.int32)
        yield joined


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Without a model: what the drafter of `Rollouts` holds while all answers grow."""
    size = options.memory_groups, options.samples, options.length
    groups, samples, length = size
    made = recorded(options.traces, *size) if options.traces else searches(*size)
    texts = np.stack([text for answers in made for text in answers])
    before, drafter = resident()[0], rollout_drafter(HISTORY)
    prompt, names = np.arange(32, dtype=np.int32), [f"rollout {number}" for number in range(groups)]
    states = [
        drafter.begin(prompt + number % 128, group=names[number // samples])
        for number in range(groups * samples)
    ]
    most = most_resident = 0
    timer = workers.Timer()
    for at in range(0, length, options.stride):
        new = np.ascontiguousarray(texts[:, at : at + options.stride])
        ends = np.arange(len(new) + 1, dtype=np.int32)
        verdicts = VerdictBatch(new.ravel(), ends * new.shape[1], [], 0 * ends)
        drafter.step(states, verdicts, [BUDGET] * len(states))
        if at // options.stride % 16 == 0 or at + options.stride >= length:
            most = max(most, drafter.bytes_used())
            most_resident = max(most_resident, resident()[0])
    grown, spent = drafter.bytes_used(), timer.read()["seconds"]
    for state in states:
        drafter.finish(state)
        most = max(most, drafter.bytes_used())
    most_resident = max(most_resident, resident()[0])
    ended = drafter.bytes_used()
    for name in names:
        drafter.drop_group(name)
    dropped = drafter.bytes_used()
    del states
    return {
        "text": options.traces.name if options.traces else "countdown-trace",
        "requests": groups * samples,
        "tokens_each": length,
        "history_bytes": HISTORY,
        "most_bytes": most,
        "bytes_all_grown": grown,
        "bytes_per_token": round(grown / texts.size, 2),
        "bytes_all_ended": ended,
        "bytes_groups_dropped": dropped,
        "resident_before": before,
        "resident_most": most_resident,
        "resident_after": resident()[0],
        "microseconds_per_token": round(1e6 * spent / texts.size, 3),
    }


def show(figures: dict[str, Any]) -> None:
    for name, part in figures["parts"].items():
        print(name)
        harness.print_bars(part.get("bars", ()))
        for key, value in part.items() if name == "memory" else ():
            print(f"  {key:<28}{value}")
        of = harness.medians(part.get("runs", ()), lambda one: one["tokens_per_second"])
        for side, rate in of.items():
            print(f"  {side:<32}{rate:8.1f} tokens/s")


def main() -> None:
    parser = harness.parser(__doc__, parts=PARTS)
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='JSON lines with "question"')
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtypes", default="auto,bfloat16,float32", help="of `group`")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--groups", type=int, default=12, help="prompts of `group`")
    parser.add_argument("--samples", type=int, default=8, help="of a prompt: `group`, `memory`")
    parser.add_argument("--order-prompts", type=int, default=16)
    parser.add_argument("--order-samples", type=int, default=4)
    parser.add_argument("--order-running", type=int, default=16, help="answers that run at once")
    parser.add_argument("--rounds", type=int, default=2, help="of `order`")
    parser.add_argument("--memory-groups", type=int, default=128)
    parser.add_argument("--length", type=int, default=8192, help="of an answer in `memory`")
    parser.add_argument("--stride", type=int, default=4, help="tokens in a step of `memory`")
    parser.add_argument("--traces", type=Path, help="recorded answers, for `memory`")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as it comes")
    options = harness.parse(parser)
    dtypes = options.dtypes.split(",")
    if unknown := set(dtypes) - set(get_args(Dtype)):
        parser.error(
            f"there is no dtype {unknown.pop()!r}; choose from {', '.join(get_args(Dtype))}"
        )
    if options.prompts is None and set(options.chosen) != {"memory"}:
        parser.error("--prompts is missing")
    if options.threads:
        torch.set_num_threads(options.threads)
    compared = Compared()
    parts: dict[str, Any] = {}
    for dtype in dtypes if "group" in options.chosen else ():
        parts[f"group, {dtype}"] = group(Model(options, dtype), options, compared)
    if "order" in options.chosen:
        parts["order"] = order(Model(options, dtypes[0]), options, compared)
    if "memory" in options.chosen:
        parts["memory"] = memory(options)
    figures = {
        "model": Path(options.model).name,
        "max_tokens": options.tokens,
        "temperature": 0.8,
        "torch_threads": torch.get_num_threads(),
        "identical": not compared.differences,
        "differences": compared.differences,
        "largest_logprob_difference": compared.logprob,
        "parts": parts,
    }
    failed = "tokens differ with and without drafts" if compared.differences else ""
    harness.finish("rollouts", figures, options, show, failed)


if __name__ == "__main__":
    main()
