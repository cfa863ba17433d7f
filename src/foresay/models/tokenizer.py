"""Text to token ids and back, with a model's own tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer, GenerationConfig

from foresay.arrays import Int32s
from foresay.errors import InputError, ModelError

__all__ = ["ChatMessage", "Tokenizer"]

ChatMessage = Mapping[str, Any]
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Tokenizer:
    """A model's tokenizer, its chat template, and the tokens that end its answers.

    Raises: ModelError when constructed from a folder without a tokenizer.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self._inner = AutoTokenizer.from_pretrained(
                Path(folder), local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, json.JSONDecodeError, ImportError) as error:
            if not any((Path(folder) / name).is_file() for name in _FILES):
                raise ModelError(f"'{folder}' has no tokenizer; expected {_FILES[0]}") from error
            said = str(error).strip().splitlines()
            raise ModelError(
                f"the tokenizer in '{folder}' is damaged or foreign and cannot be loaded "
                f"({type(error).__name__}: {said[0] if said else 'no more is known'})"
            ) from error
        self.ends = _ends(Path(folder), self._inner.eos_token_id)
        """Token ids that end an answer."""

    @property
    def chats(self) -> bool:
        """Whether it has a chat template."""
        return bool(self._inner.chat_template)

    def encode(self, text: str, *, special: bool = True) -> Int32s:
        """The tokens of a text, with the model's special tokens unless `special` is false.

        Raises: InputError for what is no text.
        """
        if not isinstance(text, str):
            raise InputError(f"a prompt is {text!r}; expected a text, token ids or messages")
        ids = self._inner(_encodable(text), add_special_tokens=special)["input_ids"]
        return np.array(ids, np.int32)

    def chat(self, messages: Sequence[ChatMessage]) -> Int32s:
        """The tokens of messages, up to where the model's answer begins.

        messages  [{"role": "user", "content": "…"}, …]

        Raises: InputError for messages that the template does not take, or a model without one.
        """
        if not self.chats:
            raise InputError("the model has no chat template; give the prompt as a text")
        for message in messages:
            if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
                raise InputError(
                    f"a message is {message!r}; expected a role and a content, both texts"
                )
        readable = [{**m, "content": _encodable(m["content"])} for m in messages]
        try:
            text = self._inner.apply_chat_template(
                readable,
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template is a program of the model's author
            raise InputError(f"the model's chat template refuses the messages: {error}") from error
        return np.array(self._inner(text, add_special_tokens=False)["input_ids"], np.int32)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of tokens, without special ones unless `special` is true."""
        return str(
            self._inner.decode(
                list(tokens), skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def piece(self, token: int) -> str | None:
        """The tokenizer's own piece for a token, which is not its text; None for an unknown id."""
        piece = self._inner.convert_ids_to_tokens(token)
        return piece if isinstance(piece, str) else None

    def facts(self) -> dict[str, str | None]:
        """Its class, special tokens and chat template as texts, None where there is none."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        values = {name: getattr(self._inner, name, None) for name in names}
        template = self._inner.chat_template
        return {
            "tokenizer_class": type(self._inner).__name__,
            **{name: None if value is None else str(value) for name, value in values.items()},
            # Some models have several templates, by name: none of them is *the* template.
            "chat_template": template if isinstance(template, str) else None,
        }


def _encodable(text: str) -> str:
    """The text, if UTF-8 can encode it: half a surrogate pair cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a prompt holds {text[error.start]!r}, which is no character") from error
    return text


def _ends(folder: Path, own: int | None) -> tuple[int, ...]:
    found: list[int] = [] if own is None else [own]
    if (folder / "generation_config.json").is_file():
        more = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
        found += more if isinstance(more, list) else [] if more is None else [more]
    return tuple(dict.fromkeys(found))
