"""Options of `edge.py` and `edge_load.py`: values that cannot be measured with are refused at once,
and a failure is one sentence."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foresay.errors import ForesayError

__all__ = ["chance", "count", "in_a_sentence", "milliseconds", "minutes", "new_file", "rtts"]


def _number(given: str, expected: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise ArgumentTypeError(f"it is {given!r}; expected {expected}") from None


def count(given: str) -> int:
    """A whole number, 1 or more."""
    expected = "a whole number, 1 or more"
    value = _number(given, expected)
    if not (1 <= value < math.inf and value == int(value)):
        raise ArgumentTypeError(f"it is {given!r}; expected {expected}")
    return int(value)


def milliseconds(given: str) -> float:
    """0 or more."""
    expected = "milliseconds, 0 or more"
    value = _number(given, expected)
    if not 0 <= value < math.inf:
        raise ArgumentTypeError(f"it is {given!r}; expected {expected}")
    return value


def rtts(given: str) -> list[float]:
    """Milliseconds with commas between."""
    return [milliseconds(part) for part in given.split(",")]


def minutes(given: str) -> float:
    """Above 0."""
    expected = "minutes, above 0"
    value = _number(given, expected)
    if not 0 < value < math.inf:
        raise ArgumentTypeError(f"it is {given!r}; expected {expected}")
    return value


def chance(given: str) -> float:
    """From 0 to below 1."""
    expected = "a chance from 0 to below 1"
    value = _number(given, expected)
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"it is {given!r}; expected {expected}")
    return value


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
