"""Whether a signal foretells rejection: the area under the ROC curve.

The area is the chance that a rejected token has a larger signal than an accepted one, where a tie
counts half. 1: the signal separates them; .5: it says nothing; below .5: it points the other way.

Only examined tokens count: the accepted ones and the first rejected one of each draft. What became
of the tokens behind a rejection is not known. Raises: InputError for NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError
from foresay.sampling.signals import Signals

__all__ = ["Auc", "auc", "auc_by_signal"]


class Auc(NamedTuple):
    """`area` is None if there is no rejected or no accepted token."""

    area: float | None
    rejected: int
    accepted: int


def auc(signal: Sequence[float] | NDArray[Any], rejected: Sequence[bool] | NDArray[Any]) -> Auc:
    """The area of a signal that is *large* where the drafter is uncertain; for the margin, pass
    its negative. inf is a value like any other.

    Exact: pairs are counted in whole numbers and divided once.
    """
    values, lost = np.asarray(signal), np.asarray(rejected)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iuf"):
        raise InputError(f"signal is {signal!r}; expected one number per token")
    if lost.ndim != 1 or (lost.size and lost.dtype != np.bool_):
        raise InputError(f"rejected is {rejected!r}; expected True or False per token")
    if values.size != lost.size:
        raise InputError(
            f"there are {values.size} signals and {lost.size} outcomes; expected equally many"
        )
    for at in np.flatnonzero(np.isnan(values)):
        raise InputError(f"signal[{at}] is nan; expected a number")
    lost = lost.astype(bool)
    bad, good = int(lost.sum()), int((~lost).sum())
    if not bad or not good:
        return Auc(None, bad, good)
    distinct, rank = np.unique(values, return_inverse=True)
    bad_at = np.bincount(rank[lost], minlength=distinct.size)
    good_at = np.bincount(rank[~lost], minlength=distinct.size)
    good_below = np.cumsum(good_at) - good_at
    half_wins = int((bad_at * (2 * good_below + good_at)).sum())
    return Auc(half_wins / (2 * bad * good), bad, good)


def auc_by_signal(signals: Signals, rejected: Sequence[bool] | NDArray[Any]) -> dict[str, Auc]:
    """The area of each known signal by its name; the margin is turned round."""
    found: dict[str, Auc] = {}
    for name in ("nll", "entropy_bits", "margin", "variance"):
        values = getattr(signals, name)
        if values is not None:
            found[name] = auc(-values if name == "margin" else values, rejected)
    return found
