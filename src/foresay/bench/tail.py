"""The long tail of a rollout: how many requests are left over time, from any engine's log.

A log is JSON lines, optionally gzipped, of one of two kinds. Steps:

    {"time": seconds, "running": n, "waiting": n, "seconds": s}

A line says how many requests ran in the step that ended at `time`; `waiting` and `seconds` (how
long the step took) may be left out. A step without `seconds` began where the line before it ended;
the first line of such a log marks the beginning only. Requests:

    {"begin": seconds, "end": seconds, "id": "…", "tokens": n}

of which `id` and `tokens` may be left out. Times are seconds since any moment. Other fields are
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError, TraceError
from foresay.plot import line_chart
from foresay.rl.steplog import FEW
from foresay.traces import read_records

__all__ = ["Activity", "Tail", "read_activity", "tail_chart", "tail_of"]

_POINTS = 2000  # of a chart
_LARGEST = 1e15


@dataclass(frozen=True, slots=True, eq=False)
class Activity:
    """How many requests were left, piece by piece.

    times    float64[n + 1]  where the pieces begin, and where the last one ends; rising, from 0
    left     int64[n]        requests that run or wait in each piece
    total    how many requests there were; None: not known, as steps without `waiting` do not say
    lengths  tokens (or else seconds) of each request, if they are known
    unit     of the lengths
    """

    times: NDArray[np.float64]
    left: NDArray[np.int64]
    total: int | None = None
    lengths: NDArray[np.float64] | None = None
    unit: str = "tokens"

    @classmethod
    def of_steps(cls, steps: Iterable[tuple[float, float, int]], total: int | None) -> Activity:
        """From (begin, end, left) of steps in order; between two steps nobody is counted.

        Raises: InputError for steps that overlap.
        """
        times, left = [0.0], []
        first: float | None = None
        for begin, end, count in steps:
            first = begin if first is None else first
            if begin - first < times[-1] - 1e-9:
                raise InputError(
                    f"a step begins at {begin} before {times[-1] + first}, where the one before it "
                    "ended; expected steps in order"
                )
            if begin - first > times[-1] + 1e-9:
                times.append(begin - first)
                left.append(0)
            times.append(max(end - first, times[-1]))
            left.append(count)
        return cls(np.array(times), np.array(left, np.int64), total)

    @classmethod
    def of_requests(
        cls, spans: Sequence[tuple[float, float]], tokens: Sequence[int] | None = None
    ) -> Activity:
        """From begin and end of each request, at least one."""
        ends = np.array(spans, np.float64).reshape(-1, 2)
        ends -= ends[:, 0].min()
        times = np.unique(np.append(ends, 0.0))
        begun = np.searchsorted(np.sort(ends[:, 0]), times[:-1], side="right")
        ended = np.searchsorted(np.sort(ends[:, 1]), times[:-1], side="right")
        lengths = ends[:, 1] - ends[:, 0] if tokens is None else np.array(tokens, np.float64)
        unit = "seconds" if tokens is None else "tokens"
        return cls(times, begun - ended, len(ends), lengths, unit)


@dataclass(frozen=True, slots=True)
class Tail:
    """What an activity says about its tail.

    seconds        from the first begin to the last end
    few            the tail is when at most this number of requests are left
    tail_seconds   in which at most `few`, and at least one, were left after the last moment with
                   more of them
    tail_share     of the seconds
    few_share      share of all seconds with 1 to `few` requests, also before others began
    half, most     seconds until half and 90 % of the requests had ended; of the largest number at
                   once where the number of requests is not known
    requests       how many there were, or the most at once
    max_over_mean  longest by mean length; None: not known
    unit           of those lengths
    """

    seconds: float
    few: int
    tail_seconds: float
    tail_share: float
    few_share: float
    half: float
    most: float
    requests: int
    max_over_mean: float | None
    unit: str

    def as_dict(self) -> dict[str, Any]:
        """The fields of `foresay tail --json`."""
        names = {
            "half": "seconds_until_half_ended",
            "most": "seconds_until_90_percent_ended",
            "max_over_mean": "max_over_mean_length",
            "unit": "length_unit",
        }
        return {names.get(name, name): value for name, value in asdict(self).items()}


def tail_of(activity: Activity, few: int = FEW) -> Tail:
    """The tail of an activity.

    Raises: InputError for `few` below 1.
    """
    if few < 1:
        raise InputError(f"few is {few} (--few); expected 1 or more requests")
    times, left = activity.times, activity.left
    spans = np.diff(times)
    seconds = float(times[-1])
    total = int(left.max(initial=0)) if activity.total is None else activity.total

    def until(most: float) -> float:
        """From when on at most `most` were left."""
        more = np.flatnonzero(left > most)
        return float(times[more[-1] + 1]) if len(more) else 0.0

    tail = seconds - until(few)
    busy = (left >= 1) & (left <= few)
    lengths = activity.lengths
    ratio = None
    if lengths is not None and lengths.sum() > 0:
        ratio = float(lengths.max() / lengths.mean())
    return Tail(
        seconds,
        few,
        tail,
        tail / seconds if seconds else 0.0,
        float(spans[busy].sum() / seconds) if seconds else 0.0,
        until(total / 2),
        until(total / 10),
        total,
        ratio,
        activity.unit,
    )


def tail_chart(activity: Activity, few: int, title: str = "requests left") -> str:
    """The requests left over time as SVG, and the bound of the tail, dashed."""
    times, left = activity.times, activity.left
    if len(left) > _POINTS:  # the most in each stretch, so that nothing that happened is lost
        edges = np.unique(np.linspace(0, len(left), _POINTS + 1).astype(np.int64))
        left = np.maximum.reduceat(left, edges[:-1])
        times = times[edges]
    points = [
        point
        for begin, end, count in zip(times[:-1], times[1:], left, strict=True)
        for point in ((float(begin), float(count)), (float(end), float(count)))
    ]
    bound = f"at most {few}"
    series = {"requests left": points, bound: [(0.0, float(few)), (float(times[-1]), float(few))]}
    return line_chart(series, title=title, x="seconds", y="requests left", dashed=[bound])


def read_activity(path: str | Path) -> Activity:
    """The activity that a log tells of.

    Raises: TraceError naming the file and the line.
    """
    path = Path(path)
    lines = list(read_records(path))
    if not lines:
        raise TraceError(f"{path} holds no line; expected one JSON object per step or request")
    if "begin" in lines[0][1] or "end" in lines[0][1]:
        return _requests(lines)
    return _steps(path, lines)


_STEP = "expected time and running of a step, or begin and end of a request"


def _steps(path: Path, lines: list[tuple[str, dict[str, Any]]]) -> Activity:
    steps: list[tuple[float, float, int]] = []
    before: float | None = None
    waits = False
    for where, line in lines:
        end = _number(where, line, "time", _STEP)
        running = int(_number(where, line, "running", _STEP, whole=True))
        waiting = 0
        if "waiting" in line:
            waiting, waits = int(_number(where, line, "waiting", _STEP, whole=True)), True
        if before is not None and end < before:
            raise TraceError(f"{where}: time is {end} after {before}; expected rising times")
        begin = before
        if "seconds" in line:
            took = _number(where, line, "seconds", _STEP)
            if took < 0:
                raise TraceError(f"{where}: 'seconds' is {took}; expected a number from 0")
            begin = end - took
            if before is not None:
                begin = max(begin, before)  # clocks are read twice
        if begin is not None:
            steps.append((begin, end, running + waiting))
        before = end
    if not steps:
        raise TraceError(f"{path} has a single time; expected two lines or more, or seconds")
    total = max(left for _, _, left in steps) if waits else None
    return Activity.of_steps(steps, total)


def _requests(lines: list[tuple[str, dict[str, Any]]]) -> Activity:
    spans, tokens = [], []
    for where, line in lines:
        begin, end = (_number(where, line, name, _STEP) for name in ("begin", "end"))
        if end < begin:
            raise TraceError(f"{where}: end is {end} and begin {begin}; expected an end after it")
        spans.append((begin, end))
        if "tokens" in line:
            tokens.append(int(_number(where, line, "tokens", _STEP, whole=True)))
    if tokens and len(tokens) != len(spans):
        raise TraceError(
            f"{len(tokens)} of {len(spans)} lines have tokens; expected all of them or none"
        )
    return Activity.of_requests(spans, tokens or None)


def _number(
    where: str, line: dict[str, Any], field: str, needs: str, *, whole: bool = False
) -> float:
    if field not in line:
        raise TraceError(f"{where} has no {field!r}; {needs}")
    value = line[field]
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not abs(value) <= _LARGEST or (whole and value < 0):
        kind = "a whole number from 0" if whole else "a number"
        raise TraceError(f"{where}: {field!r} is {value!r}; expected {kind}, at most {_LARGEST:g}")
    return float(value)
