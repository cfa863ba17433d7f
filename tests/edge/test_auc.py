"""The area under the ROC curve, by hand and against all pairs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.edge.gating import Auc, auc, auc_by_signal
from foresay.errors import InputError
from foresay.sampling.signals import Signals


def test_auc_by_hand() -> None:
    assert auc([1, 2, 3, 4], [False, False, True, True]) == Auc(1.0, 2, 2)
    assert auc([4, 3, 2, 1], [False, False, True, True]) == Auc(0.0, 2, 2)
    assert auc([1, 1], [False, True]) == Auc(0.5, 1, 1)
    assert auc([1, 2, 2, 3], [False, True, False, True]) == Auc(3.5 / 4, 2, 2)
    assert auc([0.0, math.inf, math.inf], [False, True, False]) == Auc(0.75, 1, 2)


def test_auc_of_one_class_is_not_known() -> None:
    assert auc([1.0, 2.0], [True, True]) == Auc(None, 2, 0)
    assert auc([1.0], [False]) == Auc(None, 0, 1)
    assert auc([], []) == Auc(None, 0, 0)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30))
def test_auc_against_all_pairs(tokens: list[tuple[int, bool]]) -> None:
    bad = [value for value, rejected in tokens if rejected]
    good = [value for value, rejected in tokens if not rejected]
    wins = sum(Fraction((b > g) * 2 + (b == g), 2) for b in bad for g in good)
    found = auc([value for value, _ in tokens], [rejected for _, rejected in tokens])
    area = float(wins / (len(bad) * len(good))) if bad and good else None
    assert found == Auc(area, len(bad), len(good))


def test_auc_of_each_signal_turns_the_margin_round() -> None:
    uncertain = [True, False]
    signals = Signals(nll=np.array([2.0, 0.1]), margin=np.array([0.1, 0.9]))
    assert auc_by_signal(signals, uncertain) == {"nll": Auc(1.0, 1, 1), "margin": Auc(1.0, 1, 1)}


def test_auc_of_input_that_is_not_valid() -> None:
    with pytest.raises(InputError, match=r"signal\[0\] is nan"):
        auc([math.nan], [True])
    with pytest.raises(InputError, match="2 signals and 1 outcomes"):
        auc([1.0, 2.0], [True])
    with pytest.raises(InputError, match="expected True or False"):
        auc([1.0], [2])  # type: ignore[list-item]
