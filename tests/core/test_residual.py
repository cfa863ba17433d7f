"""The residual distribution, held against naive numpy; numbers of which all sums are exact where a
decision hangs on them."""

from __future__ import annotations

import numpy as np
import pytest

from core.arrays import longs
from core.kernels import (
    Doubles,
    Each,
    Floats,
    draw,
    normal,
    on_each_level,
    softmax_into,
    subtract_rows,
    sums_of,
)

__all__ = ["on_each_level"]  # every test runs on every level that the machine offers

GOOD, NAN, INFINITE, EMPTY = 0, 2, 3, 4
WIDTHS = (1, 2, 31, 32, 33, 511, 512, 513, 1500)
TINY = np.finfo(np.float64).tiny


def softmax(
    scores: Floats, temperature: Each = 1.0, threads: int = 1
) -> tuple[Doubles, Doubles, list[int]]:
    """Every row into that of the same number."""
    residual, all_rows = np.full(scores.shape, -7.0), np.arange(len(scores))
    return residual, *softmax_into(residual, all_rows, scores, all_rows, temperature, threads)


def subtract(
    residual: Doubles, probs: Floats, totals: Doubles, of: Doubles, threads: int = 1
) -> Doubles:
    every = np.arange(len(residual))
    return subtract_rows(residual, every, probs, every, totals, of, threads)


# ---- softmax -------------------------------------------------------------------------------------


def naive(row: Floats, temperature: float) -> Doubles:
    if temperature == 0:
        one: Doubles = np.eye(1, len(row), int(row.argmax()))[0]
        return one
    scaled = (row / np.float32(temperature)).astype(np.float64)
    expected: Doubles = np.exp(scaled - scaled.max())
    return expected


def assert_close(found: Doubles, expected: Doubles) -> None:
    """Two units in the last place; below the smallest normal number, 0 will do."""
    flushed = (found == 0) & (expected < 1.01 * TINY)
    assert (flushed | (np.abs(found - expected) <= 2 * np.spacing(expected))).all()


@pytest.mark.parametrize("scale", [0, 1e-42, 1e-3, 1, 30, 300, 1e30])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_residual_is_the_naive_one(width: int, scale: float) -> None:
    temperatures = [0, 0.001, 0.3, 1, 1.7, 50] if scale < 1e30 else [0, 0.3, 1, 1.7, 50]
    for temperature in temperatures:
        rows = normal(width, 3, width, scale=scale)
        residual, totals, statuses = softmax(rows, temperature)
        assert statuses == [GOOD] * 3
        for row, found, total in zip(rows, residual, totals, strict=True):
            assert_close(found, naive(row, temperature))
            assert found.max() == 1
            np.testing.assert_allclose(total, found.sum(), rtol=1e-14)


def test_the_exponential_over_its_whole_range() -> None:
    """Differences of floats have more bits than floats: each top moves all arguments."""
    rng = np.random.default_rng(0)
    for top in (0, 1e-3, 1 / 3, 0.7, 5.3, 1234.567):
        rows = np.concatenate(
            [
                -np.geomspace(1e-45, 760, 30_000),
                -rng.uniform(0, 760, 100_000),
                -rng.uniform(700, 750, 30_000),
                -np.arange(1100) * np.log(2),
                -(np.arange(1100) + 0.5) * np.log(2),  # where the reduction is at its worst
                [-1e4, -1e30, -np.finfo(np.float32).max, -np.inf, -0.0, 0.0],
            ]
        ).astype(np.float32)
        row = np.minimum(rows + np.float32(top), np.float32(top))
        assert row.max() == np.float32(top)
        residual, _, _ = softmax(row[None])
        assert_close(residual[0], naive(row, 1))
        assert (residual[0][row < -1e3] == 0).all() or top > 1000
        assert (residual[0][row - np.float32(top) > -708] > 0).all()


def test_minus_infinity_weighs_nothing() -> None:
    row = np.array([[-np.inf, 2, -np.inf, 1]], np.float32)
    for temperature in (0, 0.5, 1):
        residual, _, statuses = softmax(row, temperature)
        assert statuses == [GOOD] and (residual[0, [0, 2]] == 0).all() and residual[0, 1] == 1


def test_greedy_is_the_first_of_equals() -> None:
    row = np.zeros((1, 1000), np.float32)
    row[0, [130, 131, 600]] = 2
    residual, totals, _ = softmax(row, 0.0)
    assert np.flatnonzero(residual[0]).tolist() == [130] and residual[0, 130] == totals[0] == 1


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("temperature", [0, 0.5])
def test_bad_rows_are_told_apart(width: int, temperature: float) -> None:
    for place in {0, width // 2, width - 1}:
        rows = normal(width, 5, width)
        rows[[0, 4], place] = np.nan
        rows[1, place] = np.inf
        rows[2] = -np.inf
        rows[4, (place + 1) % width] = np.inf if width > 1 else np.nan
        residual, totals, statuses = softmax(rows, temperature)
        assert statuses == [NAN, INFINITE, EMPTY, GOOD, NAN]
        assert (residual[[0, 1, 2, 4]] == 1).all()
        assert (totals[[0, 1, 2, 4]] == width).all()


def test_scores_are_judged_after_the_division() -> None:
    rows = np.array([[3e38, 0], [-3e38, -3e38], [3e38, -3e38]], np.float32)
    assert softmax(rows, [1e-3, 1e-3, 1])[2] == [INFINITE, EMPTY, GOOD]


def test_only_the_walks_that_are_named_are_written() -> None:
    scores, residual = normal(0, 6, 40), np.full((4, 40), -7.0)
    totals, _ = softmax_into(residual, longs(3, 0), scores, longs(5, 2), threads=2)
    expected = softmax(scores)
    assert (residual[[3, 0]] == expected[0][[5, 2]]).all() and (residual[1:3] == -7).all()
    assert (totals == expected[1][[5, 2]]).all()


# ---- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_are_the_naive_ones(width: int) -> None:
    probs = np.abs(normal(width, 5, width))
    sums, least = sums_of(probs, longs(3, 3, 0), 2)
    np.testing.assert_allclose(sums, probs[[3, 3, 0]].sum(axis=1, dtype=np.float64), rtol=1e-14)
    assert (least == probs[[3, 3, 0]].min(axis=1)).all()
    for place in {0, width // 2, width - 1}:
        for value in (np.nan, np.inf, -np.inf, -1e-45):
            bad = np.tile(probs[0], (2, 1))
            bad[0, place] = value
            sums, least = sums_of(bad, longs(0, 1), 1)
            right = (sums < np.inf) & (least >= 0)
            assert right.tolist() == [False, True], (place, value)


def test_the_least_floats_are_counted() -> None:
    sums, least = sums_of(np.full((1, 100), 1e-45, np.float32), longs(0), 1)
    assert sums[0] == 100 * 2.0**-149 and least[0] == np.float32(1e-45)


# ---- subtract ------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_what_is_left_is_the_naive_rest(width: int) -> None:
    rng = np.random.default_rng(width)
    residual = rng.integers(0, 50, (20, width)).astype(np.float64)  # whole numbers: all is exact
    probs = rng.integers(0, 50, (20, width)).astype(np.float32)
    residual[0], probs[1], residual[2] = 0, 0, 1.5 * probs[2]
    residual[3, :-1] = 0  # the rest is in the last token, if anywhere
    totals, sums = 2 * probs.sum(axis=1, dtype=np.float64), probs.sum(axis=1, dtype=np.float64)
    sums[sums == 0] = 1
    rest = np.maximum(residual - probs * (totals / sums)[:, None], 0)
    some = rest.sum(axis=1) > 0
    expected = np.where(some[:, None], rest, residual)
    new = subtract(residual, probs, totals, sums, threads=3)
    np.testing.assert_array_equal(residual, expected)
    np.testing.assert_array_equal(new, np.where(some, rest.sum(axis=1), totals))


def test_what_is_left_of_laws() -> None:
    scores = normal(1, 4, 3000, scale=2)
    probs = np.exp(normal(2, 4, 3000, scale=2))
    residual, totals, _ = softmax(scores)
    sums, _ = sums_of(probs, np.arange(4), 1)
    before = residual.copy()
    new = subtract(residual, probs, totals, sums)
    rest = np.maximum(before - probs * (totals / sums)[:, None], 0)
    np.testing.assert_allclose(residual, rest, atol=1e-15)
    assert (residual >= 0).all() and (residual == 0).any(axis=1).all()
    np.testing.assert_allclose(new, residual.sum(axis=1), rtol=1e-14)


def test_where_nothing_is_left_all_stays() -> None:
    probs = np.full((2, 2000), 0.25, np.float32)
    residual = np.full((2, 2000), 0.5)
    residual[1, 1999] = 0.75
    new = subtract(residual, probs, np.full(2, 1000.0), np.full(2, 500.0))
    assert new.tolist() == [1000, 0.25] and (residual[0] == 0.5).all()
    assert (residual[1, :-1] == 0).all() and residual[1, -1] == 0.25


def test_walks_and_rows_of_a_subtraction() -> None:
    residual, probs = np.full((3, 8), 5.0), np.zeros((4, 8), np.float32)
    probs[3, 6], probs[1, 2] = 1, 1
    new = subtract_rows(residual, longs(2, 0), probs, longs(3, 1), np.full(2, 3.0), np.ones(2), 2)
    expected = np.full((3, 8), 5.0)
    expected[2, 6] = expected[0, 2] = 2
    assert (residual == expected).all() and new.tolist() == [37, 37]


# ---- draw ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
def test_draws_are_the_naive_ones(width: int) -> None:
    rng = np.random.default_rng(width)
    residual = rng.integers(0, 4, (200, width)).astype(np.float64)
    residual[:50] *= rng.random((50, width)) < 0.01
    residual[np.arange(200), rng.integers(0, width, 200)] += 1
    totals = residual.sum(axis=1)
    coins = rng.integers(0, 1 << 20, 200) / (1 << 20)
    coins[:20], coins[20:40], coins[50:70] = 0, 1 - 2.0**-53, 1 - 2.0**-53
    expected = [
        int(np.searchsorted(np.cumsum(row), coin * total, side="right"))
        for row, coin, total in zip(residual, coins, totals, strict=True)
    ]
    for threads in (1, 2, 7):
        drawn = draw(residual, coins, threads)
        assert drawn.tolist() == expected
    assert (residual[np.arange(200), drawn] > 0).all()


def test_a_goal_on_an_edge_belongs_to_the_next_token() -> None:
    residual = np.tile([0.0, 1, 0, 1, 2, 0], (4, 1))
    drawn = draw(residual, np.array([0, 0.25, 0.5, 0.75]), 1)
    assert drawn.tolist() == [1, 3, 4, 4]


def test_roundings_never_draw_what_has_no_weight() -> None:
    rng = np.random.default_rng(3)
    for scale in (1.0, 1e-300, 5e-324, 1e300):
        residual = np.maximum(rng.random((300, 1100)) - 0.5, 0) * scale
        residual[:, 700:] = 0
        residual[:150, 512:] = 0  # nothing in the last blocks
        residual[:, 0] = scale
        coins = np.where(np.arange(300) % 2, 1 - 2.0**-53, rng.random(300))
        drawn = draw(residual, coins, 2)
        assert (residual[np.arange(300), drawn] > 0).all()
        sums = np.cumsum(residual, axis=1)
        near = sums[np.arange(300), drawn] / sums[:, -1]
        assert (near >= coins * (1 - 1e-12)).all()


# ---- all -----------------------------------------------------------------------------------------


def test_threads_and_neighbours_change_nothing() -> None:
    scores, probs = normal(5, 17, 700, scale=3), np.exp(normal(6, 17, 700))
    temperatures = np.resize([0, 0.5, 1.0], 17).tolist()
    coins = np.random.default_rng(7).random(17)

    def run(rows: slice, threads: int) -> list[list[object]]:
        residual, totals, statuses = softmax(scores[rows], temperatures[rows], threads)
        count = len(totals)
        sums, least = sums_of(probs[rows], np.arange(count), threads)
        new = subtract(residual, probs[rows], totals, sums, threads)
        drawn = draw(residual, coins[rows], threads)
        columns = (residual, totals, statuses, sums, least, new, drawn)
        return [list(row) for row in zip(*(np.asarray(c).tolist() for c in columns), strict=True)]

    alone = [run(slice(i, i + 1), 1)[0] for i in range(17)]
    for threads in (1, 2, 3, 16, 256):
        assert run(slice(0, 17), threads) == alone


def test_no_rows_are_no_results() -> None:
    none, some = np.empty((0, 5), np.float32), np.ones((2, 5), np.float32)
    assert [len(part) for part in softmax(none)] == [0, 0, 0]
    assert [len(part) for part in sums_of(some, longs(), 1)] == [
        0,
        0,
    ]
    assert len(subtract(np.empty((0, 5)), some, np.empty(0), np.empty(0))) == 0
    assert len(draw(np.empty((0, 5)), np.empty(0), 1)) == 0
