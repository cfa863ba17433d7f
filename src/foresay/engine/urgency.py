"""Who is waited for: the weights of requests that all have to end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from foresay.engine.request import Request

__all__ = ["urgency"]

_EARLY = 4  # passes with one token each that a request is taken to have had before its first
_STEEP = 4
_LEAST = 0.2


def urgency(requests: Sequence[Request]) -> NDArray[np.float64] | None:
    """What a token more is worth to each request, 0 to 1, where they are waited for together and
    nothing counts but when the last one ends: about the chance to be that one. None where
    somebody reads along, and every token counts alike.

    It falls with the passes that a request may still need, as fast as it has been so far. It falls
    steeply, but not at once, because an answer may end long before its room does. Who would get
    almost nothing gets 0, and need not be asked for.

    Mutates: nothing. Valid until: the next step. Raises: nothing. GIL: held.
    """
    if len(requests) < 2 or not all(request.together for request in requests):
        return None
    room = np.array([request.room for request in requests], np.float64)
    stats = [request.stats for request in requests]
    rates = np.array([(s.tokens + _EARLY) / (s.steps + _EARLY) for s in stats])
    passes = room / rates
    worth: NDArray[np.float64] = (passes / passes.max()) ** _STEEP
    worth[worth < _LEAST] = 0.0
    return worth
