"""How long steps take here with this model: a few timed ones before the first answer."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from foresay.budget.cost import Sample, StepCost
from foresay.draft import Draft
from foresay.engine.pages import PAGE
from foresay.machine import seconds_kept_waiting
from foresay.models.progress import Progress, silent
from foresay.models.remembered import Memory, is_remembering
from foresay.models.target import FillsUp, SequenceInput, Target, TextKv

__all__ = ["measured_cost"]

_ROUNDS = 4
_ENOUGH = 2.0  # seconds: a large model is timed with fewer steps; the rest is learned later
_FIRST = 6  # kinds of steps that are timed before any is timed again
_REPEATED = 4  # of these, so that it can be told whether equal steps take the same time
_LEAST = _FIRST + _REPEATED  # steps that are timed even if they take longer: few enough to wait for
_NOTICED = 0.1  # seconds: of a shorter step, warming up is a large part
_WAITED = 0.1  # of the time: so long may threads have waited for a processor
_CALM = 1.2  # how much longer than the shortest a step may usually take
_EDGES = 400  # rows: what more of them take is learned later
_MOST = 200  # remembered samples: some 100 are written
_SHORTEST, _LONGEST = 1e-7, 1e4  # seconds of a remembered step


class _Kind(NamedTuple):
    """A step of some requests, each with a text of `context` tokens and `rows` rows."""

    context: int
    requests: int
    rows: int

    @property
    def takes(self) -> int:
        """Tokens of memory: the texts share what is stored, and pages are filled up."""
        return self.context + self.requests * (self.rows + 2 * PAGE)

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

# Of many requests: only where steps are filled up, and many requests are what they are for.
_MANY = (
    *(_Kind(64, 64, 1), _Kind(64, 64, 2), _Kind(512, 64, 1), _Kind(64, 128, 1), _Kind(64, 256, 1)),
)


def measured_cost(
    target: Target,
    progress: Progress = silent,
    *,
    tokens: int = 1 << 30,
    remember: bool | None = None,
) -> StepCost:
    """The cost of steps, fitted to timed ones; to those of an earlier start, where the target has
    an `identity`: a text that names its weights and all that its steps' times depend on.

    tokens    that there is memory for
    remember  whether to use and keep such files; None: unless FORESAY_REMEMBER is 0

    The times are kept in the cache. Raises: what `progress` raises.
    """
    if remember is None:
        remember = is_remembering()
    identity = target.identity
    if identity is None or not remember:
        return _fitted(_samples(target, progress, tokens))
    memory = Memory("steps", identity, target.threads)
    samples = remembered_samples(memory.read())
    if samples is None:
        begin, waited = perf_counter(), seconds_kept_waiting()
        samples = _samples(target, progress, tokens)
        waited, took = seconds_kept_waiting() - waited, perf_counter() - begin
        if _are_calm(samples) and waited < _WAITED * took:
            memory.write(samples)
    return _fitted(samples)


def remembered_samples(value: Any) -> list[Sample] | None:
    """The samples as they were written; None for anything else."""
    if not isinstance(value, list) or not 0 < len(value) <= _MOST:
        return None
    samples = [_sample(one) for one in value]
    return None if None in samples else [one for one in samples if one is not None]


def _sample(given: Any) -> Sample | None:
    if not isinstance(given, list) or len(given) != len(Sample._fields):
        return None
    sample = Sample(*given)
    counts = (sample.rows, sample.reads, sample.keys, sample.requests)
    if not all(type(count) is int and 0 <= count < 1 << 40 for count in counts):
        return None
    if type(sample.seconds) is not float or not isfinite(sample.seconds):
        return None
    fits = sample.rows and sample.requests and _SHORTEST < sample.seconds < _LONGEST
    return sample if fits else None


def _fitted(samples: list[Sample]) -> StepCost:
    return StepCost.measured(samples) if samples else StepCost()


def _are_calm(samples: list[Sample]) -> bool:
    """Whether equal steps took about the same time, and enough were repeated to tell. Times that
    were taken beside other work are good enough to begin with, since the cost learns from every
    step, but not to be kept. Work that goes on all the time shows in how long threads waited.
    """
    kinds: dict[tuple[int, ...], list[float]] = {}
    for rows, reads, seconds, keys, requests in samples:
        kinds.setdefault((rows, reads, keys, requests), []).append(seconds)
    repeated = [times for times in kinds.values() if len(times) > 1]
    spreads = [float(np.median(times)) / min(times) for times in repeated]
    return len(spreads) >= _REPEATED and float(np.median(spreads)) < _CALM


def _samples(target: Target, progress: Progress, tokens: int) -> list[Sample]:
    known = _known(target, tokens)
    kinds = [kind for kind in known if kind.context + kind.rows < target.context]
    texts = {
        size: _texts(target, size, max(kind.requests for kind in kinds if kind.context == size))
        for size in {kind.context for kind in kinds}
    }
    samples: list[Sample] = []
    begin = perf_counter()
    # Some are timed twice early on, so that also a large model's times can be told to be calm.
    turns = [*kinds[:_FIRST], *kinds[:_REPEATED], *kinds[_FIRST:], *kinds * (_ROUNDS - 1)]
    warm: set[_Kind] = set()
    for kind in turns:
        progress("measure", len(samples), len(turns))
        took = _timed(target, kind, texts[kind.context])
        if kind not in warm and took < _NOTICED:
            took = _timed(target, kind, texts[kind.context])
        warm.add(kind)
        samples.append(kind.sample(took))
        if len(samples) >= _LEAST and perf_counter() - begin > _ENOUGH:
            break
    return samples


def _timed(target: Target, kind: _Kind, kvs: list[TextKv]) -> float:
    """Seconds of a step; on a GPU of the second one: the first of a kind may be prepared there."""
    last, draft = np.zeros(1, np.int32), Draft.chain(np.zeros(kind.rows - 1, np.int32))
    prepared = False
    while True:
        start = perf_counter()
        parts = [SequenceInput.of(target, kv, last, draft) for kv in kvs[: kind.requests]]
        outputs = target.forward(parts).wait()
        took = perf_counter() - start
        if prepared or not outputs.on_gpu:
            return took
        prepared = True


def _known(target: Target, tokens: int) -> Sequence[_Kind]:
    """The kinds of steps that are timed."""
    if not isinstance(target, FillsUp):
        return _KINDS
    edges = [rows for size in target.row_sizes for rows in (size, size + 1) if rows <= _EDGES]
    kinds = dict.fromkeys([*_KINDS, *(_Kind(64, 1, rows) for rows in edges), *_MANY])
    return [kind for kind in kinds if kind.takes <= tokens]  # its memory is of one size


def _texts(target: Target, size: int, count: int = 8) -> list[TextKv]:
    """A text of `size` stored tokens, as often as one step needs it. What is stored is made up:
    attention takes as long, and a real prefill would take longer than all that is timed.
    """
    first = target.open_filled(size)
    others = [target.open() for _ in range(count - 1)]
    for other in others:
        other.copy_from(first, size)
    return [first, *others]
