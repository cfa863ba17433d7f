"""Cases of `choose` for all its implementations, and the naive evaluation that they must equal."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.sampling import noise

SEEDS = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
POSITIONS = [0, 1, 7, 2**31, 2**32 - 1]
INF = float("inf")


class Case(NamedTuple):
    """The arguments of `choose`; seeds as plain ints below 2**64."""

    name: str
    logits: NDArray[np.float32]
    temperatures: NDArray[np.float32]
    seeds: list[int]
    positions: list[int]
    stream: int = 0


class Expected(NamedTuple):
    tokens: NDArray[np.int64]
    values: NDArray[np.float64]
    status: NDArray[np.uint8]


def as_int64(seeds: list[int]) -> NDArray[np.int64]:
    """The same bits with a sign."""
    return np.array(seeds, np.uint64).view(np.int64)


def tensors(case: Case, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, temperatures, seeds and positions as torch's `choose` takes them."""
    return (
        torch.from_numpy(case.logits).to(device),
        torch.from_numpy(case.temperatures).to(device),
        torch.from_numpy(as_int64(case.seeds)).to(device),
        torch.tensor(case.positions, dtype=torch.int64, device=device),
    )


def naive(case: Case) -> Expected:
    """Row by row, all tokens, with the noise of the specification."""
    rows = len(case.logits)
    tokens, status = np.full(rows, -1, np.int64), np.zeros(rows, np.uint8)
    values = np.full(rows, np.nan)
    for i, (logits, temperature) in enumerate(zip(case.logits, case.temperatures, strict=True)):
        perturbed = logits.astype(np.float64)
        if temperature != 0:
            with np.errstate(over="ignore"):
                perturbed = (logits / temperature).astype(np.float64)
            ids = np.arange(len(logits), dtype=np.int32)
            perturbed += noise.gumbel(case.seeds[i], case.positions[i], ids, case.stream)
        if np.isnan(perturbed).any():
            status[i] = 2
        elif (perturbed == INF).any():
            status[i] = 3
        elif not len(logits) or perturbed.max() == -INF:
            status[i] = 4
        else:
            tokens[i] = perturbed.argmax()  # numpy's is the first of equals
            values[i] = perturbed[tokens[i]]
    return Expected(tokens, values, status)


def differences(case: Case, found: Expected) -> list[str]:
    """The fields in which a result is not the expected one; values may differ in the last bits."""
    expected = naive(case)
    close = np.isclose(found.values, expected.values, rtol=1e-14, atol=1e-14, equal_nan=True)
    right = {
        "tokens": np.array_equal(found.tokens, expected.tokens),
        "values": found.values.dtype == np.float64 and bool(close.all()),
        "status": np.array_equal(found.status, expected.status),
    }
    return [name for name, fits in right.items() if not fits]


def _random(name: str, rows: int, vocabulary: int, spread: float = 2.5, **fixed: Any) -> Case:
    rng = np.random.default_rng(rows * 1_000_003 + vocabulary)
    temperatures = rng.choice(np.array([0, 0.3, 0.7, 1, 1, 1.3, 5], np.float32), rows)
    case = Case(
        name,
        rng.normal(0, spread, (rows, vocabulary)).astype(np.float32),
        temperatures.astype(np.float32),
        [SEEDS[i] if i < len(SEEDS) else int(rng.integers(2**63)) for i in range(rows)],
        [POSITIONS[i % len(POSITIONS)] for i in range(rows)],
    )
    return case._replace(**fixed)


def _masked(name: str, kept: int, fill: float) -> Case:
    """All but a few tokens of each row masked."""
    case = _random(name, 3, 130)
    order = np.random.default_rng(1).permuted(np.tile(np.arange(130), (3, 1)), axis=1)
    logits = case.logits.copy()
    np.put_along_axis(logits, order[:, kept:], np.float32(fill), axis=1)
    return case._replace(logits=logits)


def _constant(name: str, level: float, temperature: float, vocabulary: int = 130) -> Case:
    case = _random(name, 2, vocabulary)
    return case._replace(
        logits=np.full_like(case.logits, level), temperatures=np.full(2, temperature, np.float32)
    )


def _far(name: str, level: float) -> Case:
    """Logits so far from zero that a filter in float32 without a margin loses the winner."""
    case = _random(name, 6, 130)
    temperatures = np.linspace(0.5, 1.5, 6, dtype=np.float32)
    return case._replace(logits=case.logits + np.float32(level), temperatures=temperatures)


def _bad_rows() -> Case:
    """NaN, +inf, both, nothing left and what overflows, between good rows, sampled and greedy."""
    case = _random("bad rows", 16, 130)
    logits, temperatures = case.logits.copy(), np.ones(16, np.float32)
    temperatures[8:] = 0
    for first in (0, 8):
        logits[first + 1, 129] = np.nan
        logits[first + 2, [3, 101]] = np.inf
        logits[first + 3, 10], logits[first + 3, 120] = np.inf, np.nan
        logits[first + 4, 10], logits[first + 4, 120] = np.nan, np.inf
        logits[first + 5] = -np.inf
        logits[first + 6] = -np.inf
        logits[first + 6, 97] = -1000
    temperatures[7], logits[7, 120] = 1e-3, 3e38  # a quotient beyond float32
    return case._replace(logits=logits, temperatures=temperatures)


def _steps(name: str, rise: float) -> Case:
    """Logits that rise or fall with the id: the best so far improves in every block, or never."""
    case = _random(name, 3, 130)
    return case._replace(logits=case.logits + np.float32(rise) * np.arange(130, dtype=np.float32))


SHAPES = [(1, 1), (2, 1), (2, 63), (6, 64), (3, 65), (3, 260)]
CASES = [
    *(_random(f"{r} x {v}", r, v) for r, v in SHAPES),
    _random("no row", 0, 5),
    _random("no token", 2, 0),
    _random("stream 17", 2, 100, stream=17),
    _random("last stream", 2, 100, stream=2**32 - 1),
    _random("flat", 3, 130, spread=1e-3),
    _random("steep", 3, 130, spread=1000.0),
    _random("hot and cold", 5, 130, temperatures=np.geomspace(1e-44, 3e38, 5, dtype=np.float32)),
    _masked("one left", 1, -INF),
    _masked("five left", 5, -INF),
    _masked("masked with the lowest float32", 5, float(np.finfo(np.float32).min)),
    _masked("masked with -1e9", 5, -1e9),
    _constant("greedy tie", 1.5, 0),
    _constant("only noise", 0, 1),
    _constant("ties where noise is rounded away", 1e30, 1),
    _constant("nothing but the lowest float32", float(np.finfo(np.float32).min), 1),
    _constant("nothing but the largest float32", float(np.finfo(np.float32).max), 1),
    _constant("noise and rounding alike", 3e15, 0.7),
    _far("far above zero", 3e7),
    _far("far below zero", -3e7),
    _bad_rows(),
    _steps("rising", 0.5),
    _steps("falling", -0.5),
]
