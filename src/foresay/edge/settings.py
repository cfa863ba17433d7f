"""What the streams of a client share, checked when it is made; and what a stream gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from foresay.drafter import Source
from foresay.edge.ahead import SendingRules
from foresay.edge.ids import bits_of
from foresay.edge.link import Round
from foresay.edge.messages import WAITS, Wait
from foresay.edge.statistics import StreamStatistics
from foresay.edge.wire import check_pad
from foresay.errors import InputError

__all__ = ["Chunk", "OnRound", "StreamSettings", "check_kind", "check_seconds", "clean_key"]

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


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What all streams of a client share; `EdgeClient` has what they mean.

    Raises: InputError when constructed.
    """

    url: str
    vocabulary: int
    sending: SendingRules
    api_key: str | None = None
    model: str = ""
    tokenizer_hash: bytes = b""
    wait: Wait = ""
    pad: int = 0
    json: bool = False
    connect_seconds: float = 10.0
    silent_seconds: float | None = 120.0
    retry_seconds: float = 30.0
    on_round: OnRound | None = None

    def __post_init__(self) -> None:
        bits_of(self.vocabulary)
        check_pad(self.pad)
        check_kind("model", self.model, str, "a str")
        check_kind("tokenizer_hash", self.tokenizer_hash, bytes, "bytes")
        check_kind("json", self.json, bool, "True or False")
        if not isinstance(self.wait, str) or self.wait not in ("", *WAITS):
            raise InputError(f"wait is {self.wait!r:.100}; expected {', '.join(WAITS)} or empty")
        check_seconds("connect_seconds", self.connect_seconds)
        if self.silent_seconds is not None:
            check_seconds("silent_seconds", self.silent_seconds)
        check_seconds("retry_seconds", self.retry_seconds)
        if self.on_round is not None and not callable(self.on_round):
            raise InputError(f"on_round is {self.on_round!r:.100}; expected a function or None")


def check_kind(name: str, value: object, kind: type, what: str) -> None:
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
