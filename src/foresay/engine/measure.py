"""How long steps take here with this model: a few timed ones before the first answer."""

from __future__ import annotations

from time import perf_counter
from typing import NamedTuple

import numpy as np

from foresay._core import Kv
from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.engine.cost import Sample, StepCost
from foresay.models.target import Target

__all__ = ["measured_cost"]

_ROUNDS = 3
_ENOUGH = 2.0  # seconds: a large model is measured with fewer steps, and learns while it writes


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


# Around the edges of tiles, alone and together; longer texts show what reading takes.
_KINDS = (
    *(_Kind(64, 1, rows) for rows in (1, 2, 4, 8, 16, 17, 24, 32, 33, 64)),
    *(_Kind(64, 8, rows) for rows in (1, 2, 3, 4, 6)),
    *(_Kind(512, 1, rows) for rows in (1, 8, 32)),
    *(_Kind(512, 8, rows) for rows in (1, 2, 4)),
)


def measured_cost(target: Target) -> StepCost:
    """The cost of steps, fitted to timed ones.

    Mutates: nothing. Valid until: it is told of steps. Raises: nothing. GIL: released by torch.
    """
    samples: list[Sample] = []
    begin = perf_counter()
    kinds = [kind for kind in _KINDS if kind.context + kind.rows < target.context]
    texts = {size: _texts(target, size) for size in {kind.context for kind in kinds}}
    for round_ in range(_ROUNDS + 1):
        for kind in kinds:
            kvs, last = texts[kind.context]
            guesses = Draft.chain(np.zeros(kind.rows - 1, np.int32))
            start = perf_counter()
            target.forward([target.part(kv, last, guesses) for kv in kvs[: kind.requests]])
            took = perf_counter() - start
            if round_:  # the first round is for warming up
                samples.append(kind.sample(took))
        if samples and perf_counter() - begin > _ENOUGH:
            break
    return StepCost.measured(samples) if samples else StepCost()


def _texts(target: Target, size: int) -> tuple[list[Kv], Int32s]:
    """A stored text, as often as one step may need it, and its last token, which is not stored."""
    first, *others = kvs = [target.open() for _ in range(max(kind.requests for kind in _KINDS))]
    tokens = (np.arange(size + 1) % min(target.vocabulary, 1000)).astype(np.int32)
    part = target.part(first, tokens[:-1], wanted=False)
    target.forward([part])
    part.keep()
    for other in others:
        other.copy_from(first, size)
    return kvs, tokens[-1:]
