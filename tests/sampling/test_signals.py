"""How uncertain a distribution is: by hand, in its units."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.errors import InputError, TokenTypeError
from foresay.sampling.signals import (
    Signals,
    entropy,
    margin,
    mc_variance,
    nll,
    nll_of_scores,
    signals_of,
)

ROWS = np.array([[0.5, 0.25, 0.125, 0.125], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])


def test_nll_is_in_nats() -> None:
    found = nll(ROWS, [1, 0, 3])
    assert found.dtype == np.float64
    assert np.allclose(found, [1.3862943611, 0, 1.3862943611])  # log 4, log 1, log 4
    assert nll(ROWS[1], [2]).tolist() == [math.inf]  # probability 0, and one row alone


def test_entropy_in_both_units() -> None:
    assert np.allclose(entropy(ROWS, unit="bits"), [1.75, 0, 2])
    assert np.allclose(entropy(ROWS, unit="nats"), [1.2130075659, 0, 1.3862943611])
    uniform = np.full((1, 8), 1 / 8)
    assert np.allclose(entropy(uniform, unit="bits"), 3)
    assert not np.signbit(entropy(ROWS[1], unit="nats")).any()  # 0, not -0


def test_the_thresholds_of_both_units_agree() -> None:
    """2.5 bits are 1.733 nats."""
    assert math.isclose(2.5 * math.log(2), 1.733, abs_tol=1e-3)
    bits, nats = entropy(ROWS, unit="bits"), entropy(ROWS, unit="nats")
    assert np.allclose(bits * math.log(2), nats)


def test_margin_is_of_probabilities() -> None:
    assert np.allclose(margin(ROWS), [0.25, 1, 0])
    assert np.allclose(margin(np.array([0.1, 0.6, 0.3])), [0.3])  # log .6 - log .3 would be .69


def test_mc_variance_by_hand() -> None:
    passes = np.array([[0.5, 0.5], [0.7, 0.3], [0.9, 0.1]])  # one token, three passes
    of_token, over_vocabulary = mc_variance(passes, [0])
    assert np.allclose(of_token, [0.04])  # (.04 + 0 + .04) / 2
    assert np.allclose(over_vocabulary, [0.04])
    two = np.stack([passes, np.array([[1.0, 0.0]] * 3)], axis=1)  # [3, 2, 2]
    of_token, over_vocabulary = mc_variance(two, [1, 0])
    assert np.allclose(of_token, [0.04, 0])
    assert np.allclose(over_vocabulary, [0.04, 0])
    three = np.array([[0.5, 0.5, 0.0], [0.5, 0.3, 0.2]])
    of_token, over_vocabulary = mc_variance(three, [0])
    assert np.allclose(of_token, [0])
    assert np.allclose(over_vocabulary, [0.04 / 3])  # (0 + .02 + .02) / 3


def test_a_vocabulary_of_one_token_is_certain() -> None:
    one = np.ones((2, 1))
    assert nll(one, [0, 0]).tolist() == [0, 0]
    assert entropy(one, unit="bits").tolist() == [0, 0]
    assert margin(one).tolist() == [1, 1]
    assert mc_variance(np.ones((2, 1, 1)), [0])[0].tolist() == [0]


def test_no_rows_give_no_values() -> None:
    none = np.empty((0, 4))
    assert nll(none, []).size == entropy(none, unit="nats").size == margin(none).size == 0


def test_nll_of_scores_is_of_each_token_alone() -> None:
    assert np.allclose(nll_of_scores([0.5, 0.25, 0.25]), [math.log(2), math.log(2), 0])
    assert nll_of_scores([0.5, 0.0, 0.0]).tolist()[1:] == [math.inf, math.inf]
    assert nll_of_scores([]).size == 0


def test_all_signals_of_rows() -> None:
    found = signals_of(ROWS, [0, 0, 0], np.stack([ROWS, ROWS]))
    assert len(found) == 3
    assert found.nll is not None and np.allclose(found.nll, [math.log(2), 0, math.log(4)])
    assert found.entropy_bits is not None and np.allclose(found.entropy_bits, [1.75, 0, 2])
    assert found.margin is not None and np.allclose(found.margin, [0.25, 1, 0])
    assert found.variance is not None and found.variance.tolist() == [0, 0, 0]
    assert signals_of(ROWS, [0, 0, 0]).variance is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any))
def test_signals_of_any_row_are_in_range(weights: list[int]) -> None:
    row = np.array(weights) / sum(weights)
    bits = float(entropy(row, unit="bits")[0])
    assert 0 <= bits <= math.log2(len(weights)) + 1e-9
    by_hand = -sum(p * math.log2(p) for p in row.tolist() if p)
    assert math.isclose(bits, by_hand, abs_tol=1e-9)
    first, *rest = sorted(row.tolist(), reverse=True)
    assert math.isclose(float(margin(row)[0]), first - max(rest, default=0), abs_tol=1e-12)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5, math.nan]], r"probs\[0, 1\] is nan; expected 0 to 1"),
        ([[1.5, -0.5]], r"probs\[0, 0\] is 1.5"),
        ([[1.0, 0.0], [0.5, 0.2]], r"probs\[1\] sums to 0.7; expected 1"),
        ([[]], "expected rows of probabilities"),
        (["a"], "expected rows of probabilities"),
    ],
)
def test_rows_that_are_no_probabilities(rows: Any, message: str) -> None:
    for call in (margin, lambda r: entropy(r, unit="nats"), lambda r: nll(r, [0] * len(r))):
        with pytest.raises(InputError, match=message):
            call(np.array(rows))


def test_other_input_that_is_not_valid() -> None:
    with pytest.raises(InputError, match="expected 'nats' or 'bits'"):
        entropy(ROWS, unit="dits")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"tokens\[2\] is 4; expected a token id below 4"):
        nll(ROWS, [0, 0, 4])
    with pytest.raises(InputError, match="2 tokens and 3 rows"):
        nll(ROWS, [0, 0])
    with pytest.raises(TokenTypeError):
        nll(ROWS, np.array([0.0, 1.0, 2.0]))
    with pytest.raises(InputError, match="2 or more passes"):
        mc_variance(ROWS[:1], [0])
    with pytest.raises(InputError, match=r"scores\[1\] is 0.6; expected 0 to 0.5"):
        nll_of_scores([0.5, 0.6])
    with pytest.raises(InputError, match=r"scores\[0\] is nan"):
        nll_of_scores([math.nan])
    with pytest.raises(InputError, match=r"margin\[1\] is nan"):
        Signals(margin=np.array([0.0, math.nan]))
    with pytest.raises(InputError, match="expected one length"):
        Signals(nll=np.zeros(2), margin=np.zeros(3))


def test_parts_of_signals_and_signals_joined() -> None:
    one = Signals(nll=np.array([1.0, 2.0, 3.0]), margin=np.array([0.1, 0.2, 0.3]))
    few = one.at([2, 0])
    assert few.nll is not None and few.nll.tolist() == [3, 1] and few.entropy_bits is None
    both = Signals.joined([one.at(slice(1)), few])
    assert both.nll is not None and both.nll.tolist() == [1, 3, 1] and len(both) == 3
    assert both.margin is not None and both.margin.tolist() == [0.1, 0.3, 0.1]
    with pytest.raises(InputError, match="not known for all drafts"):
        Signals.joined([one, Signals(nll=np.zeros(1))])
