"""Grammars over the tokens of the caller's tokenizer."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, ref

from foresay.errors import InputError
from foresay.models.tokenizer_readers import serialized
from foresay.structured.grammars import Grammars

__all__ = ["grammars_of"]

_KNOWN: WeakKeyDictionary[Any, dict[Any, Grammars]] = WeakKeyDictionary()


class _Words:
    """What a grammar needs of a tokenizer of transformers. It is held weakly: its grammars are to
    go when it goes."""

    def __init__(self, tokenizer: Any, ends: tuple[int, ...]) -> None:
        self._inner, self.ends = ref(tokenizer), ends

    def serialized(self) -> str:
        return serialized(self._inner())

    def piece(self, token: int, /) -> str | None:
        tokenizer: Any = self._inner()
        found = tokenizer.convert_ids_to_tokens(token)
        return found if isinstance(found, str) else None


def grammars_of(tokenizer: Any, ends: tuple[int, ...], vocabulary: int) -> Grammars:
    """The grammars of a tokenizer, made once, for answers that these tokens end.

    Raises: InputError without a tokenizer.
    """
    if tokenizer is None:
        raise InputError("structured_outputs is given without a tokenizer; expected tokenizer=…")
    known = _KNOWN.setdefault(tokenizer, {})
    key = ends, vocabulary
    if key not in known:
        known[key] = Grammars(_Words(tokenizer, ends), vocabulary)
    return known[key]
