"""What was so lately: the mean and the median of the last observations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

__all__ = ["MEMORY", "RecentMean", "RecentMedian"]

MEMORY = 32
"""Steps, or drafts, that count: some ten lines of a text, which may change its nature as fast."""
_MEDIAN_OF = 5  # observations: two outliers, such as a library's loading, change nothing


class RecentMean:
    """A mean that follows about the last `memory` observations, from `value` on, which counts as
    `count` of them."""

    __slots__ = ("count", "memory", "value")

    def __init__(self, value: float = 0.0, count: int = 0, memory: int = MEMORY) -> None:
        self.memory = memory
        self.value = value
        self.count = count

    def observe(self, value: float) -> None:
        """One observation more."""
        self.count = min(self.count + 1, self.memory)
        self.value += (value - self.value) / self.count


class RecentMedian:
    """The median of the last few observations; 0 before the first."""

    __slots__ = ("_last", "value")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=_MEDIAN_OF)
        self.value = 0.0

    def observe(self, value: float) -> None:
        """One observation more."""
        self._last.append(value)
        self.value = sorted(self._last)[len(self._last) // 2]

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[float]:
        """The observations, the oldest first."""
        return iter(self._last)
