"""A step-cost table of our own engine, measured: whole steps, with all that a step does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.bench.step_costs import CostPoint, StepTable
from foresay.budget.policy import make_policy
from foresay.draft import Draft
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.progress import Progress, silent
from foresay.models.target import Target
from foresay.sampling.params import SamplingParams
from foresay.verdict import Verdict, Wants

__all__ = ["BATCHES", "CONTEXTS", "NODES", "measure_table"]

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (64, 512)
NODES = (0, 1, 3, 7, 15)
_PREFILL = (16, 64, 256, 512)
_REPEATS = 5


class _Guesses:
    """A drafter that takes no time and is almost never right: as many random tokens as allowed."""

    wants = Wants()

    def __init__(self, vocabulary: int) -> None:
        self._random = np.random.default_rng(0)
        self._vocabulary = vocabulary

    def begin(self, prompt: Int32s, /, **about: Any) -> object:
        return object()

    def propose(self, states: Sequence[object], budgets: Sequence[int], /) -> list[Draft]:
        return [
            Draft.chain(self._random.integers(self._vocabulary, size=n).astype(np.int32))
            for n in budgets
        ]

    def observe(self, states: Sequence[object], verdicts: Sequence[Verdict], /) -> None:
        """Nothing is learned."""

    def finish(self, state: object, /) -> None:
        """Nothing is kept."""


def measure_table(
    target: Target,
    name: str,
    about: str,
    *,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    nodes: Sequence[int] = NODES,
    repeats: int = _REPEATS,
    progress: Progress = silent,
) -> StepTable:
    """Time steps of an engine with this model: `batches` requests at once, with texts of
    `contexts` tokens and `nodes` drafted tokens each. Every time is a median of `repeats` steps.

    Raises: InputError for contexts that the model does not take.
    """
    most = max(contexts) + 2 * (repeats + 1) * (len(nodes) + 1) + max(nodes)
    if most >= target.context:
        raise InputError(f"the model takes texts of {target.context} tokens; expected over {most}")
    random = np.random.default_rng(1)
    done, total = 0, len(batches) * len(contexts) * len(nodes)
    points = []
    for context in contexts:
        for batch in batches:
            engine = _decoding(target, batch, context, random)
            for count in nodes:
                progress("measure", done, total)
                points.append(_timed(engine, batch, count, repeats))
                done += 1
            engine.cancel(*engine.scheduler.running)
    progress("measure", total, total)
    return StepTable(
        name,
        about,
        "Measured on this machine: whole steps of foresay's own engine, with scheduling, sampling "
        f"and log probabilities; medians of {repeats}.",
        tuple(points),
        tuple(_prefilled(target, rows, random) for rows in _PREFILL if rows + 2 < target.context),
        _drafting(),
    )


def _decoding(target: Target, batch: int, context: int, random: np.random.Generator) -> Engine:
    """An engine in which `batch` requests decode. They have one prompt, which is computed once."""
    engine = Engine(
        target,
        _Guesses(target.vocabulary),
        policy="none",
        max_running=batch,
        max_rows=max(512, batch + 1),
        memory=2 * batch * (target.context + 256) * target.bytes_per_token,
    )
    prompt = random.integers(target.vocabulary, size=context).astype(np.int32)
    params = SamplingParams(max_tokens=target.context - context, logprobs=0, ignore_eos=True)
    for seed in range(batch):
        engine.add(prompt, params, seed=seed)
    while engine.scheduler.waiting or any(not r.stats.tokens for r in engine.scheduler.running):
        engine.step()
    return engine


def _timed(engine: Engine, batch: int, count: int, repeats: int) -> CostPoint:
    engine.policy = make_policy("fixed", k=count) if count else make_policy("none")
    contexts, times = [], []
    for turn in range(repeats + 1):
        context = sum(len(request) for request in engine.scheduler.running) / batch
        begin = perf_counter()
        engine.step()
        if turn:  # the first of a kind may allocate
            times.append(perf_counter() - begin)
            contexts.append(context)
    return CostPoint(batch, batch * (1 + count), round(median(contexts), 1), median(times))


def _prefilled(target: Target, rows: int, random: np.random.Generator) -> tuple[int, float]:
    times = []
    for _ in range(3):
        engine = Engine(target, None, max_rows=rows, memory=(rows + 512) * target.bytes_per_token)
        prompt = random.integers(target.vocabulary, size=rows + 1).astype(np.int32)
        request = engine.add(prompt, SamplingParams(max_tokens=1))
        begin = perf_counter()
        engine.step()
        times.append(perf_counter() - begin)
        engine.cancel(request)
    return rows, median(times)


def _drafting() -> float:
    """Seconds that the suffix drafter takes for one of 32 requests of 512 tokens, and to learn."""
    random = np.random.default_rng(2)
    drafter = SuffixDrafter()
    words = random.integers(1000, size=(40, 4)).astype(np.int32)
    states = [
        drafter.begin(words[random.integers(40, size=128)].reshape(-1), group=f"{at // 8}")
        for at in range(32)
    ]
    times = []
    for _ in range(20):
        begin = perf_counter()
        drafter.propose(states, [8] * len(states))
        drafter.observe(states, [Verdict([], words[w][:1]) for w in random.integers(40, size=32)])
        times.append((perf_counter() - begin) / len(states))
    return median(times)
