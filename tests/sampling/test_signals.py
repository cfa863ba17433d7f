"""How uncertain a distribution is: by hand, in its units."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.errors import InputError, TokenTypeError
from foresay.sampling.signals import Signals, nll_of_scores, signals_of

HALF = [0.5, 0.25, 0.125, 0.125]
ROWS = np.array([HALF, [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
ANY: Any = signals_of  # takes what it refuses, too
PASSES = np.array([[0.5, 0.5], [0.7, 0.3], [0.9, 0.1]])  # one token, three passes


@pytest.mark.parametrize(
    ("rows", "tokens", "nll", "bits", "margin"),
    [
        (ROWS, [1, 0, 3], [math.log(4), 0, math.log(4)], [1.75, 0, 2], [0.25, 1, 0]),
        (ROWS[1], [2], [math.inf], [0], [1]),  # probability 0, and one row alone
        (np.full((1, 8), 1 / 8), [5], [math.log(8)], [3], [0]),
        # log .6 - log .3 would be .69
        (np.array([0.1, 0.6, 0.3]), [2], [-math.log(0.3)], [1.2954618442], [0.3]),
        (np.ones((2, 1)), [0, 0], [0, 0], [0, 0], [1, 1]),  # a vocabulary of one token
        (np.empty((0, 4)), [], [], [], []),
    ],
    ids=["several", "one row", "uniform", "margin", "one token", "none"],
)
def test_by_hand(
    rows: Any, tokens: list[int], nll: list[float], bits: list[float], margin: list[float]
) -> None:
    """NLL in nats, entropy in bits, the margin of probabilities."""
    found = signals_of(rows, tokens)
    assert found.nll is not None and np.allclose(found.nll, nll)
    assert found.entropy_bits is not None and np.allclose(found.entropy_bits, bits)
    assert not np.signbit(found.entropy_bits).any()  # 0, not -0
    assert found.margin is not None and np.allclose(found.margin, margin)
    assert found.variance is None and len(found) == len(tokens)
    assert found.nll.dtype == found.entropy_bits.dtype == found.margin.dtype == np.float64


@pytest.mark.parametrize(
    ("passes", "tokens", "variance"),
    [
        (PASSES, [0], [0.04]),  # (.04 + 0 + .04) / 2
        (np.stack([PASSES, np.array([[1.0, 0.0]] * 3)], axis=1), [1, 0], [0.04, 0]),
        (np.array([[0.5, 0.5, 0.0], [0.5, 0.3, 0.2]]), [0], [0]),
        (np.array([[0.5, 0.5, 0.0], [0.5, 0.3, 0.2]]), [2], [0.02]),
        (np.ones((2, 1, 1)), [0], [0]),
    ],
    ids=["three passes", "two tokens", "equal", "unequal", "one token"],
)
def test_the_variance_over_passes(passes: Any, tokens: list[int], variance: list[float]) -> None:
    rows = passes[0] if passes.ndim == 3 else passes[:1]
    found = signals_of(rows, tokens, passes)
    assert found.variance is not None and np.allclose(found.variance, variance)


def test_nll_of_scores_is_of_each_token_alone() -> None:
    assert np.allclose(nll_of_scores([0.5, 0.25, 0.25]), [math.log(2), math.log(2), 0])
    assert nll_of_scores([0.5, 0.0, 0.0]).tolist()[1:] == [math.inf, math.inf]
    assert nll_of_scores([]).size == 0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_signals_of_any_row_are_in_range(weights: list[int]) -> None:
    row = np.array(weights) / sum(weights)
    found = signals_of(row, [0])
    assert found.entropy_bits is not None and found.margin is not None
    bits = float(found.entropy_bits[0])
    assert 0 <= bits <= math.log2(len(weights)) + 1e-9
    by_hand = -sum(p * math.log2(p) for p in row.tolist() if p)
    assert math.isclose(bits, by_hand, abs_tol=1e-9)
    first, *rest = sorted(row.tolist(), reverse=True)
    assert math.isclose(float(found.margin[0]), first - max(rest, default=0), abs_tol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ANY([[0.5, math.nan]], [0]), r"probs\[0, 1\] is nan; expected 0 to 1"),
        (lambda: ANY([[1.5, -0.5]], [0]), r"probs\[0, 0\] is 1.5"),
        (lambda: ANY([[1.0, 0.0], [0.5, 0.2]], [0, 0]), r"probs\[1\] sums to 0.7; expected"),
        (lambda: ANY([[]], [0]), "expected rows of probabilities"),
        (lambda: ANY([[1.0], [0.5, 0.5]], [0, 0]), "expected rows of probabilities"),
        (lambda: ANY(np.array(["a"]), [0]), "expected rows of probabilities"),
        (lambda: ANY(ROWS, [0, 0, 4]), r"tokens\[2\] is 4; expected a token id below 4"),
        (lambda: ANY(ROWS, [0, 0]), "2 tokens and 3 rows"),
        (lambda: ANY(ROWS, np.zeros(3)), "float64"),
        (lambda: ANY(HALF, [0], ROWS[:1]), "2 or more passes"),
        (lambda: ANY(HALF, [0], PASSES), r"2 or more passes of \[1, 4\]"),
        (lambda: nll_of_scores([0.5, 0.6]), r"scores\[1\] is 0.6; expected 0 to 0.5"),
        (lambda: nll_of_scores([math.nan]), r"scores\[0\] is nan"),
        (lambda: Signals(margin=np.array([0.0, math.nan])), r"margin\[1\] is nan"),
        (lambda: Signals(nll=np.zeros(2), margin=np.zeros(3)), "expected one length"),
    ],
)
def test_what_is_not_valid(call: Any, message: str) -> None:
    with pytest.raises((InputError, TokenTypeError), match=message):
        call()


def test_parts_of_signals_and_signals_joined() -> None:
    one = Signals(nll=np.array([1.0, 2.0, 3.0]), margin=np.array([0.1, 0.2, 0.3]))
    few = one.at([2, 0])
    assert few.nll is not None and few.nll.tolist() == [3, 1] and few.entropy_bits is None
    both = Signals.joined([one.at(slice(1)), few])
    assert both.nll is not None and both.nll.tolist() == [1, 3, 1] and len(both) == 3
    assert both.margin is not None and both.margin.tolist() == [0.1, 0.3, 0.1]
    with pytest.raises(InputError, match="1 of 2 items have margin; expected it in all"):
        Signals.joined([one, Signals(nll=np.zeros(1))])
