"""Is the keyed noise good enough? Statistics of samplers, and of the uniforms below them.

Equality with plain decoding says nothing of the distribution that both follow. That is measured
here: that the argmax of logits and noise has the softmax of the logits as its distribution, that
choices at other positions, with other seeds and among other tokens are independent, and that rare
tokens are as rare as they are.

A check that finds a p-value below 1e-5 is run again with a fresh seed and 4 times the draws, and
fails only if that one is below 1e-9: a false alarm has a chance of 1e-14.

Mutates: nothing. Valid until: for ever. Raises: whatever the functions under test raise. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax  # type: ignore[import-untyped]
from scipy.stats import kstest, poisson  # type: ignore[import-untyped]

from foresay.arrays import Floats
from foresay.lossless.gtest import RERUN, g_test
from foresay.sampling import noise
from foresay.sampling.noise import Doubles

__all__ = [
    "NOISE_CONTROLS",
    "Check",
    "Sampler",
    "Uniform",
    "choices",
    "coarse_sampler",
    "noise_quality",
    "reference_sampler",
    "uniforms",
]

N = TypeVar("N", bound=np.generic)
Seeds: TypeAlias = NDArray[np.uint64]
Longs: TypeAlias = NDArray[np.int64]
Sampler: TypeAlias = Callable[[Floats, Seeds, Longs], NDArray[np.integer[Any]]]
"""Processed logits float32[R, V] (all rows may be one row in memory), and the seed and position of
each row, to tokens int[R]."""
Uniform: TypeAlias = Callable[[Seeds, Longs, Longs], Doubles]
"""Seeds, positions and token ids, broadcast, to uniforms: `noise.uniform` is one."""

SUSPECT, WRONG = 1e-5, 1e-9
_AT_ONCE = 1 << 22  # uniforms in one call, for memory's sake
_EVENTS = 25  # tail tokens that are to be expected: a tail never picked has a p-value of e^-25
_GAP = 18.0
_LARGE = 152_000


@dataclass(frozen=True, slots=True)
class Check:
    """One property: on how many draws it was looked at last, and how likely such draws are."""

    name: str
    n: int
    p_value: float
    ok: bool


@dataclass(frozen=True, slots=True)
class _Draws:
    """A sampler, asked for many tokens of one distribution: with other seeds, or positions."""

    sampler: Sampler
    rng: np.random.Generator

    def at(self, logits: Floats, seeds: Seeds, positions: Longs) -> Longs:
        rows = max(1, _AT_ONCE // len(logits))
        found = []
        for start in range(0, len(seeds), rows):
            part = slice(start, start + rows)
            table = np.broadcast_to(logits, (len(seeds[part]), len(logits)))
            found.append(self.sampler(table, seeds[part], positions[part]))
        return np.concatenate(found).astype(np.int64)

    def fresh(self, logits: Floats, n: int) -> Longs:
        """Half of them along the positions of one seed, half with a seed each."""
        seeds, positions = self.seeds(n), self.positions(n)
        seeds[: n // 2] = seeds[0]
        positions[n // 2 :] = positions[0]
        return self.at(logits, seeds, positions)

    def seeds(self, n: int) -> Seeds:
        return self.rng.integers(0, 2**64 - n, n, np.uint64)

    def positions(self, n: int) -> Longs:
        """Consecutive ones, as in a text."""
        return int(self.rng.integers(0, 2**20)) + np.arange(n)


Test: TypeAlias = Callable[[_Draws, int], float]
"""Draws and their number, to a p-value."""


def noise_quality(
    sampler: Sampler, uniform: Uniform = noise.uniform, effort: float = 1.0, seed: int = 0
) -> list[Check]:
    """All checks of a sampler and of its uniforms.

    effort   1 takes some 2.4e9 uniforms, most of them for the tail; less takes fewer draws, and a
             tail that is less far away
    """
    return choices(sampler, effort, seed) + uniforms(uniform, effort, seed)


def choices(sampler: Sampler, effort: float = 1.0, seed: int = 0, only: str = "") -> list[Check]:
    """The checks of a sampler, see `noise_quality`; only those whose names begin like this."""
    gap = _GAP + float(np.log(effort))
    # One tail token is seen in e^gap uniforms, whatever the vocabulary.
    wide = int(min(_LARGE, max(512, np.exp(gap) / 64)))
    tail = int(_EVENTS * np.exp(gap) / (wide - 1))
    plan: list[tuple[str, Test, int]] = [
        ("distribution of 8 tokens", _marginal(8), max(20_000, int(1e6 * effort))),
        ("distribution of 64 tokens", _marginal(64), max(5_000, int(4e5 * effort))),
        ("distribution of 512 tokens", _marginal(512), max(2_000, int(1e5 * effort))),
        ("next position", _neighbours(0, 1), max(20_000, int(5e5 * effort))),
        ("next seed", _neighbours(1, 0), max(20_000, int(5e5 * effort))),
        ("other tokens", _other_tokens, max(20_000, int(5e5 * effort))),
        (f"tail of {wide} tokens, {gap:.1f} below", _tail(wide, gap), tail),
        (f"all of {_LARGE} tokens", _flat(_LARGE), max(8, int(4e3 * effort))),
    ]
    plan = [check for check in plan if check[0].startswith(only)]
    return [_confirmed(name, test, sampler, n, seed) for name, test, n in plan]


def uniforms(uniform: Uniform = noise.uniform, effort: float = 1.0, seed: int = 0) -> list[Check]:
    """The checks of uniforms: how they are distributed, and that neighbours are independent."""
    n = max(40_000, int(1e6 * effort))
    plan: list[tuple[str, Test]] = [
        ("uniform distribution", _kolmogorov_smirnov(uniform)),
        ("uniforms of next positions", _pairs_of(uniform, 0, 1, 0)),
        ("uniforms of next seeds", _pairs_of(uniform, 1, 0, 0)),
        ("uniforms of next tokens", _pairs_of(uniform, 0, 0, 1)),
    ]
    # No choices are made: the sampler stands idle.
    return [_confirmed(name, test, reference_sampler, n, seed) for name, test in plan]


def reference_sampler(logits: Floats, seeds: Seeds, positions: Longs) -> Longs:
    """What `reference.match` chooses, for many rows; slow: some 1.7 microseconds per token."""
    added = noise.gumbel(_column(seeds), _column(positions), np.arange(logits.shape[1]))
    result: Longs = np.argmax(logits + added, axis=1)
    return result


def coarse_sampler(bits: int) -> Sampler:
    """Choices with uniforms r / 2**bits. Of tokens with equal logits only the largest uniform is
    drawn, from the distribution of the largest, so a large vocabulary costs nothing. The noise is
    not keyed: a call is one draw of all its rows, seeded by the first."""

    def sample(logits: Floats, seeds: Seeds, positions: Longs) -> Longs:
        rng = np.random.default_rng([int(seeds[0]), int(positions[0])])
        values, sizes = np.unique(logits[0], return_counts=True)
        below = -np.expm1(-rng.standard_exponential((len(seeds), len(values))) / sizes)
        with np.errstate(divide="ignore"):  # a uniform of 0 has noise -inf
            added = -np.log(-np.log1p(-np.ceil(below * 2.0**bits) / 2.0**bits))
        best = np.argmax(values + added, axis=1)
        place = np.cumsum(sizes)[best] - rng.integers(1, sizes[best] + 1)
        chosen: Longs = np.argsort(logits[0], kind="stable")[place]
        return chosen

    return sample


def _stuttering_sampler(logits: Floats, seeds: Seeds, positions: Longs) -> Longs:
    return reference_sampler(logits, seeds, positions & ~1)


NOISE_CONTROLS: Mapping[str, tuple[Sampler, str, str]] = MappingProxyType(
    {
        "24 bits": (coarse_sampler(24), "tail", "float32 uniforms: rare tokens come too rarely"),
        "stutter": (_stuttering_sampler, "next position", "two positions have the same noise"),
    }
)
"""Name, wrong sampler, the check of `choices` that must find it, and what is wrong with it."""


def _confirmed(name: str, test: Test, sampler: Sampler, n: int, seed: int) -> Check:
    p = test(_Draws(sampler, np.random.default_rng([seed, 0])), n)
    if p >= SUSPECT:
        return Check(name, n, p, True)
    p = test(_Draws(sampler, np.random.default_rng([seed, 1])), RERUN * n)
    return Check(name, RERUN * n, p, p >= WRONG)


def _logits(rng: np.random.Generator, vocabulary: int) -> Floats:
    return (1.5 * rng.standard_normal(vocabulary)).astype(np.float32)


def _probs(logits: Floats) -> Doubles:
    probs: Doubles = softmax(logits.astype(np.float64))
    return probs


def _marginal(vocabulary: int) -> Test:
    def test(draws: _Draws, n: int) -> float:
        logits = _logits(draws.rng, vocabulary)
        counts = np.bincount(draws.fresh(logits, n), minlength=vocabulary)
        return g_test(counts, _probs(logits)).p_value

    return test


def _neighbours(seed_step: int, position_step: int) -> Test:
    """Two choices of one distribution, the second with the next seed or at the next position."""

    def test(draws: _Draws, n: int) -> float:
        logits = _logits(draws.rng, 8)
        probs = _probs(logits)
        # Pairs do not overlap, or they would not be independent of each other.
        seeds, positions = draws.seeds(n), 2 * draws.positions(n)
        seeds[: n // 2] &= ~np.uint64(1)
        if position_step:
            seeds[: n // 2] = seeds[0]
        first = draws.at(logits, seeds, positions)
        second = draws.at(logits, seeds + np.uint64(seed_step), positions + position_step)
        counts = np.bincount(8 * first + second, minlength=64)
        return g_test(counts, np.outer(probs, probs).ravel()).p_value

    return test


def _other_tokens(draws: _Draws, n: int) -> float:
    """The choice among tokens 0 to 3 and the one among 4 to 7, with the same seed and position."""
    logits = _logits(draws.rng, 8)
    seeds, positions = draws.seeds(n), draws.positions(n)
    low, high = logits.copy(), logits.copy()
    low[4:], high[:4] = -np.inf, -np.inf
    first, second = draws.at(low, seeds, positions), draws.at(high, seeds, positions)
    counts = np.bincount(8 * first + second, minlength=64)
    return g_test(counts, np.outer(_probs(low), _probs(high)).ravel()).p_value


def _tail(vocabulary: int, gap: float) -> Test:
    """One token far above a flat rest, and how often one of the rest is chosen."""

    def test(draws: _Draws, n: int) -> float:
        logits = np.full(vocabulary, -gap, np.float32)
        top = int(draws.rng.integers(vocabulary))
        logits[top] = 0
        chosen = draws.fresh(logits, n)
        rare = int((chosen != top).sum())
        expected = n * (1 - _probs(logits)[top])
        both = poisson.cdf(rare, expected), poisson.sf(rare - 1, expected)
        return float(min(1.0, 2 * min(both)))

    return test


def _flat(vocabulary: int) -> Test:
    """All tokens alike: none is preferred for where it stands, or for the last bits of its id."""

    def test(draws: _Draws, n: int) -> float:
        chosen = draws.fresh(np.zeros(vocabulary, np.float32), n)
        ids = np.arange(vocabulary)
        p_values = []
        for cell in (ids * 64 // vocabulary, ids % 64):
            probs = np.bincount(cell, minlength=64) / vocabulary
            p_values.append(g_test(np.bincount(cell[chosen], minlength=64), probs).p_value)
        return min(1.0, 2 * min(p_values))

    return test


def _column(values: NDArray[N]) -> NDArray[N]:
    return values[:, np.newaxis]


def _kolmogorov_smirnov(uniform: Uniform) -> Test:
    def test(draws: _Draws, n: int) -> float:
        rows = n // 64
        found = uniform(_column(draws.seeds(rows)), _column(draws.positions(rows)), np.arange(64))
        return float(kstest(found.ravel(), "uniform").pvalue)

    return test


def _pairs_of(uniform: Uniform, seed_step: int, position_step: int, token_step: int) -> Test:
    def test(draws: _Draws, n: int) -> float:
        rows, tokens = n // 64, 2 * np.arange(64)
        seeds, positions = _column(draws.seeds(rows)), 2 * _column(draws.positions(rows))
        first = uniform(seeds, positions, tokens)
        moved = seeds + np.uint64(seed_step), positions + position_step, tokens + token_step
        cells = 16 * np.floor(16 * first) + np.floor(16 * uniform(*moved))
        return g_test(
            np.bincount(cells.ravel().astype(int), minlength=256), [1 / 256] * 256
        ).p_value

    return test
