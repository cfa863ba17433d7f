"""Which requests are likely to end last: weights where the caller waits for all answers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["urgency"]

_EARLY = 4  # passes with one token each that a request is taken to have had before its first
_STEEP = 4
_LEAST = 0.2


def urgency(tokens_left: ArrayLike, tokens: ArrayLike, steps: ArrayLike) -> NDArray[np.float64]:
    """What a token more is worth to each request, 0 to 1, where only the end of the last one
    counts: about the chance to be that one.

    tokens_left  tokens that each answer may still get, at least 1
    tokens       tokens that it has
    steps        steps in which it got them

    The weight falls with the steps that a request may still need at its speed so far. It falls
    steeply, but not at once, because an answer may end long before max_tokens. A weight near 0
    becomes 0, so that nothing is drafted for that request.
    """
    rates = (np.asarray(tokens) + _EARLY) / (np.asarray(steps) + _EARLY)
    passes = np.asarray(tokens_left, np.float64) / rates
    worth: NDArray[np.float64] = (passes / passes.max(initial=1e-9)) ** _STEEP
    worth[worth < _LEAST] = 0.0
    return worth
