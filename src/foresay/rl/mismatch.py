"""How far the trainer's log probabilities are from those of the rollout.

Both are of the same tokens, weights and temperature; what is left is rounding. A larger difference
means that the rollout was sampled from another distribution than the trainer believes.
"""

from __future__ import annotations

import numpy as np

from foresay.arrays import FloatsLike
from foresay.errors import InputError

__all__ = ["difference"]


def difference(rollout: FloatsLike, trainer: FloatsLike) -> dict[str, float]:
    """The absolute difference of log probabilities, mean and max, and the mean of the importance
    ratio (trainer over rollout); 0, 0 and 1 without tokens.

    Raises: InputError for arrays of different lengths, or a value that is not finite.
    """
    ours, theirs = np.asarray(rollout, np.float64), np.asarray(trainer, np.float64)
    if ours.ndim != 1 or ours.shape != theirs.shape:
        raise InputError(
            f"log probabilities have shapes {ours.shape} and {theirs.shape}; expected one of each "
            "for every token"
        )
    for name, values in (("rollout", ours), ("trainer", theirs)):
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            raise InputError(
                f"the {name}'s log probability {wrong[0]} is {values[wrong[0]]}; expected that of "
                "a token that occurred, a finite number"
            )
    if not len(ours):
        return {"mean": 0.0, "max": 0.0, "ratio": 1.0}
    apart = theirs - ours
    return {
        "mean": float(np.abs(apart).mean()),
        "max": float(np.abs(apart).max()),
        "ratio": float(np.exp(apart).mean()),
    }
