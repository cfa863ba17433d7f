"""The weight of the Gumbel coupling, how far a draft model follows the target's noise: learned from
what was committed.

The token that comes next has the largest log probability / temperature + noise, and the noise is
known. A model that gives the target's own probabilities finds it by adding all of the noise. One
that is often wrong gains by adding less: then its own likeliest tokens count for more. Which
weight is best depends on the pair of models. Whatever token was committed, it is known which token
each weight would have drafted, so all of them learn from every commit.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["WEIGHTS", "NoiseWeight"]

WEIGHTS = (1.0, 0.85, 0.7, 0.55, 0.4)
"""Those that are compared."""
_PATIENCE = 2.0  # tokens by which another weight must be ahead of all of the noise
_MEMORY = 4096  # tokens after which what was seen counts for half


class NoiseWeight:
    """The weight whose first drafted tokens were committed most often."""

    def __init__(self) -> None:
        self._right = [_PATIENCE] + [0.0] * (len(WEIGHTS) - 1)
        self._seen = 0

    @property
    def value(self) -> float:
        return WEIGHTS[self._right.index(max(self._right))]

    def learn(self, drafted: Sequence[int], committed: int) -> None:
        """`drafted`: the token that each weight finds."""
        self._right = [
            right + (token == committed) for right, token in zip(self._right, drafted, strict=True)
        ]
        self._seen += 1
        if self._seen >= _MEMORY:
            self._right, self._seen = [right / 2 for right in self._right], self._seen // 2
