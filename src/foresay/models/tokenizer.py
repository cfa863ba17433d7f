"""Text to token ids and back, with a model's own tokenizer."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.errors import InputError, ModelError
from foresay.models.ends import ends_by_text
from foresay.models.tokenizer_readers import NAMED, FileTokenizer, TransformersTokenizer

__all__ = ["ChatMessage", "Tokenizer"]

ChatMessage = Mapping[str, Any]
_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


class Tokenizer:
    """A model's tokenizer, its chat template, and the tokens that end its answers.

    Raises: ModelError when constructed from a folder without a tokenizer.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._inner = _made(Path(folder))
        added = self._inner.added()
        self.added = {text: token for token, text, _ in added}
        """Tokens that are found in a text before it is split, by their texts."""
        self.control = frozenset(token for token, _, control in added if control)
        """Those of them that `decode` leaves out."""
        named = _named_ends(Path(folder), self._inner.end)
        self.ends = tuple(dict.fromkeys((*named, *ends_by_text(added))))
        """Token ids that end an answer: its eos_token, those of generation_config.json, and those
        that `foresay.models.ends` knows by their text."""

    @property
    def chats(self) -> bool:
        """Whether it has a chat template."""
        return self._inner.chats

    def encode(self, text: str, *, special: bool = True) -> Int32s:
        """The tokens of a text, with the model's special tokens unless `special` is false.

        Raises: InputError for what is no text.
        """
        if not isinstance(text, str):
            raise InputError(f"a prompt is {text!r}; expected a text, token ids or messages")
        return np.array(self._inner.encode(_encodable(text), special=special), np.int32)

    def chat(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Int32s:
        """The tokens of messages, up to where the model's answer begins.

        messages  [{"role": "user", "content": "…"}, …]
        tools     functions that the model may call, as templates take them

        Raises: InputError for messages that the template does not take, or a model without one.
        """
        return self.encode(self.render(messages, tools), special=False)

    def render(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The text of messages, up to where the model's answer begins.

        Raises: as `chat`.
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
            return self._inner.render(readable, list(tools) or None)
        except Exception as error:  # a template is a program of the model's author
            raise InputError(f"the model's chat template refuses the messages: {error}") from error

    def decode(
        self, tokens: Sequence[int], *, special: bool = False, keep: Collection[int] = ()
    ) -> str:
        """The text of tokens, without control tokens but those to `keep`; with all of them if
        `special` is true."""
        if keep and not special:
            shown = [token for token in tokens if token not in self.control or token in keep]
            return self._inner.decode(shown, special=True)
        return self._inner.decode(list(tokens), special=special)

    def piece(self, token: int) -> str | None:
        """The tokenizer's own piece for a token, which is not its text; None for an unknown id."""
        return self._inner.piece(token)

    def serialized(self) -> str:
        """It as the text of a tokenizer.json: what other libraries read.

        Raises: ModelError for a tokenizer that cannot be written so.
        """
        return self._inner.serialized()

    def facts(self) -> dict[str, str | None]:
        """Its class, special tokens and chat template as texts, None where there is none."""
        return {
            "tokenizer_class": self._inner.kind,
            **{name: self._inner.special.get(name) for name in NAMED},
            "chat_template": self._inner.template,
        }


def _made(folder: Path) -> FileTokenizer | TransformersTokenizer:
    if not any((folder / name).is_file() for name in _FILES):
        raise ModelError(f"'{folder}' has no tokenizer; expected {_FILES[0]}")
    try:
        return FileTokenizer.of(folder) or TransformersTokenizer(folder)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"the tokenizer in '{folder}' is read with the package '{error.name}', which is not "
            "installed; install it with: pip install '.[engine]' in foresay's checkout"
        ) from error
    except ModelError:
        raise
    except Exception as error:  # two libraries, and what they make of a file that is no such
        said = str(error).strip().splitlines()
        raise ModelError(
            f"the tokenizer in '{folder}' is damaged or foreign and cannot be loaded "
            f"({type(error).__name__}: {said[0] if said else 'no more is known'})"
        ) from error


def _encodable(text: str) -> str:
    """The text, if UTF-8 can encode it: half a surrogate pair cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a prompt holds {text[error.start]!r}, which is no character") from error
    return text


def _named_ends(folder: Path, own: int | None) -> list[int]:
    found: list[int] = [] if own is None else [own]
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            given = json.loads(path.read_text(encoding="utf-8"))
            more = given.get("eos_token_id")
        except (OSError, ValueError, RecursionError, AttributeError) as error:
            raise ModelError(f"'{path}' is no object in JSON: {error}") from error
        listed = more if isinstance(more, list) else [] if more is None else [more]
        for token in listed:
            if type(token) is not int or token < 0:
                raise ModelError(
                    f"'{path}': eos_token_id is {more!r:.60}; expected a token id or a list of them"
                )
        found += listed
    return found
