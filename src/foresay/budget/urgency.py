"""What a token is worth to each request where the caller waits for all answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["urgency", "worth_of_tokens"]

_EARLY = 4  # passes with one token each that a request is taken to have had before its first
_STEEP = 4
_LEAST = 0.2


def urgency(tokens_left: ArrayLike, tokens: ArrayLike, steps: ArrayLike) -> NDArray[np.float64]:
    """How likely each request is to end last, 0 to 1, compared to the likeliest.

    tokens_left  tokens that each answer may still get, at least 1
    tokens       tokens that it has
    steps        steps in which it got them

    The weight falls with the steps that a request may still need at its speed so far. It falls
    steeply, but not at once, because an answer may end long before max_tokens. A weight near 0
    becomes 0.
    """
    rates = (np.asarray(tokens) + _EARLY) / (np.asarray(steps) + _EARLY)
    passes = np.asarray(tokens_left, np.float64) / rates
    worth: NDArray[np.float64] = (passes / passes.max(initial=1e-9)) ** _STEEP
    worth[worth < _LEAST] = 0.0
    return worth


def worth_of_tokens(urgencies: NDArray[np.float64], rows_share: float) -> NDArray[np.float64]:
    """What a token more is worth to each request, in tokens that all requests get alike.

    rows_share  the share of a plain step's time that goes with its rows, 0 to 1; the rest is there
                as long as any request runs

    A token more ends its request a step sooner. That saves a row of a step, whoever gets it, and
    the rest of a step if the request is the last one. So where rows cost next to nothing, the
    requests that end last count alone; where they cost all of the time, all count alike.
    """
    requests, total = len(urgencies), float(urgencies.sum())
    if not total:
        return np.ones(requests)
    return rows_share + (1.0 - rows_share) * requests * urgencies / total
