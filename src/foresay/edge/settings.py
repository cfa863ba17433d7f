"""What the streams of a client share, checked when it is made; and what a stream gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from foresay.arrays import as_tokens
from foresay.drafter import Drafter, Source
from foresay.edge.ahead import SendingRules
from foresay.edge.connection import edge_url
from foresay.edge.gating import Gate
from foresay.edge.ids import bits_of
from foresay.edge.link import EdgeK, LinkRule, Round, check_seconds
from foresay.edge.messages import WAITS, Wait
from foresay.edge.statistics import StreamStatistics
from foresay.edge.text_rules import Decode
from foresay.edge.wire import check_pad
from foresay.errors import InputError

__all__ = ["Chunk", "ClientOptions", "OnRound", "check_kind", "clean_key"]

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


@dataclass(frozen=True, repr=False, eq=False)
class ClientOptions:
    """What a client is made of, and its streams share; `EdgeClient` has what they mean.

    Raises: InputError when constructed, and for a drafter's name as `make_drafter`.
    """

    url: str
    _: KW_ONLY
    vocabulary: int
    api_key: str | None = None
    drafter: Drafter[Any] | str | None = "suffix"
    corpus: str | Path | None = None
    model: str = ""
    tokenizer_hash: bytes = b""
    wait: Wait = ""
    ahead: bool = True
    rule: EdgeK | None = None
    gate: Gate | None = None
    dropout: int = 0
    decode: Decode | None = None
    tree: bool = False
    pad: int = 0
    json: bool = False
    connect_seconds: float = 10.0
    silent_seconds: float | None = 120.0
    retry_seconds: float = 30.0
    edge_only: bool = False
    ends: Sequence[int] = ()
    on_round: OnRound | None = None

    def __post_init__(self) -> None:
        self._check()
        made = {
            "url": edge_url(self.url),
            "api_key": clean_key(self.api_key),
            "rule": LinkRule() if self.rule is None else self.rule,
            "ends": tuple(as_tokens(self.ends, "ends").tolist()),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def sending(self) -> SendingRules:
        """How much is sent, and when."""
        assert self.rule is not None
        return SendingRules(self.rule, self.ahead, self.tree, self.gate, self.decode)

    def _check(self) -> None:
        """Refuse what is not of its kind. Raises: InputError."""
        bits_of(self.vocabulary)
        check_pad(self.pad)
        for name in ("ahead", "tree", "json", "edge_only"):
            check_kind(name, getattr(self, name), bool, "True or False")
        check_kind("model", self.model, str, "a str")
        check_kind("tokenizer_hash", self.tokenizer_hash, bytes, "bytes")
        sent = self.model.encode(errors="replace").decode()
        if sent != self.model or len(sent) > 256 or len(self.tokenizer_hash) > 64:
            raise InputError(
                f"model is {self.model!r:.100} and tokenizer_hash has {len(self.tokenizer_hash)} "
                "bytes; expected a text of at most 256 characters, and at most 64 bytes"
            )
        check_kind("gate", self.gate, (Gate, NoneType), "a Gate or None")
        if self.rule is not None and (
            isinstance(self.rule, type) or not isinstance(self.rule, EdgeK)
        ):
            raise InputError(
                f"rule is {self.rule!r:.100}; expected None, or an object with next_k and observe, "
                "such as LinkRule()"
            )
        for name in ("decode", "on_round"):
            if (value := getattr(self, name)) is not None and not callable(value):
                raise InputError(f"{name} is {value!r:.100}; expected a function or None")
        if not isinstance(self.wait, str) or self.wait not in ("", *WAITS):
            raise InputError(f"wait is {self.wait!r:.100}; expected {', '.join(WAITS)} or empty")
        for name in ("connect_seconds", "silent_seconds", "retry_seconds"):
            if (value := getattr(self, name)) is not None or name != "silent_seconds":
                check_seconds(name, value)
        passes = self.dropout
        if type(passes) is not int or not (passes == 0 or 2 <= passes <= 256):
            raise InputError(
                f"dropout is {passes!r:.100}; expected 0, or a whole number of passes from 2 to 256"
            )
        if passes and (self.gate is None or not isinstance(self.drafter, str)):
            raise InputError(
                f"dropout is {passes!r}; expected 0 without a gate and a drafter model:NAME"
            )


def check_kind(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Refuse what is not of a kind. Raises: InputError."""
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r:.100}; expected {what}")


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
