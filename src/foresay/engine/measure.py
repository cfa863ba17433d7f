"""How long steps take here with this model: a few timed ones before the first answer."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from foresay._core import Kv
from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.engine.cost import Sample, StepCost
from foresay.models.target import Target

__all__ = ["measured_cost"]

_ROWS = (1, 2, 4, 8, 16, 24, 32, 64)
_CONTEXTS = (64, 512)
_ROUNDS = 3
_ENOUGH = 2.0  # seconds: a large model is measured with fewer steps, and learns while it writes


def measured_cost(target: Target) -> StepCost:
    """The cost of steps, fitted to timed ones.

    Mutates: nothing. Valid until: it is told of steps. Raises: nothing. GIL: released by torch.
    """
    samples: list[Sample] = []
    begin = perf_counter()
    texts = {size: _text(target, size) for size in _CONTEXTS if size + max(_ROWS) < target.context}
    for round_ in range(_ROUNDS + 1):
        for size, (kv, last) in texts.items():
            for rows in _ROWS if size == _CONTEXTS[0] else (1, 8, 32):
                guesses = Draft.chain(np.zeros(rows - 1, np.int32))
                start = perf_counter()
                target.forward([target.part(kv, last, guesses)])
                took = perf_counter() - start
                if round_:  # the first round is for warming up
                    samples.append(Sample(rows, rows * size + rows * (rows + 1) // 2, took))
        if samples and perf_counter() - begin > _ENOUGH:
            break
    return StepCost.measured(samples) if samples else StepCost()


def _text(target: Target, size: int) -> tuple[Kv, Int32s]:
    """A stored text, and its last token, which is not."""
    kv = target.open()
    tokens = (np.arange(size + 1) % min(target.vocabulary, 1000)).astype(np.int32)
    part = target.part(kv, tokens[:-1], wanted=False)
    target.forward([part])
    part.keep()
    return kv, tokens[-1:]
