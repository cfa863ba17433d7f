"""Fewer cases than a full product: those in which every two values of two axes meet.

    @pytest.mark.parametrize(("level", "rows", "bias"), pairs(LEVELS, (1, 3, 8), (False, True)))

Most defects need one value or two that meet. Of three axes and more this leaves about as many cases
as the two longest have; of two it leaves all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

__all__ = ["pairs"]


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Cases, each with one value of every axis: the same in every run, and no two are equal.

    Raises: ValueError if there are fewer than two axes or one has no value.
    """
    values = [list(axis) for axis in axes]
    if len(values) < 2 or not all(values):
        raise ValueError(
            f"axes of {[len(v) for v in values]} values; expected two axes or more, none empty"
        )
    missing = {
        ((i, a), (j, b)): None  # a dict keeps its order, a set of these does not in every run
        for i, j in combinations(range(len(values)), 2)
        for a, b in product(range(len(values[i])), range(len(values[j])))
    }
    cases = []
    while missing:
        case = dict(next(iter(missing)))
        for axis in range(len(values)):
            if axis not in case:
                case[axis] = max(
                    range(len(values[axis])),
                    key=lambda value: sum(p in missing for p in _met(case, axis, value)),
                )
        for met in combinations(sorted(case.items()), 2):
            missing.pop(met, None)
        cases.append(tuple(values[axis][case[axis]] for axis in range(len(values))))
    return cases


def _met(case: dict[int, int], axis: int, value: int) -> Sequence[Any]:
    """The pairs that a value makes with those the case has already."""
    return [tuple(sorted((item, (axis, value)))) for item in case.items()]
