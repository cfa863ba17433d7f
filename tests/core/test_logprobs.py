"""The likeliest tokens and the log probabilities of the core, against torch in float64; and that a
row's bits do not depend on its batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from core.kernels import LEVEL, Floats, bits, normal, on_each_level, wide
from foresay import _core

__all__ = ["on_each_level"]  # every test runs on every level that the machine offers

WIDTHS = (1, 2, 15, 16, 17, 127, 128, 129, 1000)
SHAPES = (  # scale and shift of normal logits
    *((0.0, 0.0), (1e-42, 0.0), (1e-3, 5.0), (1.0, 0.0), (3.0, 5.0), (30.0, -100.0), (300.0, 0.0)),
    *((1.0, 1e5), (1e4, 0.0), (1e30, 0.0), (1e37, 0.0), (0.0, 3e38), (0.0, -3e38)),
)
VOCABULARY = 49_152


def topk(logits: NDArray[Any], k: int, threads: int = 1) -> tuple[NDArray[np.int32], Floats]:
    return _core.topk(logits, k, threads=threads, level=LEVEL[0])


def logprobs(
    logits: NDArray[Any],
    rows: NDArray[np.int64],
    tokens: NDArray[np.int32],
    temperature: float | Floats = 1.0,
    top: int = 0,
    threads: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.float64]]:
    return _core.token_logprobs(
        logits,
        rows=rows,
        tokens=tokens,
        temperatures=np.full(len(rows), temperature, np.float32),
        top=top,
        threads=threads,
        level=LEVEL[0],
    )


def kinds(values: Floats) -> list[tuple[NDArray[Any], Floats]]:
    """What the core is given, and the numbers that it stands for."""
    return [(values, values), (bits(values), wide(bits(values)))]


def wanted(values: Floats, temperature: float = 1.0) -> NDArray[np.float64]:
    scaled = torch.from_numpy(values / np.float32(temperature)).double()
    return torch.log_softmax(scaled, dim=-1).numpy()


def order(values: Floats, k: int) -> NDArray[np.int64]:
    """The k likeliest: by value, of equals the smaller id."""
    return np.lexsort((np.broadcast_to(np.arange(values.shape[1]), values.shape), -values))[:, :k]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_likeliest(width: int) -> None:
    for shape in SHAPES:
        check_the_likeliest(width, shape)


def check_the_likeliest(width: int, shape: tuple[float, float]) -> None:
    for given, values in kinds(normal(width, 4, width, scale=shape[0], shift=shape[1])):
        for k in {0, 1, min(8, width), min(16, width), width}:
            tokens, found = topk(given, k)
            assert tokens.dtype == np.int32 and found.dtype == np.float32
            assert tokens.shape == found.shape == (4, k)
            first = order(values, k)
            assert np.array_equal(tokens, first)
            there = np.take_along_axis(wanted(values), first, axis=1)
            np.testing.assert_allclose(found, there, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
def test_log_probabilities(width: int) -> None:
    for shape in SHAPES:
        check_log_probabilities(width, shape)


def check_log_probabilities(width: int, shape: tuple[float, float]) -> None:
    rng = np.random.default_rng(width)
    rows, tokens = rng.integers(0, 4, 6), rng.integers(0, width, 6).astype(np.int32)
    top = min(width, 5)
    for given, values in kinds(normal(width, 4, width, scale=shape[0], shift=shape[1])):
        for temperature in (1.0, 0.7, 3.0):
            if float(np.abs(values).max()) / temperature > 3.4e38:
                continue  # test_a_quotient_that_is_too_large
            right = wanted(values, temperature)[rows]
            own, top_tokens, top_own = logprobs(given, rows, tokens, temperature, top)
            assert own.dtype == top_own.dtype == np.float64 and top_tokens.dtype == np.int32
            np.testing.assert_allclose(own, right[np.arange(6), tokens], rtol=1e-15, atol=1e-13)
            first = order(values[rows], top)
            assert np.array_equal(top_tokens, first)
            there = np.take_along_axis(right, first, axis=1)
            np.testing.assert_allclose(top_own, there, rtol=1e-15, atol=1e-13)


@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 10.0])
def test_a_whole_vocabulary(scale: float) -> None:
    """Sharp and flat: all of it is in the sum."""
    rows, tokens = np.arange(3), np.array([0, 7, VOCABULARY - 1], np.int32)
    for given, values in kinds(normal(5, 3, VOCABULARY, scale=scale)):
        own, top_tokens, _ = logprobs(given, rows, tokens, top=16)
        np.testing.assert_allclose(own, wanted(values)[rows, tokens], rtol=0, atol=1e-13)
        found, roughly = topk(given, 16)
        assert np.array_equal(found, order(values, 16)) and np.array_equal(top_tokens, found)
        there = np.take_along_axis(wanted(values), order(values, 16), axis=1)
        np.testing.assert_allclose(roughly, there, rtol=0, atol=2e-6)


def test_of_equals_the_smaller_id() -> None:
    draw = np.random.default_rng(3)
    values = draw.integers(-3, 3, (40, 700)).astype(np.float32)
    values[0], values[1, ::2], values[2, 40:] = 0.0, -0.0, -np.inf
    values[3] = np.arange(700)  # rises: all of it passes through the k
    rows, tokens = np.arange(40), np.zeros(40, np.int32)
    for given, numbers in kinds(values):
        for k in (1, 2, 5, 20, 100, 699, 700):
            found, there = topk(given, k)
            assert np.array_equal(found, order(numbers, k))
            assert np.array_equal(np.isneginf(there), found_below(numbers, found))
            _, again, exact = logprobs(given, rows, tokens, top=k)
            assert np.array_equal(again, found)
            assert np.array_equal(np.isneginf(exact), found_below(numbers, found))


def found_below(values: Floats, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.isneginf(np.take_along_axis(values, tokens.astype(np.int64), axis=1))


@pytest.mark.parametrize("width", [1, 3, 128, 300])
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_rows_that_are_invalid(width: int, at: int, bad: float) -> None:
    values = normal(width, 3, width)
    values[1, at if bad > -np.inf or np.isnan(bad) else slice(None)] = bad
    k = min(width, 2)
    rows, tokens = np.array([1, 0, 1]), np.full(3, width - 1, np.int32)
    for given in (values, bits(values)):
        found, there = topk(given, k, threads=2)
        assert (found[1] == -1).all() and np.isneginf(there[1]).all()
        assert (found[::2] >= 0).all() and np.isfinite(there[::2]).all()
        own, top_tokens, top_own = logprobs(given, rows, tokens, top=k)
        assert np.isnan(own).tolist() == [True, False, True]
        assert np.isnan(top_own[::2]).all() and np.isfinite(top_own[1]).all()
        assert top_tokens[0].tolist() == list(range(k)), "tokens that there are"


def test_a_quotient_that_is_too_large() -> None:
    """Judged after the division, as a choice is."""
    values, rows = np.array([[3e38, 0, 1]], np.float32), np.array([0])
    assert np.isnan(logprobs(values, rows, np.array([0], np.int32), 1e-3)[0][0])
    assert logprobs(values, rows, np.array([0], np.int32))[0][0] == 0
    assert logprobs(values, rows, np.array([1], np.int32))[0][0] == -float(values[0, 0])


def test_temperature_0_has_all_on_one_token() -> None:
    values = np.array([[1, 4, 4, -np.inf]] * 4, np.float32)
    for given in (values, bits(values)):
        own, tokens, top = logprobs(given, np.arange(4), np.arange(4, dtype=np.int32), 0.0, top=2)
        assert own.tolist() == [-np.inf, 0, -np.inf, -np.inf]
        assert tokens[0].tolist() == [1, 2] and top[0].tolist() == [0, -np.inf]


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_neither_batch_nor_threads_change_a_bit(temperature: float) -> None:
    values = normal(11, 23, 5003, scale=4.0)
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, values.shape[1], len(values)).astype(np.int32)
    for given in (values, bits(values)):
        alone: list[Any] = [
            logprobs(given[i : i + 1].copy(), np.array([0]), tokens[i : i + 1], temperature, 4)
            for i in range(len(given))
        ]
        few: list[Any] = [topk(given[i : i + 1].copy(), 4) for i in range(len(given))]
        for threads in (1, 2, 5):
            some = rng.permutation(len(given))[:17]
            found: Any = logprobs(given, some, tokens[some], temperature, 4, threads)
            for i, row in enumerate(some):
                assert [one[i].tobytes() for one in found] == [
                    one[0].tobytes() for one in alone[row]
                ]
            whole: Any = topk(given, 4, threads)
            for i in range(len(given)):
                assert [one[i].tobytes() for one in whole] == [one[0].tobytes() for one in few[i]]


def test_bfloat16_is_what_its_numbers_are() -> None:
    small = bits(normal(2, 5, 3000, scale=5.0))
    rows, tokens = np.arange(5), np.arange(5, dtype=np.int32)
    found: list[Any] = [
        [*topk(given, 9), *logprobs(given, rows, tokens, 0.9, 3)] for given in (small, wide(small))
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_nothing_is_asked() -> None:
    none = np.empty((0, 7), np.float32)
    assert [found.shape for found in topk(none, 3)] == [(0, 3), (0, 3)]
    assert [found.shape for found in topk(np.zeros((2, 7), np.float32), 0)] == [(2, 0), (2, 0)]
    empty = logprobs(none, np.empty(0, np.int64), np.empty(0, np.int32), top=2)
    assert [found.shape for found in empty] == [(0,), (0, 2), (0, 2)]
