"""How long a step takes: measured on the machine, kept current, never read from a clock here.

    seconds = level * (shape(rows) + per_read * reads + per_key * keys + per_request * requests)

`shape` is the cost by rows, a rising curve through knots. `reads` counts the tokens that the rows
attend to, summed over the rows; `keys` the tokens of the requests, each counted once: several rows
of a request share one pass over its keys. `level` is how slow the machine is right now: hosts have
phases of minutes in which everything takes 1.5 times as long, and single steps that take three
times as long. So the level is a median of the last steps, and the shape learns only from how a step
differs from its neighbours in time, with bounded influence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from math import exp, inf, isfinite, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.budget.load import Load
from foresay.draft import DraftBatch
from foresay.errors import InputError

__all__ = ["KNOTS", "Sample", "Selection", "StepCost", "isotonic", "seconds_lost"]

Number = float | NDArray[Any]

KNOTS = (
    *(1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128),
    *(192, 256, 384, 512, 768, 1024, 2048, 1 << 20),
)
"""Rows at which the shape is known. Kernels take 8 or 16 rows at once and read the weights again
for the next ones, so the costs may jump after 8, 16, 32 and 64."""

_LEVEL = 5  # steps whose median is the level
_AROUND = 9  # steps whose median is the level for the one in their middle
_MOST_SURPRISE = 0.2  # of one step, in logarithm
_KNOWN = 5.0  # steps' worth of experience, from which on a knot's steps count for the level
_LEAST_RATE = 0.05  # of learning, by a knot with much experience


class Sample(NamedTuple):
    """A timed step; `keys` of -1: all rows belong to one request."""

    rows: int
    reads: int
    seconds: float
    keys: int = -1
    requests: int = 1


class Selection(NamedTuple):
    """What verifying drafted nodes makes and takes; see csrc/budget/ranking.hpp."""

    order: NDArray[np.int64]
    """The nodes that can still be committed, by falling gain: chance times worth."""
    tokens: NDArray[np.float64]
    seconds: NDArray[np.float64]
    """[n]: of a step that verifies the first n of them."""
    best: int
    """The n with the most tokens per second."""
    most: int
    """The largest n that loses a bearable time against that."""


class StepCost:
    """The time of a step on this machine.

    Without measurements it begins with a cautious prior (9 rows cost twice as much as 1; a level
    that the first steps set) and learns from `observe`.
    """

    def __init__(self) -> None:
        self._set([float(k) for k in KNOTS], [1 + (k - 1) / 8 for k in KNOTS], [0.0] * len(KNOTS))
        self._extras = [5e-6, 2e-5, 0.02]  # per read, key and request
        self._fitted = False  # then the level says nothing before the first steps

    def _set(self, knots: list[float], shape: list[float], trust: list[float]) -> None:
        self._knots = knots
        self._shape = shape
        self._trust = trust  # how many steps' worth of experience each knot has
        self._arrays = np.array(knots), np.array(shape)  # the same, for many rows at once
        self._level = 1.0
        self._surprises = [(0.0, 0.0)] * len(knots)  # the last two at each knot
        self._usual = [0.0, 0.0, 0.0]  # share that each extra has of a step's time
        self._recent: deque[tuple[float, float, float, float, float]] = deque(maxlen=_AROUND)

    @classmethod
    def measured(cls, samples: Iterable[tuple[float, ...]]) -> StepCost:
        """Fitted to timed steps: `Sample`s, or tuples in their order.

        Repeat each kind of step a few times, one kind after the other, so that outliers and slow
        phases of the machine cannot hide behind a kind; include two lengths of context.

        Raises: InputError without samples, or for one with rows below 1 or seconds that are not
        positive.
        """
        groups: dict[tuple[float, ...], list[float]] = {}
        for given in samples:
            s = Sample(*given)  # type: ignore[arg-type]
            if not (s.rows >= 1 and isfinite(s.seconds) and s.seconds > 0):
                raise InputError(
                    f"a sample has {s.rows} rows and took {s.seconds} seconds; expected 1 or more "
                    "rows and more than 0 seconds"
                )
            keys = s.reads / s.rows if s.keys < 0 else s.keys
            kind = (float(s.rows), float(s.reads), float(keys), float(s.requests))
            groups.setdefault(kind, []).append(s.seconds)
        if not groups:
            raise InputError("there are no samples; expected at least 1 timed step")
        kinds = np.array(list(groups))
        times = np.array([float(np.median(times)) for times in groups.values()])
        self = cls()
        sampled, shape, self._extras = _fit(kinds, times)
        knots = sorted({float(k) for k in KNOTS} | set(sampled))
        trust = [20.0 if k in sampled else _KNOWN if k < sampled[-1] else 0.0 for k in knots]
        self._set(knots, _filled(knots, sampled, shape), trust)
        self._fitted = True
        return self

    @property
    def level(self) -> float:
        """How long steps take now, relative to when the shape was fitted."""
        return self._level

    def seconds(
        self, rows: Number, reads: Number, keys: Number = 0.0, requests: Number = 1.0
    ) -> NDArray[np.float64]:
        """The expected time of steps, elementwise.

        Valid until: for ever; the next `observe` may change what is expected.
        """
        shape: Any = np.interp(rows, *self._arrays)
        per_read, per_key, per_request = self._extras
        rest = (per_read * reads) + (per_key * keys + per_request * requests)
        total: NDArray[np.float64] = (shape + rest) * self._level
        return total

    def of(self, rows: float, reads: float, keys: float = 0.0, requests: float = 1.0) -> float:
        """`seconds` of one step, faster."""
        return self._level * sum(self._parts(rows, reads, keys, requests))

    def selection(
        self,
        drafts: DraftBatch,
        chances: NDArray[np.float64],
        worth: NDArray[np.float64],
        load: Load,
        *,
        seconds: float,
        bearable: float,
    ) -> Selection:
        """How many nodes of these drafts to verify, and which.

        chances   of each node
        worth     of a token, by request
        seconds   what the step takes besides
        bearable  the share of a plain step's time that verifying more than the best may lose
        """
        knots, shape = self._arrays
        per_read, per_key, per_request = self._extras
        return Selection._make(
            _core.selection(
                drafts.parents,
                drafts.offsets,
                chances,
                worth,
                load.tokens_left,
                load.contexts,
                knots=knots,
                shape=shape,
                extras=(per_read, per_key, per_request),
                level=self._level,
                other_rows=load.other_rows,
                other_reads=load.other_reads,
                tokens=load.worth,
                seconds=seconds,
                overlaps=load.probed,
                bearable=bearable,
            )
        )

    def observe(
        self, rows: int, reads: int, seconds: float, keys: int = 0, requests: int = 1
    ) -> None:
        """Learn from a step. A time that is not positive is ignored: clocks have faults."""
        if not (0 < seconds < inf and rows >= 1):
            return
        ratio = seconds / sum(self._parts(rows, reads, keys, requests))
        recent = self._recent
        step = (ratio, rows, reads, keys, requests)
        if (self._fitted or len(recent) > 2) and self._trust[self._nearest(rows)] < _KNOWN:
            # A long prefill, say: its time says more about its rows than about the machine.
            self._learn(step, self._level, fresh=True)
            return
        recent.append(step)
        ratios = [step[0] for step in recent]
        last = sorted(ratios[-_LEVEL:])
        self._level = last[len(last) // 2]
        if len(ratios) == _AROUND:
            ratios.sort()
            self._learn(recent[_AROUND // 2], ratios[_AROUND // 2], fresh=False)

    def _nearest(self, rows: float) -> int:
        knots = self._knots
        at = min(bisect_right(knots, rows), len(knots) - 1)
        return at if 2 * rows > knots[at - 1] + knots[at] else at - 1

    def _parts(
        self, rows: float, reads: float, keys: float, requests: float
    ) -> tuple[float, float, float, float]:
        knots, shape = self._knots, self._shape
        at = bisect_right(knots, rows)
        if at == len(knots):
            own = shape[-1]
        else:
            share = (rows - knots[at - 1]) / (knots[at] - knots[at - 1])
            own = shape[at - 1] * (1 - share) + shape[at] * share
        per_read, per_key, per_request = self._extras
        return own, per_read * reads, per_key * keys, per_request * requests

    def _learn(
        self, step: tuple[float, float, float, float, float], level: float, fresh: bool
    ) -> None:
        """Move what the step's time was made of, each part by its share, towards what it took."""
        ratio, rows, reads, keys, requests = step
        most = 1.0 if fresh else _MOST_SURPRISE
        surprise = max(-most, min(most, log(ratio / level)))
        parts = self._parts(rows, reads, keys, requests)
        total = sum(parts)
        knots, trust = self._knots, self._trust
        at = bisect_right(knots, rows) - 1
        share = (rows - knots[at]) / (knots[at + 1] - knots[at]) if at + 1 < len(knots) else 0.0
        # Single outliers are all slow ones, and would lift the rows in use above the others: the
        # median of three steps of about the same rows knows nothing of them.
        before, last = self._surprises[at]
        self._surprises[at] = last, surprise
        surprise = sorted((before, last, surprise))[1]
        for knot, weight in ((at, 1 - share), (at + 1, share)):
            if weight > 0:
                rate = weight * max(_LEAST_RATE, 1 / (trust[knot] + 3))
                if fresh and trust[knot] < _KNOWN:
                    rate = 0.5
                self._move(knot, exp(surprise * rate * parts[0] / total))
                trust[knot] += weight
        if fresh:
            return
        # An extra is at fault where it has more of the time than usual and the step took longer,
        # or less and shorter.
        for i, part in enumerate(parts[1:]):
            usual = self._usual[i] = self._usual[i] * 0.98 + 0.02 * part / total
            more = min(2.0, part / total / usual - 1) if usual else 0.0
            self._extras[i] *= exp(surprise * _LEAST_RATE * more)

    def _move(self, knot: int, factor: float) -> None:
        """Change the shape at a knot, and others where needed, so that it never falls."""
        shape, array = self._shape, self._arrays[1]
        value = shape[knot] * factor
        below, above = knot - 1, knot + 1
        while below >= 0 and shape[below] > value:
            shape[below] = array[below] = value
            below -= 1
        # Rows beyond all that were ever seen follow the largest ones that were.
        if not any(self._trust[above:]):
            for beyond in range(above, len(shape)):
                shape[beyond] = array[beyond] = shape[beyond] * factor
        while above < len(shape) and shape[above] < value:
            shape[above] = array[above] = value
            above += 1
        shape[knot] = array[knot] = value

    def grid(self, rows: Sequence[int], contexts: Sequence[int]) -> NDArray[np.float64]:
        """The expected seconds of one request's step, [rows, contexts]."""
        r, c = np.array(rows, float)[:, None], np.array(contexts, float)[None, :]
        return self.seconds(np.broadcast_to(r, (len(rows), len(contexts))), r * c, c)

    def flat_rows(self, context: int = 256, most: float = 1.25) -> int:
        """The most rows (up to 2048) whose step costs at most `most` times one row's."""
        rows = np.arange(1, 2049)
        times = self.seconds(rows, rows * float(context), float(context))
        return int(rows[times <= most * times[0]][-1])

    def table(
        self,
        rows: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128),
        contexts: Sequence[int] = (256, 1024, 4096),
    ) -> str:
        """Milliseconds of a step by rows and context, and how far it is flat, for people."""
        lines = ["  rows" + "".join(f"{f'context {c}':>14}" for c in contexts)]
        for count, times in zip(rows, self.grid(rows, contexts), strict=True):
            lines.append(f"{count:6d}" + "".join(f"{1e3 * t:11.2f} ms" for t in times))
        ends = ", ".join(f"{self.flat_rows(c)} at context {c}" for c in contexts)
        lines.append(f"Rows that cost at most 1.25 times one row: {ends}.")
        return "\n".join(lines)


def seconds_lost(tokens: Number, seconds: Number, seconds_per_token: float) -> Any:
    """What is lost by making `tokens` in `seconds`, where others take
    `seconds_per_token`; negative: won. Drafts pay where nothing is lost by them: all policies here
    decide by this one rule.
    """
    return seconds - tokens * seconds_per_token


def _fit(
    kinds: NDArray[np.float64], times: NDArray[np.float64]
) -> tuple[list[float], list[float], list[float]]:
    """(sampled rows, their shape, cost per read, key and request) with small relative errors."""
    sampled, which = np.unique(kinds[:, 0], return_inverse=True)
    columns = np.zeros((len(kinds), len(sampled) + 3))
    columns[np.arange(len(kinds)), which] = 1.0
    columns[:, len(sampled) :] = kinds[:, 1:]
    scale = np.maximum(columns.max(0), 1e-12)
    used = np.ones(len(scale), bool)
    weights = np.ones(len(times))
    found = np.zeros(len(scale))
    for _ in range(12):
        # A little ridge on the extras: where rows and reads rise together, the rows are the cause.
        system = columns / scale * (weights / times)[:, None]
        ridge = np.diag(np.where(np.arange(len(scale)) < len(sampled), 1e-9, 1e-3))
        solved = np.linalg.lstsq(
            np.vstack([system[:, used], ridge[:, used]]),
            np.concatenate([weights, np.zeros(len(scale))]),
            rcond=None,
        )[0]
        found[:] = 0
        found[used] = solved
        negative = found < 0
        negative[: len(sampled)] = False
        if negative.any():
            used &= ~negative
            continue
        error = np.abs(columns @ (found / scale) / times - 1)
        spread = max(1e-3, 2 * float(np.median(error)))
        weights = np.sqrt(np.minimum(1.0, spread / np.maximum(error, 1e-12)))
    found = np.maximum(found / scale, 0.0)
    floor = 1e-3 * float(times.min())  # a shape of 0 could never grow again
    shape = [max(floor, value) for value in found[: len(sampled)].tolist()]
    # As here: an extra that was not seen may still show itself later.
    extras = np.maximum(found[len(sampled) :], times.min() * np.array([1e-7, 1e-6, 1e-3]))
    counts = np.bincount(which).tolist()
    return sampled.tolist(), isotonic(shape, counts), extras.tolist()


def _filled(knots: list[float], sampled: list[float], shape: list[float]) -> list[float]:
    """The shape at all knots: between samples on a line, beyond the last one on a steep one."""
    out = np.interp(knots, sampled, shape)
    first, last = sampled[0], sampled[-1]
    slope = shape[-1] / last  # proportional, where one sample is all there is
    if len(sampled) > 1:
        slope = max(
            (shape[-1] - shape[0]) / (last - first),
            (shape[-1] - shape[-2]) / (last - sampled[-2]),
        )
    filled: list[float] = (out + slope * np.maximum(0.0, np.array(knots) - last)).tolist()
    return filled


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing values nearest to `values` in weighted squares: neighbours that fall are
    pooled.
    """
    fits: list[float] = []
    heavy: list[float] = []
    sizes: list[int] = []
    for fit, weight in zip(values, weights, strict=True):
        size = 1
        while fits and fits[-1] > fit:
            last = heavy.pop()
            fit = (fits.pop() * last + fit * weight) / (last + weight)
            weight += last
            size += sizes.pop()
        fits.append(fit)
        heavy.append(weight)
        sizes.append(size)
    if len(fits) == len(values):
        return fits
    return [fit for fit, size in zip(fits, sizes, strict=True) for _ in range(size)]
