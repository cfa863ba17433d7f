"""How long steps take here with this model: a few timed ones before the first answer."""

from __future__ import annotations

import os
from time import perf_counter
from typing import NamedTuple

import numpy as np

from foresay.budget.cost import Sample, StepCost
from foresay.draft import Draft
from foresay.engine.remembered import Memory
from foresay.models.progress import Progress, silent
from foresay.models.target import Part, Target, TextKv

__all__ = ["measured_cost"]

_ROUNDS = 4
_ENOUGH = 2.0  # seconds: a large model is timed with fewer steps; the rest is learned later
_LEAST = 8  # steps that are timed even if they take longer
_NOTICED = 0.1  # seconds: of a shorter step, warming up is a large part
_CALM = 1.2  # how much longer than the shortest a step may usually take
_REPEATED = 4  # kinds of steps that must have been timed twice before that can be told


class _Kind(NamedTuple):
    """A step of some requests, each with a text of `context` tokens and `rows` rows."""

    context: int
    requests: int
    rows: int

    def sample(self, seconds: float) -> Sample:
        rows = self.requests * self.rows
        own = self.rows * (self.rows + 1) // 2
        reads = self.requests * (self.rows * self.context + own)
        return Sample(rows, reads, seconds, self.requests * self.context, self.requests)


# Around the edges of tiles, alone and together; longer texts show what attention takes. The most
# informative come first, since there may be no time for the others.
_KINDS = (
    *(_Kind(context, 1, rows) for context in (64, 512) for rows in (1, 8)),
    *(_Kind(64, 1, 32), _Kind(64, 8, 1), _Kind(64, 8, 4)),
    *(_Kind(64, 1, rows) for rows in (16, 9, 4, 2, 17)),
    *(_Kind(512, 8, 1), _Kind(64, 8, 2), _Kind(64, 1, 64)),
    *(_Kind(64, 1, rows) for rows in (24, 12, 33, 5)),
    *(_Kind(512, 8, 2), _Kind(64, 8, 3), _Kind(64, 8, 6), _Kind(512, 1, 32), _Kind(512, 8, 4)),
)


def measured_cost(
    target: Target, progress: Progress = silent, *, remember: bool | None = None
) -> StepCost:
    """The cost of steps, fitted to timed ones; to those of an earlier start, where the target has
    an `identity`: a text that names its weights and all that its steps' times depend on.

    remember  whether to use and keep such files; None: unless FORESAY_REMEMBER is 0

    The times are kept in the cache. Raises: what `progress` raises.
    """
    if remember is None:
        remember = os.environ.get("FORESAY_REMEMBER") != "0"
    identity: str | None = getattr(target, "identity", None)
    if identity is None or not remember:
        return _fitted(_samples(target, progress))
    memory = Memory(identity, getattr(target, "threads", 0))
    samples = memory.read()
    if samples is None:
        samples = _samples(target, progress)
        if _are_calm(samples):
            memory.write(samples)
    return _fitted(samples)


def _fitted(samples: list[Sample]) -> StepCost:
    return StepCost.measured(samples) if samples else StepCost()


def _are_calm(samples: list[Sample]) -> bool:
    """Whether equal steps took about the same time, and enough were repeated to tell. Times that
    were taken beside other work are good enough to begin with, since the cost learns from every
    step, but not to be kept.
    """
    kinds: dict[tuple[int, ...], list[float]] = {}
    for rows, reads, seconds, keys, requests in samples:
        kinds.setdefault((rows, reads, keys, requests), []).append(seconds)
    repeated = [times for times in kinds.values() if len(times) > 1]
    spreads = [float(np.median(times)) / min(times) for times in repeated]
    return len(spreads) >= _REPEATED and float(np.median(spreads)) < _CALM


def _samples(target: Target, progress: Progress) -> list[Sample]:
    kinds = [kind for kind in _KINDS if kind.context + kind.rows < target.context]
    texts = {size: _texts(target, size) for size in {kind.context for kind in kinds}}
    samples: list[Sample] = []
    begin = perf_counter()
    for round_ in range(_ROUNDS):
        for kind in kinds:
            progress("measure", len(samples), _ROUNDS * len(kinds))
            took = _timed(target, kind, texts[kind.context])
            if not round_ and took < _NOTICED:
                took = _timed(target, kind, texts[kind.context])
            samples.append(kind.sample(took))
            if len(samples) >= _LEAST and perf_counter() - begin > _ENOUGH:
                return samples
    return samples


def _timed(target: Target, kind: _Kind, kvs: list[TextKv]) -> float:
    last, draft = np.zeros(1, np.int32), Draft.chain(np.zeros(kind.rows - 1, np.int32))
    start = perf_counter()
    target.forward([Part.of(target, kv, last, draft) for kv in kvs[: kind.requests]])
    return perf_counter() - start


def _texts(target: Target, size: int) -> list[TextKv]:
    """A text of so many stored tokens, as often as one step may need it. What is stored is made up:
    attention takes as long, and a real prefill would take longer than all that is timed.
    """
    first = target.open_filled(size)
    others = [target.open() for _ in range(max(kind.requests for kind in _KINDS) - 1)]
    for other in others:
        other.copy_from(first, size)
    return [first, *others]
