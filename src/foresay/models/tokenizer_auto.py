"""A tokenizer as transformers makes it, for all that is more than a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

__all__ = ["TransformersTokenizer"]

_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")


class TransformersTokenizer:
    """See `foresay.models.tokenizer.Tokenizer`, which uses it.

    Raises: what transformers raises, when constructed.
    """

    def __init__(self, folder: Path) -> None:
        self._inner: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self.kind = type(self._inner).__name__
        named = {name: getattr(self._inner, name, None) for name in _NAMES}
        self.special = {name: str(value) for name, value in named.items() if value is not None}
        template = self._inner.chat_template
        # Some models have several templates, by name: none of them is *the* template.
        self.template = template if isinstance(template, str) else None
        self.chats = bool(template)
        self.end: int | None = self._inner.eos_token_id

    def added(self) -> list[tuple[int, str, bool]]:
        found = self._inner.added_tokens_decoder
        return [(number, token.content, token.special) for number, token in found.items()]

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._inner(text, add_special_tokens=special)["input_ids"]
        return ids

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return str(
            self._inner.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    def decode(self, tokens: list[int], *, special: bool) -> str:
        return str(
            self._inner.decode(
                tokens, skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def piece(self, token: int) -> str | None:
        piece = self._inner.convert_ids_to_tokens(token)
        return piece if isinstance(piece, str) else None
