"""What races have in common: taking turns, and means of ratios."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Found = TypeVar("Found")


def take_turns(ways: Mapping[str, Callable[[], Found]], turn: int) -> dict[str, Found]:
    """Everybody works once; who begins changes from turn to turn."""
    names = list(ways)
    at = turn % len(names)
    return {name: ways[name]() for name in names[at:] + names[:at]}


def geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))
