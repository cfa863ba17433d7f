"""How many cases are tried: pairs leaves few, and every two values meet in one of them; a property
has as many as it asks for, and ten times as many where new ones are sought."""

from __future__ import annotations

from itertools import combinations, product

import pytest

import explore
from pairs import pairs


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2, 2), (2, 3, 4, 5), (1, 4, 3), (3, 3, 3, 3)])
def test_every_two_values_meet(sizes: tuple[int, ...]) -> None:
    cases = pairs(*map(range, sizes))
    for i, j in combinations(range(len(sizes)), 2):
        assert {(case[i], case[j]) for case in cases} == set(
            product(range(sizes[i]), range(sizes[j]))
        )
    assert len(set(cases)) == len(cases)


def test_few_cases() -> None:
    assert len(pairs(*[range(3)] * 4)) <= 13  # of 81; 9 is the least
    assert len(pairs(range(6), range(5), range(2), range(2))) <= 32  # of 120; 30 is the least
    assert pairs("ab", (1, 2)) == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_values_that_cannot_be_hashed_or_compared() -> None:
    assert len(pairs([{}, []], [None, object()], [1, "x"])) == 4


@pytest.mark.parametrize("axes", [(), ((1, 2),), ((1, 2), ())])
def test_refused(axes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="expected two axes or more"):
        pairs(*axes)


def test_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    for times in (1, 10):
        monkeypatch.setattr(explore, "TIMES", times)
        assert explore.examples(7).max_examples == 7 * times
