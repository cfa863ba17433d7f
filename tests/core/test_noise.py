"""The kernel that chooses tokens, held against the naive evaluation of its own noise, and the noise
against its twin `foresay.sampling.noise`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from core.brute import int32s
from core.kernels import Floats, bits, choose, normal, on_each_level, wide
from explore import tries
from foresay import _core
from foresay.errors import InputError
from foresay.sampling.noise import MAX_GUMBEL, gumbel, philox, uniform
from foresay.sampling.processors import RowStatus

__all__ = ["on_each_level"]  # every test runs on every level that the machine offers

GOOD, _, NAN, INFINITE, EMPTY = RowStatus
WIDE = 152_064
WIDTHS = (1, 2, 15, 16, 17, 127, 128, 129, 1000)
SHAPES = (  # scale and shift of normal logits; where floats are coarse, so is the kernel's bound
    *((0.0, 0.0), (1e-42, 0.0), (1e-3, 0.0), (1.0, 0.0), (3.0, 5.0), (1e30, 0.0)),
    *((1.0, 1e5), (1.0, -1e5), (1.0, 1e7), (1.0, -1e7), (0.0, 1e8), (0.0, -1e8), (0.0, 3e16)),
)
U32, U64 = 2**32 - 1, 2**64 - 1
KNOWN = (  # Random123's known answers: counter, key, words
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
)


def naive(
    row: Floats, temperature: float, seed: int, position: int, stream: int
) -> tuple[int, float]:
    """Every token's noise, by the kernel's own logarithms; argmax takes the first of equals."""
    if temperature == 0:
        values = row.astype(np.float64)
    else:
        with np.errstate(over="ignore", under="ignore"):
            values = (row / np.float32(temperature)).astype(np.float64)
        values += _core.gumbels(seed, position, np.arange(len(row), dtype=np.int32), stream)
    best = int(values.argmax())
    return best, float(values[best])


def check(row: Floats, temperature: float, seed: int, position: int = 0, stream: int = 0) -> int:
    chosen, values, statuses = choose(row[None], temperature, seed, position, stream=stream)
    assert statuses.tolist() == [GOOD]
    assert (chosen[0], values[0]) == naive(row, temperature, seed, position, stream)
    return int(chosen[0])


def gaussian(rng: np.random.Generator, width: int, scale: float = 1.0) -> Floats:
    return (scale * rng.standard_normal(width)).astype(np.float32)


# ---- the generator -------------------------------------------------------------------------------


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_known_answers(counter: str, key: str, words: str) -> None:
    def read(text: str) -> NDArray[np.uint32]:
        return np.array([int(word, 16) for word in text.split()], np.uint32)

    assert (philox(read(counter), read(key)) == read(words)).all()


@settings(max_examples=tries(200))
@given(
    st.integers(0, U64) | st.sampled_from([0, U32, U32 + 1, U64]),
    st.integers(0, U32) | st.sampled_from([0, U32]),
    st.lists(st.integers(0, 2**31 - 1) | st.sampled_from([0, 2**31 - 1]), max_size=40),
    st.integers(0, U32) | st.sampled_from([0, U32]),
)
def test_noise_is_that_of_the_twin(
    seed: int, position: int, tokens: list[int], stream: int
) -> None:
    ids = int32s(tokens)
    assert (
        _core.uniforms(seed, position, ids, stream) == uniform(seed, position, ids, stream)
    ).all()
    twins = gumbel(seed, position, ids, stream)
    np.testing.assert_allclose(
        _core.gumbels(seed, position, ids, stream), twins, rtol=4 * 2.0**-52, atol=4 * 2.0**-52
    )


def test_the_ceiling_of_the_noise_is_above_its_largest() -> None:
    largest = 1 - 2.0**-53
    assert largest < 1 and MAX_GUMBEL - 0.01 < -np.log(-np.log(largest)) < MAX_GUMBEL


def test_a_negative_token_has_no_noise() -> None:
    with pytest.raises(InputError, match=r"^token -1 is not a token id"):
        _core.uniforms(0, 0, int32s([3, -1]), 0)


# ---- the choice ----------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1e-3, 0.1, 0.7, 1, 1.3, 10])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_choice_is_the_naive_one(width: int, temperature: float) -> None:
    rng = np.random.default_rng([width, int(1000 * temperature)])
    for scale, shift in SHAPES:
        for _ in range(5):
            row = gaussian(rng, width, scale) + np.float32(shift)
            seed, position = int(rng.integers(U64, dtype=np.uint64)), int(rng.integers(U32))
            check(row, temperature, seed, position, stream=int(rng.integers(U32)))


@cache
def naive_in_many(rows: int, width: int) -> list[tuple[int, float]]:
    row = np.zeros(width, np.float32)
    return [naive(row, 1.0, 4, position, 0) for position in range(rows)]


def test_the_choice_is_the_naive_one_in_very_many_rows() -> None:
    """So many that a bound which is too low by a hundredth shows: the closest calls are rare."""
    expected = naive_in_many(30_000, 400)  # the same on all levels
    rows = np.zeros((len(expected), 400), np.float32)
    chosen, values, _ = choose(rows, seed=4, position=range(len(rows)))
    assert list(zip(chosen.tolist(), values.tolist(), strict=True)) == expected


def wide_rows() -> Iterator[tuple[str, Floats]]:
    rng = np.random.default_rng(5)
    yield "normal", gaussian(rng, WIDE)
    yield "peaked", gaussian(rng, WIDE, 4)
    yield "equal", np.zeros(WIDE, np.float32)
    yield "rising", np.linspace(0, 30, WIDE, dtype=np.float32)
    yield "falling", np.linspace(30, 0, WIDE, dtype=np.float32)
    tail = np.zeros(200_000, np.float32)
    tail[77_777] = 12  # about as likely as all others together
    yield "one above a heavy tail", tail
    tail = tail.copy()
    tail[77_777] = 18
    yield "one far above it", tail
    masked = np.full(WIDE, -np.inf, np.float32)
    left = rng.choice(WIDE, 50, replace=False)
    masked[left] = gaussian(rng, 50)
    yield "masked", masked
    mixed = gaussian(rng, WIDE)
    mixed[rng.choice(WIDE, 1000)] = -1e30
    mixed[rng.choice(WIDE, 1000)] = 1e-45
    yield "mixed", mixed


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in wide_rows()])
def test_the_choice_is_the_naive_one_in_wide_rows(row: Floats) -> None:
    for seed in range(4):
        check(row, 1.0, seed, 17)
    check(row, 0.0, 0)
    check(row, 0.6, 1)


@pytest.mark.parametrize("winner", [0, 1, 127, 128, 499, 998, 999])
@pytest.mark.parametrize("temperature", [0, 1])
def test_any_place_can_win(winner: int, temperature: float) -> None:
    row = np.zeros(1000, np.float32)
    row[winner] = 100
    assert check(row, temperature, 3) == winner


def test_the_rarest_noise_wins() -> None:
    """Found by search, one in four thousand million: a first word of which every bit is set."""
    seed, position, rare = 2026, 11306, 20283
    noise = _core.gumbels(seed, position, int32s([0, rare]), 0)
    assert noise[1] > 22.26
    assert check(np.zeros(WIDE, np.float32), 1.0, seed, position) == rare
    row = np.full(WIDE, -100, np.float32)
    row[rare] = 0
    for lead, winner in ((-0.01, rare), (0.01, 0)):  # of token 0
        row[0] = noise[1] - noise[0] + lead
        assert check(row, 1.0, seed, position) == winner


def test_the_largest_floats_are_chosen_from() -> None:
    largest = np.finfo(np.float32).max
    for value in (largest, -largest):
        row = np.full(300, value, np.float32)
        for seed in range(10):
            check(row, 1.0, seed)
        assert check(row, 0.0, 0) == 0
    assert check(np.array([-np.inf, -largest, -np.inf], np.float32), 1.0, 0) == 1
    # So large that the noise is rounded away: the first of the equals wins, as it does when greedy.
    assert check(np.full(300, largest, np.float32), 1.0, 7) == 0


def test_equals_go_to_the_lowest_token() -> None:
    row = np.zeros(1000, np.float32)
    row[[130, 131, 600]] = 2
    assert check(row, 0.0, 0) == 130
    assert check(np.full(1000, -3, np.float32), 0.0, 0) == 0


def test_choices_follow_the_softmax() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    rows = 20_000
    chosen, _, _ = choose(np.tile(logits, (rows, 1)), position=range(rows), seed=11)
    shares = np.bincount(chosen, minlength=4) / rows
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.15, 0.05], atol=0.015)  # four deviations


# ---- rows of invalid logits ----------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("temperature", [0, 0.5])
def test_bad_rows_are_told_apart(width: int, temperature: float) -> None:
    rng = np.random.default_rng(width)
    for place in {0, width // 2, width - 1}:
        rows = np.stack([gaussian(rng, width)] * 4)
        rows[0, place] = np.nan
        rows[1, place] = np.inf
        rows[2] = -np.inf
        chosen, values, statuses = choose(rows, temperature)
        assert statuses.tolist() == [NAN, INFINITE, EMPTY, GOOD]
        assert (chosen[:3] == -1).all() and np.isnan(values[:3]).all()
        assert chosen[3] >= 0 and np.isfinite(values[3])


@pytest.mark.parametrize("temperature", [0, 0.5])
def test_nan_counts_more_than_infinity(temperature: float) -> None:
    for nan, infinity in ((3, 900), (900, 3), (3, 4), (4, 3)):
        row = np.full((1, 1000), 1e6, np.float32)
        row[0, nan], row[0, infinity] = np.nan, np.inf
        assert choose(row, temperature)[2].tolist() == [NAN]


def test_logits_are_judged_after_the_division() -> None:
    row = np.array([[3e38, 0, -3e38]], np.float32)
    assert choose(row, 1e-3)[2].tolist() == [INFINITE]
    assert choose(-row[:, 2:], 1e-3)[2].tolist() == [INFINITE]
    assert choose(row[:, 2:].copy(), 1e-3)[2].tolist() == [EMPTY]


# ---- rows and threads ----------------------------------------------------------------------------


def test_threads_and_neighbours_change_nothing() -> None:
    rng = np.random.default_rng(1)
    rows = gaussian(rng, 40 * 700).reshape(40, 700)
    temperatures = rng.choice([0, 0.5, 1.0], 40).tolist()
    alone = [
        choose(rows[i : i + 1], temperatures[i], 9, i, stream=2)[1].tolist() for i in range(40)
    ]
    for threads in (1, 2, 8):
        _, values, _ = choose(rows, temperatures, 9, range(40), stream=2, threads=threads)
        assert values[:, None].tolist() == alone


def test_no_rows_are_no_choices() -> None:
    chosen, values, statuses = choose(np.zeros((0, 5), np.float32))
    assert chosen.size == values.size == statuses.size == 0


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_bfloat16_is_its_own_value_in_float32(temperature: float) -> None:
    small = bits(normal(4, 9, 700, scale=4))
    small[3, 5], small[4, :] = 0x7FC0, 0xFF80  # NaN; -inf everywhere
    expected = choose(wide(small), temperature, 5, range(9))
    for threads in (1, 3):
        given = choose(small, temperature, 5, range(9), threads=threads)
        for found, same in zip(given, expected, strict=True):
            np.testing.assert_array_equal(found, same)
