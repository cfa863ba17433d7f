"""The kernels of sampling, called by place, on a level of the processor that a module can be run
with: `from core.kernels import on_each_level` runs all of its tests on every level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foresay import _core

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Longs = NDArray[np.int64]
Each = float | Sequence[float] | NDArray[Any]  # one number for all rows, or one for each

LEVEL = [""]  # the one that is tested; empty: the machine's


@pytest.fixture(scope="module", params=_core.cpu_levels(), autouse=True)
def on_each_level(request: pytest.FixtureRequest) -> Iterator[None]:
    LEVEL[0] = request.param
    yield
    LEVEL[0] = ""


def level_or(level: str | None) -> str:
    return LEVEL[0] if level is None else level


def normal(seed: int, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Floats:
    found = np.random.default_rng(seed).standard_normal(shape) * scale + shift
    return found.astype(np.float32)


def bits(values: Floats) -> NDArray[np.uint16]:
    """As bfloat16, cut off."""
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def wide(values: NDArray[np.uint16]) -> Floats:
    return (values.astype(np.uint32) << 16).view(np.float32)


def choose(
    logits: NDArray[Any],
    temperature: Each = 1.0,
    seed: Each = 0,
    position: Each | range = 0,
    stream: int = 0,
    threads: int = 1,
    level: str | None = None,
) -> tuple[NDArray[np.int32], Doubles, NDArray[np.uint8]]:
    rows = len(logits)
    keys = np.full(rows, seed, np.uint64), np.full(rows, position, np.uint32)
    heats, level = np.full(rows, temperature, np.float32), level_or(level)
    more: dict[str, Any] = {"stream": stream, "threads": threads, "level": level}
    return _core.choose(logits, temperatures=heats, seeds=keys[0], positions=keys[1], **more)


def softmax_into(
    residual: Doubles,
    walks: Longs,
    scores: Floats,
    rows: Longs,
    temperature: Each = 1.0,
    threads: int = 1,
    level: str | None = None,
) -> tuple[Doubles, list[int]]:
    heats = np.full(len(rows), temperature, np.float32)
    given: dict[str, Any] = {"rows": rows, "temperatures": heats, "walks": walks}
    given |= {"residual": residual, "threads": threads, "level": level_or(level)}
    totals, statuses = _core.unnormalised_softmax(scores, **given)
    return totals, statuses.tolist()


def sums_of(probs: Floats, rows: Longs, threads: int = 1) -> tuple[Doubles, Floats]:
    return _core.sums(probs, rows=rows, threads=threads, level=LEVEL[0])


def subtract_rows(
    residual: Doubles,
    walks: Longs,
    probs: Floats,
    rows: Longs,
    totals: Doubles,
    of: Doubles,
    threads: int = 1,
) -> Doubles:
    given: dict[str, Any] = {"walks": walks, "probs": probs, "rows": rows, "totals": totals}
    return _core.subtract(residual, sums=of, threads=threads, level=LEVEL[0], **given)


def draw(residual: Doubles, coins: Doubles, threads: int = 1) -> Longs:
    return _core.draw(residual, coins, threads=threads, level=LEVEL[0])
