"""What the streams of a client share, checked when it is made; and what a stream gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from foresay.drafter import Source
from foresay.edge.link import Round
from foresay.edge.statistics import StreamStatistics
from foresay.edge.wire import Wait

__all__ = ["OnRound", "Piece", "StreamSettings"]

OnRound = Callable[[Round], None]


@dataclass(frozen=True, slots=True)
class Piece:
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
    """What all streams of a client share; `EdgeClient` has what they mean."""

    url: str
    vocabulary: int
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
