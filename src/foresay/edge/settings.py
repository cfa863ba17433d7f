"""What a stream gives, and checks of what its client is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from foresay.drafter import Source
from foresay.edge.link import Round
from foresay.edge.statistics import StreamStatistics
from foresay.errors import InputError

__all__ = ["Chunk", "OnRound", "check_kind", "check_seconds", "clean_key"]

OnRound = Callable[[Round], None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Committed tokens, in their order.

    sources      where each was drafted from; `Source.MODEL`: the cloud's own
    finish       in the last piece the finish reason: stop or length
    statistics   in the last piece
    edge_only    these are the edge's own model's, not the target's
    """

    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    finish: str = ""
    statistics: StreamStatistics | None = None
    edge_only: bool = False


def check_kind(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Refuse what is not of a kind. Raises: InputError."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r:.100}; expected {what}")


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no number of seconds. Raises: InputError."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value < math.inf):  # type: ignore[operator]
        raise InputError(f"{name} is {value!r:.100}; expected a finite number, 0 or more")


def clean_key(api_key: str | None) -> str | None:
    """A key without white space around it, as a file's last line break; None if there is none.

    Raises: InputError, which never shows the key.
    """
    if api_key is None:
        return None
    if not isinstance(api_key, str):
        raise InputError(f"api_key is a {type(api_key).__name__}; expected a str or None")
    key = api_key.strip()
    if not key or not all("!" <= character <= "~" for character in key):
        raise InputError(
            "api_key is no key; expected printable ASCII characters without spaces or line breaks "
            "(it is not shown here)"
        )
    return key
