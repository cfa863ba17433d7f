"""Step-cost tables: how long a step of an engine takes, by what it computes.

A table is a JSON file:

    {"about": "the machine and the model", "source": "where the times are from", "measured": true,
     "rows": [{"requests": 8, "rows": 32, "context": 1024, "seconds": 0.0058}, …],
     "prefill": [{"rows": 512, "seconds": 0.3}, …],
     "draft_seconds": 2e-5}

`rows` of a step are those of all its requests together: one for each, and one for each drafted
token; `context` is the length of each text. A row may have a "measured" of its own. `prefill` (if
it is there) is the time of a step that prefills that number of tokens; without it
they cost as much as other rows. `draft_seconds` is what drafting takes for one request, if it was
measured.

Between its points a table is interpolated so that more of anything never takes less time: by a
fitted curve (`foresay.budget.cost`), held between the points that are nowhere larger and those that
are nowhere smaller. At a point it gives the point's time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay.budget.cost import Sample, StepCost
from foresay.errors import InputError, TraceError

__all__ = ["CostPoint", "StepTable", "bundled_tables", "read_table"]

_SMALLEST, _LARGEST = 1e-9, 1e12  # seconds, rows, tokens


class CostPoint(NamedTuple):
    """A timed step: requests, each with a text of `context` tokens, and `rows` rows of all of them
    together.
    """

    requests: int
    rows: int
    context: float
    seconds: float
    measured: bool = True

    def sample(self) -> Sample:
        each = self.rows / self.requests
        reads = self.requests * (each * self.context + each * (each + 1) / 2)
        keys = self.requests * self.context
        return Sample(self.rows, round(reads), self.seconds, round(keys), self.requests)


@dataclass(frozen=True, eq=False)
class StepTable:
    """A table, ready to be asked.

    name           its own name or its file's
    about, source  what it is of, and where it is from
    points         the timed steps, at least one
    prefill        (rows, seconds) of steps that prefill, by rising rows; may be empty
    draft_seconds  what drafting takes for one request; None: not known
    """

    name: str
    about: str
    source: str
    points: tuple[CostPoint, ...]
    prefill: tuple[tuple[int, float], ...] = ()
    draft_seconds: float | None = None

    @cached_property
    def _monotone(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Requests, rows, keys and reads of each point, and its time; where the times were not
        monotone, halfway between the smallest and the largest that would be.
        """
        samples = self._all()
        places = np.array([[s.requests, s.rows, s.keys, s.reads] for s in samples], np.float64)
        times = np.array([s.seconds for s in samples])
        below = (places[:, None] >= places[None]).all(2)  # [i, j]: j is nowhere larger than i
        most = np.where(below, times[None], -np.inf).max(1)
        least = np.where(below.T, times[None], np.inf).min(1)
        return places, (most + least) / 2

    @cached_property
    def _curve(self) -> StepCost:
        return self.cost()

    @property
    def measured(self) -> bool:
        """Whether all of its times were measured."""
        return all(point.measured for point in self.points)

    @property
    def error(self) -> float:
        """How far the fitted curve is from the points, on average: |relative error|."""
        curve = self._curve
        found = [curve.of(s.rows, s.reads, s.keys, s.requests) / s.seconds for s in self._all()]
        return float(np.abs(np.array(found) - 1).mean())

    def cost(self) -> StepCost:
        """A new cost model fitted to the points, as an engine's policy begins with."""
        return StepCost.measured(self._all())

    def seconds(
        self, requests: int, rows: int, keys: float, reads: float, prefill: int = 0
    ) -> float:
        """The time of a step.

        requests  that decode
        rows      all rows but those of the prefill
        keys      tokens of the decoding requests
        reads     tokens that the rows attend to, summed over the rows
        prefill   rows of prompts
        """
        if not prefill:
            return self._decode(requests, rows, keys, reads)
        if not self.prefill:
            return self._decode(requests, rows + prefill, keys, reads)
        known, times = zip(*self.prefill, strict=True)
        last = (times[-1] / known[-1]) * max(0, prefill - known[-1])  # beyond: proportional
        alone = float(np.interp(prefill, known, times) + last)
        if not rows:
            return alone
        # The weights are read once for both, which is most of the time of a step of one row.
        return self._decode(requests, rows, keys, reads) + max(
            0.0, alone - float(self._monotone[1].min())
        )

    def stretched(self, factor: float) -> StepTable:
        """As if each token of a text stood for `factor` tokens of context: for recorded answers
        that are shorter than those they stand for. An assumption, so nothing is measured any more.

        Raises: InputError.
        """
        if not _SMALLEST <= factor <= _LARGEST:
            raise InputError(
                f"stretch is {factor!r}; expected a number above 0, at most {_LARGEST:g}"
            )
        if factor == 1:
            return self
        points = (p._replace(context=p.context / factor, measured=False) for p in self.points)
        return replace(self, points=tuple(points))

    def _all(self) -> list[Sample]:
        return [point.sample() for point in self.points]

    def _decode(self, requests: int, rows: int, keys: float, reads: float) -> float:
        places, times = self._monotone
        here = np.array([requests, rows, keys, reads], np.float64)
        above = (places >= here).all(1)
        below = (places <= here).all(1)
        least = times[below].max() if below.any() else 0.0
        most = times[above].min() if above.any() else np.inf
        return float(min(max(self._curve.of(rows, reads, keys, requests), least), most))

    def as_dict(self) -> dict[str, Any]:
        """As it is written to a file."""
        rows: list[dict[str, Any]] = []
        for point in self.points:
            row = point._asdict()
            if row.pop("measured") is not self.measured:
                row["measured"] = point.measured
            rows.append(row)
        found: dict[str, Any] = {
            "about": self.about,
            "source": self.source,
            "measured": self.measured,
            "rows": rows,
        }
        if self.prefill:
            found["prefill"] = [{"rows": rows, "seconds": s} for rows, s in self.prefill]
        if self.draft_seconds is not None:
            found["draft_seconds"] = self.draft_seconds
        return found


def bundled_tables() -> list[str]:
    """The names of the tables that come with the package."""
    folder = resources.files("foresay") / "bench" / "costs"
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name[-5:] == ".json")


def read_table(name: str | Path) -> StepTable:
    """The table of that name that comes with the package, or of a file.

    Raises: InputError for a name that does not exist; TraceError for a file that is no table.
    """
    if str(name) in bundled_tables():
        text = (resources.files("foresay") / "bench" / "costs" / f"{name}.json").read_text("utf-8")
    else:
        path = Path(name)
        if not path.is_file():
            raise InputError(
                f"there are no step costs {str(name)!r}; expected {', '.join(bundled_tables())}, "
                "or a file"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"{path} cannot be read: {error}") from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{name} is not JSON: {error}") from error
    return _table(str(name), found)


def _table(name: str, found: Any) -> StepTable:
    if not isinstance(found, dict):
        raise TraceError(f"{name} is a {type(found).__name__}; expected a JSON object")
    for field, kind in (("about", str), ("source", str), ("measured", bool), ("rows", list)):
        if not isinstance(found.get(field), kind):
            raise TraceError(f"{name}: {field!r} is {found.get(field)!r}; expected {kind.__name__}")
    if not found["rows"]:
        raise TraceError(f"{name}: 'rows' is empty; expected at least 1 timed step")
    points = [_point(f"{name}, rows[{at}]", row, found) for at, row in enumerate(found["rows"])]
    prefill = found.get("prefill", [])
    if not isinstance(prefill, list):
        raise TraceError(f"{name}: 'prefill' is {prefill!r}; expected a list")
    steps = []
    for at, row in enumerate(prefill):
        where = f"{name}, prefill[{at}]"
        rows = int(_number(where, row, "rows", whole=True))
        steps.append((rows, _number(where, row, "seconds")))
    draft = found.get("draft_seconds")
    if draft is not None:
        draft = _number(name, found, "draft_seconds")
    about = found["about"], found["source"]
    return StepTable(name, *about, tuple(points), tuple(sorted(steps)), draft)


def _point(where: str, row: Any, table: dict[str, Any]) -> CostPoint:
    requests, rows = (int(_number(where, row, name, whole=True)) for name in ("requests", "rows"))
    if rows < requests:
        raise TraceError(
            f"{where} has {rows} rows for {requests} requests; expected at least 1 for each"
        )
    context, seconds = (_number(where, row, name) for name in ("context", "seconds"))
    measured = row.get("measured", table["measured"])
    if type(measured) is not bool:
        raise TraceError(f"{where}: 'measured' is {measured!r}; expected true or false")
    return CostPoint(requests, rows, context, seconds, measured)


def _number(where: str, row: Any, field: str, *, whole: bool = False) -> float:
    value: Any = row.get(field) if isinstance(row, dict) else None
    kinds = (int,) if whole else (int, float)
    if type(value) not in kinds or not _SMALLEST <= value <= _LARGEST:
        kind = "a whole number" if whole else "a number"
        raise TraceError(
            f"{where}: {field!r} is {value!r}; expected {kind} above 0, from {_SMALLEST:g} to "
            f"{_LARGEST:g}"
        )
    return float(value)
