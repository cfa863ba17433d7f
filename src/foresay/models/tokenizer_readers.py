"""The two readers of tokenizers that `foresay.models.tokenizer.Tokenizer` uses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer as Inner

from foresay.errors import ModelError

if TYPE_CHECKING:
    from foresay.models.chat_template import ChatTemplate

__all__ = ["NAMED", "FileTokenizer", "TransformersTokenizer", "serialized"]

NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")
"""The special tokens that models have."""

_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
# Those for which transformers takes the class that the folder names.
_MODEL_TYPES = ("llama", "qwen3", "gemma", "gemma2", "gemma3_text")
_NAMES = (*NAMED, "sep_token", "cls_token", "mask_token")
# Keys that change neither tokens nor texts here.
_IDLE = {
    *("tokenizer_class", "backend", "clean_up_tokenization_spaces", "model_max_length"),
    *("model_input_names", "padding_side", "is_local", "local_files_only", "name_or_path"),
}
# Files that change what transformers makes of a tokenizer.json.
_OTHERS = ("special_tokens_map.json", "added_tokens.json", "additional_chat_templates")


class FileTokenizer:
    """A tokenizer that is nothing but its tokenizer.json, used without transformers, which takes
    seconds to import. `of` makes one.
    """

    kind = "TokenizersBackend"
    """What transformers calls it."""

    def __init__(self, inner: Inner, special: Mapping[str, str], template: str | None) -> None:
        self._inner = _uncut(inner)
        self.special = dict(special)
        self.template = template

    @classmethod
    def of(cls, folder: Path) -> FileTokenizer | None:
        """The tokenizer of a folder; None where transformers might make another one of it.

        Raises: ModelError for a tokenizer.json that is damaged.
        """
        config = _object(folder / "tokenizer_config.json")
        model = _object(folder / "config.json")
        file = folder / "tokenizer.json"
        if config is None or model is None or not file.is_file():
            return None
        # What we wrote describes a GGUF file, and that file alone says what its tokens are.
        ours = (folder / "foresay.json").is_file()
        if not ours and model.get("model_type") not in _MODEL_TYPES:
            return None
        if config.get("tokenizer_class") not in _CLASSES:
            return None
        if any((folder / name).exists() for name in _OTHERS):
            return None
        special = {name: config[name] for name in _NAMES if config.get(name) is not None}
        template = config.get("chat_template")
        if (folder / "chat_template.jinja").is_file():
            template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        if config.keys() - _IDLE - {*_NAMES, "chat_template"}:
            return None
        if not all(isinstance(text, str) for text in (*special.values(), template or "")):
            return None
        try:
            inner = Inner.from_file(str(file))
        except Exception as error:  # the library has no kinds of errors
            raise ModelError(f"the tokenizer '{file}' is damaged: {error}") from error
        known = {token.content for token in inner.get_added_tokens_decoder().values()}
        if not known.issuperset(special.values()):
            return None  # transformers would add the others
        return cls(inner, special, template)

    @property
    def chats(self) -> bool:
        return bool(self.template)

    @property
    def end(self) -> int | None:
        """The token id of its eos_token."""
        name = self.special.get("eos_token")
        return None if name is None else self._inner.token_to_id(name)

    def added(self) -> list[tuple[int, str, bool]]:
        """Tokens that are found before a text is split: id, text, whether it is a control token."""
        found = self._inner.get_added_tokens_decoder()
        return [(number, token.content, token.special) for number, token in found.items()]

    def encode(self, text: str, *, special: bool) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=special).ids
        return ids

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        return self._compiled.render(messages, self.special, tools)

    @cached_property
    def _compiled(self) -> ChatTemplate:
        from foresay.models.chat_template import ChatTemplate  # jinja2, for chats only

        return ChatTemplate(self.template or "")

    def decode(self, tokens: list[int], *, special: bool) -> str:
        return str(self._inner.decode(tokens, skip_special_tokens=not special))

    def piece(self, token: int) -> str | None:
        piece: str | None = self._inner.id_to_token(token)
        return piece

    def serialized(self) -> str:
        return str(self._inner.to_str())


class TransformersTokenizer:
    """A tokenizer as transformers makes it, for all that is more than a tokenizer.json.

    Raises: what transformers raises, when constructed.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer  # takes seconds

        self._inner: Any = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        self.kind = type(self._inner).__name__
        named = {name: getattr(self._inner, name, None) for name in NAMED}
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

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        return str(
            self._inner.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=True
            )
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

    def serialized(self) -> str:
        return serialized(self._inner)


def serialized(tokenizer: Any) -> str:
    """A tokenizer of transformers as the text of a tokenizer.json.

    Raises: ModelError for one that is none of the fast ones.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise ModelError(f"it is a {type(tokenizer).__name__}, which has no tokenizer.json")
    return str(_uncut(copy(tokenizer.backend_tokenizer)).to_str())


def _uncut(inner: Inner) -> Inner:
    """The tokenizer, which gives all tokens of a text and no others from now on."""
    inner.no_truncation()
    inner.no_padding()
    return inner


def _object(path: Path) -> dict[str, Any] | None:
    """The object in a file of JSON; None if it is something else, or not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
