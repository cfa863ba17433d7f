"""How long steps take here with this model: a few timed ones before the first answer."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np

from foresay.budget.cost import Sample, StepCost
from foresay.draft import Draft
from foresay.models.progress import Progress, silent
from foresay.models.target import Part, Target, TextKv

__all__ = ["measured_cost"]

_ROUNDS = 4
_ENOUGH = 2.0  # seconds: a large model is timed with fewer steps; the rest is learned later
_LEAST = 8  # steps that are timed even if they take longer
_NOTICED = 0.1  # seconds: of a shorter step, warming up is a large part


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
    *(_Kind(64, 1, rows) for rows in (16, 4, 2, 17)),
    *(_Kind(512, 8, 1), _Kind(64, 8, 2), _Kind(64, 1, 64)),
    *(_Kind(64, 1, rows) for rows in (24, 33)),
    *(_Kind(512, 8, 2), _Kind(64, 8, 3), _Kind(64, 8, 6), _Kind(512, 1, 32), _Kind(512, 8, 4)),
)


def measured_cost(target: Target, progress: Progress = silent) -> StepCost:
    """The cost of steps, fitted to timed ones.

    Raises: what `progress` raises.
    """
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
                return StepCost.measured(samples)
    return StepCost.measured(samples) if samples else StepCost()


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
