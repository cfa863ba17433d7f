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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax  # type: ignore[import-untyped]
from scipy.stats import binomtest, kstest  # type: ignore[import-untyped]

from foresay.arrays import Floats
from foresay.lossless.gtest import RERUN, g_test
from foresay.sampling import noise
from foresay.sampling.noise import Doubles

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
class Finding:
    """One property: on how many draws it was looked at last, and how likely such draws are."""

    name: str
    n: int
    p_value: float
    ok: bool


Test: TypeAlias = Callable[[np.random.Generator, int], float]
"""A generator and a number of draws, to a p-value."""


def noise_quality(
    sampler: Sampler, uniform: Uniform = noise.uniform, effort: float = 1.0, seed: int = 0
) -> list[Finding]:
    """All checks of a sampler and of its uniforms.

    effort   1 takes some 2.4e9 uniforms, most of them for the tail; less takes fewer draws, and a
             tail that is less far away
    """
    return choices(sampler, effort, seed) + uniforms(uniform, effort, seed)


def choices(sampler: Sampler, effort: float = 1.0, seed: int = 0, only: str = "") -> list[Finding]:
    """The checks of a sampler, see `noise_quality`; only those whose names begin like this."""
    gap = _GAP + float(np.log(effort))
    # One tail token is seen in e^gap uniforms, whatever the vocabulary.
    wide = int(min(_LARGE, max(512, np.exp(gap) / 64)))
    tail = int(_EVENTS * np.exp(gap) / (wide - 1))
    pairs = max(20_000, int(5e5 * effort))
    plan: list[tuple[str, Callable[..., float], tuple[float, ...], int]] = [
        ("distribution of 8 tokens", _marginal, (8,), max(20_000, int(1e6 * effort))),
        ("distribution of 64 tokens", _marginal, (64,), max(5_000, int(4e5 * effort))),
        ("distribution of 512 tokens", _marginal, (512,), max(2_000, int(1e5 * effort))),
        ("next position", _neighbours, (0, 1), pairs),
        ("next seed", _neighbours, (1, 0), pairs),
        ("other tokens", _other_tokens, (), pairs),
        (f"tail of {wide} tokens, {gap:.1f} below", _tail, (wide, gap), tail),
        (f"all of {_LARGE} tokens", _flat, (_LARGE,), max(8, int(4e3 * effort))),
    ]
    return [
        _confirmed(name, partial(test, sampler, *arguments), n, seed)
        for name, test, arguments, n in plan
        if name.startswith(only)
    ]


def uniforms(uniform: Uniform = noise.uniform, effort: float = 1.0, seed: int = 0) -> list[Finding]:
    """The checks of uniforms: how they are distributed, and that neighbours are independent."""
    n = max(40_000, int(1e6 * effort))
    plan: list[tuple[str, Test]] = [
        ("uniform distribution", partial(_kolmogorov_smirnov, uniform)),
        ("uniforms of next positions", partial(_pairs, uniform, 0, 1, 0)),
        ("uniforms of next seeds", partial(_pairs, uniform, 1, 0, 0)),
        ("uniforms of next tokens", partial(_pairs, uniform, 0, 0, 1)),
    ]
    return [_confirmed(name, test, n, seed) for name, test in plan]


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


NOISE_CONTROLS: dict[str, tuple[Sampler, str, str]] = {
    "24 bits": (coarse_sampler(24), "tail", "float32 uniforms: rare tokens come too rarely"),
    "stutter": (_stuttering_sampler, "next position", "two positions have the same noise"),
}
"""Name, wrong sampler, the check of `choices` that must find it, and what is wrong with it."""


def _confirmed(name: str, test: Test, n: int, seed: int) -> Finding:
    p = test(np.random.default_rng([seed, 0]), n)
    if p >= SUSPECT:
        return Finding(name, n, p, True)
    p = test(np.random.default_rng([seed, 1]), RERUN * n)
    return Finding(name, RERUN * n, p, p >= WRONG)


def _logits(rng: np.random.Generator, vocabulary: int) -> Floats:
    return (1.5 * rng.standard_normal(vocabulary)).astype(np.float32)


def _probs(logits: Floats) -> Doubles:
    probs: Doubles = softmax(logits.astype(np.float64))
    return probs


def _seeds(rng: np.random.Generator, n: int) -> Seeds:
    return rng.integers(0, 2**64 - n, n, np.uint64)


def _positions(rng: np.random.Generator, n: int) -> Longs:
    """Consecutive ones, as in a text."""
    return int(rng.integers(0, 2**20)) + np.arange(n)


def _draw(sampler: Sampler, logits: Floats, seeds: Seeds, positions: Longs) -> Longs:
    """Tokens of one distribution, with these seeds at these positions."""
    rows = max(1, _AT_ONCE // len(logits))
    tokens = []
    for start in range(0, len(seeds), rows):
        part = slice(start, start + rows)
        table = np.broadcast_to(logits, (len(seeds[part]), len(logits)))
        tokens.append(sampler(table, seeds[part], positions[part]))
    return np.concatenate(tokens).astype(np.int64)


def _fresh(sampler: Sampler, rng: np.random.Generator, logits: Floats, n: int) -> Longs:
    """Half of them along the positions of one seed, half with a seed each."""
    seeds, positions = _seeds(rng, n), _positions(rng, n)
    seeds[: n // 2] = seeds[0]
    positions[n // 2 :] = positions[0]
    return _draw(sampler, logits, seeds, positions)


def _fit(values: Longs, probs: Doubles) -> float:
    return g_test(np.bincount(values, minlength=len(probs)), probs).p_value


def _marginal(sampler: Sampler, vocabulary: int, rng: np.random.Generator, n: int) -> float:
    logits = _logits(rng, vocabulary)
    return _fit(_fresh(sampler, rng, logits, n), _probs(logits))


def _neighbours(
    sampler: Sampler, seed_step: int, position_step: int, rng: np.random.Generator, n: int
) -> float:
    """Two choices of one distribution, the second with the next seed or at the next position."""
    logits = _logits(rng, 8)
    probs = _probs(logits)
    # Pairs do not overlap, or they would not be independent of each other.
    seeds, positions = _seeds(rng, n), 2 * _positions(rng, n)
    seeds[: n // 2] &= ~np.uint64(1)
    if position_step:
        seeds[: n // 2] = seeds[0]
    first = _draw(sampler, logits, seeds, positions)
    second = _draw(sampler, logits, seeds + np.uint64(seed_step), positions + position_step)
    return _fit(8 * first + second, np.outer(probs, probs).ravel())


def _other_tokens(sampler: Sampler, rng: np.random.Generator, n: int) -> float:
    """The choice among tokens 0 to 3 and the one among 4 to 7, with the same seed and position."""
    logits, seeds, positions = _logits(rng, 8), _seeds(rng, n), _positions(rng, n)
    low, high = logits.copy(), logits.copy()
    low[4:], high[:4] = -np.inf, -np.inf
    first, second = (_draw(sampler, some, seeds, positions) for some in (low, high))
    return _fit(8 * first + second, np.outer(_probs(low), _probs(high)).ravel())


def _tail(sampler: Sampler, vocabulary: int, gap: float, rng: np.random.Generator, n: int) -> float:
    """One token far above a flat rest, and how often one of the rest is chosen."""
    logits = np.full(vocabulary, -gap, np.float32)
    top = int(rng.integers(vocabulary))
    logits[top] = 0
    rare = int((_fresh(sampler, rng, logits, n) != top).sum())
    return float(binomtest(rare, n, 1 - _probs(logits)[top]).pvalue)


def _flat(sampler: Sampler, vocabulary: int, rng: np.random.Generator, n: int) -> float:
    """All tokens alike: none is preferred for where it stands, or for the last bits of its id."""
    tokens = _fresh(sampler, rng, np.zeros(vocabulary, np.float32), n)
    ids = np.arange(vocabulary)
    cells = (ids * 64 // vocabulary, ids % 64)
    p_values = [_fit(cell[tokens], np.bincount(cell) / vocabulary) for cell in cells]
    return min(1.0, 2 * min(p_values))


def _column(values: NDArray[N]) -> NDArray[N]:
    return values[:, np.newaxis]


def _kolmogorov_smirnov(uniform: Uniform, rng: np.random.Generator, n: int) -> float:
    seeds, positions = _column(_seeds(rng, n // 64)), _column(_positions(rng, n // 64))
    return float(kstest(uniform(seeds, positions, np.arange(64)).ravel(), "uniform").pvalue)


def _pairs(
    uniform: Uniform,
    seed_step: int,
    position_step: int,
    token_step: int,
    rng: np.random.Generator,
    n: int,
) -> float:
    """Two uniforms, the second with the next seed, at the next position or of the next token."""
    seeds, tokens = _column(_seeds(rng, n // 64)), 2 * np.arange(64)
    positions = 2 * _column(_positions(rng, n // 64))
    first = uniform(seeds, positions, tokens)
    moved = seeds + np.uint64(seed_step), positions + position_step, tokens + token_step
    cells = 16 * np.floor(16 * first) + np.floor(16 * uniform(*moved))
    return _fit(cells.ravel().astype(int), np.full(256, 1 / 256))
