"""Options of `edge.py` and `edge_load.py`: values that cannot be measured with are refused at once,
and a failure is one sentence."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from foresay.errors import ForesayError

__all__ = ["chance", "count", "in_a_sentence", "milliseconds", "minutes", "new_file", "rtts"]


def _number(expected: str, good: Callable[[float], bool]) -> Callable[[str], float]:
    def read(given: str) -> float:
        try:
            value = float(given)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not good(value):
            raise ArgumentTypeError(f"it is {given!r}; expected {expected}")
        return value

    return read


milliseconds = _number("milliseconds, 0 or more", lambda value: value >= 0)
minutes = _number("minutes, above 0", lambda value: value > 0)
chance = _number("a chance from 0 to below 1", lambda value: 0 <= value < 1)
_whole = _number("a whole number, 1 or more", lambda value: value >= 1 and value == int(value))


def count(given: str) -> int:
    """A whole number, 1 or more."""
    return int(_whole(given))


def rtts(given: str) -> list[float]:
    """Milliseconds with commas between."""
    return [milliseconds(part) for part in given.split(",")]


def new_file(given: str) -> Path:
    """A file that can be written, as far as its folder says."""
    path = Path(given)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentTypeError(f"it is {given!r}; expected a file in a folder that is there")
    return path


@contextmanager
def in_a_sentence(script: str) -> Iterator[None]:
    """What fails in the body ends the script with a sentence."""
    try:
        yield
    except (ForesayError, OSError) as error:
        sys.exit(f"{script}: {error}")
