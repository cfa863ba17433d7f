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

Ways take turns, and who begins changes. The tokens of all ways are compared, and one difference
makes the script fail; of log probabilities the largest difference is recorded.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

import record
from foresay import LLM, SamplingParams
from foresay.arrays import Int32s
from foresay.budget.policy import make_policy
from foresay.counts import tokens_per_step
from foresay.engine.measure import measured_cost
from foresay.models.options import Dtype
from foresay.models.weights import DEFAULT_MODEL
from foresay.rl import Rollout, Rollouts
from foresay.rl.rollouts import Order
from foresay.traces import read_records
from ratios import geometric, take_turns
from rollouts_memory import SIZES, memory

PARTS = ("group", "order", "memory")
NONE, KEPT, NEW = "no drafts", "drafts", "drafts, nothing seen before"
WAYS: dict[str, tuple[str | None, Order]] = {
    "no drafts, prompt": (None, "prompt"),
    "drafts, prompt": ("suffix", "prompt"),
    "no drafts, stagger": (None, "stagger"),
    "drafts, stagger": ("suffix", "stagger"),
}


class Model:
    """One model in memory, and as many `Rollouts` over it as are wanted."""

    def __init__(self, model: str, dtype: Dtype, tokens: int) -> None:
        self.llm = LLM(model, None, "none", dtype=dtype, memory=16 << 20)
        self.params = SamplingParams(temperature=0.8, max_tokens=tokens)
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

    def prompts(self, file: Path, count: int) -> list[Int32s]:
        asked = [str(row["question"]) for _, row in read_records(file)][:count]
        if len(asked) < count:
            raise SystemExit(f"{file} has {len(asked)} questions; expected {count}")
        return [self.llm.encode(question, chat=True) for question in asked]


class Sampled(NamedTuple):
    """A rollout, and what it took."""

    seconds: float
    first_group: float
    passes: int
    texts: list[list[Rollout]]

    @property
    def tokens(self) -> int:
        return sum(len(one.token_ids) for group in self.texts for one in group)

    @property
    def steps(self) -> int:
        """Passes that each answer was in, summed."""
        return sum(one.stats.steps for group in self.texts for one in group)

    def same(self, other: Sampled) -> bool:
        """Whether all tokens are."""
        return all(a.token_ids == b.token_ids for a, b in self._pairs(other))

    def logprob_difference(self, other: Sampled) -> float:
        """The largest, of texts that are the same."""
        return max(
            float(np.abs(getattr(a, name) - getattr(b, name)).max(initial=0.0))
            for a, b in self._pairs(other)
            for name in ("logprobs", "raw_logprobs")
        )

    def _pairs(self, other: Sampled) -> list[tuple[Rollout, Rollout]]:
        return [
            pair
            for one, two in zip(self.texts, other.texts, strict=True)
            for pair in zip(one, two, strict=True)
        ]

    def as_dict(self) -> dict[str, Any]:
        stats = [one.stats for group in self.texts for one in group]
        return {
            "seconds": round(self.seconds, 4),
            "first_group_seconds": round(self.first_group, 4),
            "passes": self.passes,
            "tokens": self.tokens,
            "steps": self.steps,
            "tokens_per_step": round(tokens_per_step(self.tokens, self.steps), 3),
            "drafted": sum(s.drafted for s in stats),
            "accepted": sum(s.accepted for s in stats),
        }


def sampled(
    model: Model, make: Callable[[], Rollouts], prompts: Sequence[Int32s], samples: int, seed: int
) -> Sampled:
    """One rollout, timed from the tokens of the prompts to the last token of the last answer."""
    rollouts = make()
    scheduler, first = rollouts.engine.scheduler, list[float]()

    def watch(_: int) -> None:
        groups = {request.group for request in (*scheduler.running, *scheduler.waiting)}
        if not first and len(groups) < len(prompts):
            first.append(time.perf_counter())

    ends = model.llm.tokenizer.ends
    begin = time.perf_counter()
    texts = rollouts.sample(
        prompts, model.params, samples=samples, seed=seed, stops=ends, progress=watch
    )
    seconds = time.perf_counter() - begin
    return Sampled(seconds, first[0] - begin, len(rollouts.steps), texts)


class Compared:
    """What drafts changed: no token may differ; of log probabilities the largest difference."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.logprob = 0.0

    def note(self, what: str, run: dict[str, Sampled]) -> None:
        name, *others = run
        for other in others:
            if run[name].same(run[other]):
                self.logprob = max(self.logprob, run[name].logprob_difference(run[other]))
            else:
                self.differences.append(f"{what}: {other} and {name}")


def summed(runs: Sequence[dict[str, Sampled]], way: str) -> dict[str, float]:
    """Of all runs of one way."""
    each = [run[way] for run in runs]
    tokens, seconds = sum(one.tokens for one in each), sum(one.seconds for one in each)
    return {
        "seconds": round(seconds, 3),
        "first_group_seconds": round(sum(one.first_group for one in each), 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "passes": sum(one.passes for one in each),
        "tokens_per_step": round(tokens_per_step(tokens, sum(one.steps for one in each)), 3),
    }


def ratio(
    runs: Sequence[dict[str, Sampled]], way: str, field: str = "seconds", than: str = NONE
) -> dict[str, float]:
    """How many times less of `field` a way takes: geometric mean, least and most over the runs."""
    values = [getattr(run[than], field) / getattr(run[way], field) for run in runs]
    found = {"times": geometric(values), "least": min(values), "most": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def group(model: Model, options: argparse.Namespace, compared: Compared) -> dict[str, Any]:
    runs = []
    none, kept = model.rollouts(None), model.rollouts("suffix")
    for turn, prompt in enumerate(model.prompts(options.prompts, options.groups)):
        makers: dict[str, Callable[[], Rollouts]] = {
            NONE: lambda: none,
            KEPT: lambda: kept,
            NEW: partial(model.rollouts, "suffix"),
        }
        run = take_turns(
            {
                name: partial(sampled, model, make, [prompt], options.samples, turn)
                for name, make in makers.items()
            },
            turn,
        )
        compared.note(f"group, {model.llm.target.dtype}, prompt {turn + 1}", run)
        runs.append(run)
        say(
            f"group, prompt {turn + 1}: {run[NONE].seconds:.2f} s without drafts, "
            + ", ".join(f"{run[NONE].seconds / run[way].seconds:.2f}x" for way in (KEPT, NEW))
        )
    half = len(runs) // 2
    return {
        "samples": options.samples,
        "ratios": {way: ratio(runs, way) for way in (KEPT, NEW)},
        "fewer_passes": {way: ratio(runs, way, "passes") for way in (KEPT, NEW)},
        "halves": {
            way: [ratio(some, way)["times"] for some in (runs[:half], runs[half:]) if some]
            for way in (KEPT, NEW)
        },
        "ways": {way: summed(runs, way) for way in runs[0]},
        "runs": [{way: run[way].as_dict() for way in run} for run in runs],
    }


def order(model: Model, options: argparse.Namespace, compared: Compared) -> dict[str, Any]:
    """Each rollout has an engine of its own, so that none has seen the prompts."""
    prompts, runs = model.prompts(options.prompts, options.order_prompts), []
    for turn in range(options.rounds):
        run = take_turns(
            {
                name: partial(
                    sampled,
                    model,
                    partial(model.rollouts, drafter, begins, options.order_running),
                    prompts,
                    options.order_samples,
                    turn,
                )
                for name, (drafter, begins) in WAYS.items()
            },
            turn,
        )
        compared.note(f"order, round {turn + 1}", run)
        runs.append(run)
        times = ", ".join(f"{way} {one.seconds:.1f} s" for way, one in run.items())
        say(f"order, round {turn + 1}: {times}")
    plain, *_ = WAYS
    drafts = [way for way, (drafter, _) in WAYS.items() if drafter]
    return {
        "prompts": len(prompts),
        "samples": options.order_samples,
        "max_running": options.order_running,
        "ratios": {way: ratio(runs, way, than=plain) for way in WAYS if way != plain},
        "first_group_ratios": {
            way: ratio(runs, way, "first_group", plain) for way in WAYS if way != plain
        },
        "stagger_against_prompt": ratio(runs, drafts[1], than=drafts[0]),
        "ways": {way: summed(runs, way) for way in WAYS},
        "runs": [{way: run[way].as_dict() for way in run} for run in runs],
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(found: dict[str, Any]) -> None:
    """The tables."""
    for name, part in found.items():
        if name == "memory":
            print(f"memory, {part['text']}: {part['requests']} x {part['tokens_each']} tokens")
            for field, value in part.items():
                if field in SIZES:
                    print(f"  {field:<28}{value / 2**20:10.1f} MiB")
            print(f"  {'bytes_per_token':<28}{part['bytes_per_token']:10.1f}")
            continue
        print(name)
        for way, times in part["ratios"].items():
            print(
                f"  {way:<32}{times['times']:6.2f}x ({times['least']:.2f} to {times['most']:.2f})"
            )
        for way, one in part["ways"].items():
            print(
                f"  {way:<32}{one['tokens_per_second']:8.1f} tokens/s, {one['seconds']:.1f} s, "
                f"first groups {one['first_group_seconds']:.1f} s, "
                f"{one['tokens_per_step']:.2f} tokens per step"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompts", type=Path, metavar="FILE", help='JSON lines with "question"')
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
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
    parser.add_argument("--name", default="", help="added to the record's name")
    record.add_option(parser)
    options = parser.parse_args()
    chosen, dtypes = options.only.split(","), options.dtypes.split(",")
    for name in chosen:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose from {', '.join(PARTS)}")
    for name in dtypes:
        if name not in get_args(Dtype):
            parser.error(f"there is no dtype {name!r}; choose from {', '.join(get_args(Dtype))}")
    if options.prompts is None and set(chosen) != {"memory"}:
        parser.error("--prompts is missing")
    if options.threads:
        torch.set_num_threads(options.threads)
    compared = Compared()
    found: dict[str, Any] = {}
    if "group" in chosen:
        for dtype in dtypes:
            model = Model(options.model, dtype, options.tokens)
            found[f"group, {dtype}"] = group(model, options, compared)
    if "order" in chosen:
        model = Model(options.model, dtypes[0], options.tokens)
        found["order"] = order(model, options, compared)
    if "memory" in chosen:
        found["memory"] = memory(options)
    figures = {
        "model": Path(options.model).name,
        "max_tokens": options.tokens,
        "temperature": 0.8,
        "torch_threads": torch.get_num_threads(),
        "identical": not compared.differences,
        "differences": compared.differences,
        "largest_logprob_difference": compared.logprob,
        "parts": found,
    }
    # A part of the whole must not take the place of the day's record.
    some = "" if set(chosen) == set(PARTS) else "-" + "-".join(chosen)
    path = record.write(f"rollouts{some}{options.name}", figures, options.record)
    show(found)
    print(f"recorded in {path.name}")
    if compared.differences:
        sys.exit("tokens differ with and without drafts: see the record")


if __name__ == "__main__":
    main()
