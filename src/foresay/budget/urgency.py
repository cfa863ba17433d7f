"""Who is waited for: the weights of requests that all have to end."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["urgency"]

_EARLY = 4  # passes with one token each that a request is taken to have had before its first
_STEEP = 4
_LEAST = 0.2


def urgency(tokens_left: ArrayLike, tokens: ArrayLike, steps: ArrayLike) -> NDArray[np.float64]:
    """What a token more is worth to each request, 0 to 1, where they are waited for together and
    nothing counts but when the last one ends: about the chance to be that one.

    tokens_left    tokens that each answer may still get, at least 1
    tokens  that it has
    steps   in which it got them

    It falls with the passes that a request may still need, as fast as it has been so far. It falls
    steeply, but not at once, because an answer may end long before its tokens_left does. Who would get
    almost nothing gets 0, and need not be asked for.
    """
    rates = (np.asarray(tokens) + _EARLY) / (np.asarray(steps) + _EARLY)
    passes = np.asarray(tokens_left, np.float64) / rates
    worth: NDArray[np.float64] = (passes / passes.max(initial=1e-9)) ** _STEEP
    worth[worth < _LEAST] = 0.0
    return worth
