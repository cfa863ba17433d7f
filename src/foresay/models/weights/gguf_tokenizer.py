"""The tokenizer that a GGUF file's metadata describes, as a tokenizer.json.

Two kinds: byte-level BPE ("gpt2", with merges and the name of a pre-tokenizer) and sentencepiece
("llama", with scores, from which the merges follow). A pre-tokenizer that is not known by name is
refused: text split elsewhere gives other ids, and other ids give other answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.ends import ends_by_text
from foresay.models.weights.gguf_header import Header

__all__ = ["Words", "words_of"]

_UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 2, 3, 4, 5, 6
_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
_QWEN = ("qwen2",)
_PLAIN = ("gpt-2", "gpt2")


@dataclass(frozen=True)
class Words:
    """A tokenizer: its file, its tokenizer_config.json, special ids, ids that end an answer."""

    tokenizer: str
    config: dict[str, Any]
    ids: dict[str, int]
    ends: tuple[int, ...]


def words_of(header: Header, vocabulary: int, path: str) -> Words:
    """The tokenizer of a file whose embedding has `vocabulary` rows.

    Raises: UnsupportedModel naming a kind or a pre-tokenizer that is not known, ModelError for a
    vocabulary that is not valid.
    """
    found = _Vocabulary(header.metadata, vocabulary, path)
    kind = found.text("model", "")
    if kind == "gpt2":
        tokenizer = _byte_level(found)
    elif kind == "llama":
        tokenizer = _sentencepiece(
            found, gemma="gemma" in str(header.metadata.get("general.architecture"))
        )
    else:
        raise UnsupportedModel(f"'{path}' has a tokenizer of kind '{kind}'; expected gpt2 or llama")
    _add_ends(tokenizer, found, kind)
    config: dict[str, Any] = {f"{name}_token": found.tokens[i] for name, i in found.ids.items()}
    template = header.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        config["chat_template"] = template
    return Words(tokenizer.to_str(), config, found.ids, found.ends())


class _Vocabulary:
    """The tokens of a file and their kinds, checked."""

    def __init__(self, metadata: dict[str, Any], vocabulary: int, path: str) -> None:
        self._metadata, self.path = metadata, path
        tokens = self._get("tokens")
        count = len(tokens) if isinstance(tokens, list) else 0
        if not 0 < count <= vocabulary:
            raise self.wrong(
                f"there are {count} tokens; expected 1 to {vocabulary}, the rows of the embedding"
            )
        self.tokens: list[str] = [
            token or f"[EMPTY_{number}]" for number, token in enumerate(tokens)
        ]
        self.kinds = self._numbers("token_type", "iu", default=1)
        # A row of the embedding without a token: the model's own tokenizer lacks it too.
        absent = {
            number
            for number, token in enumerate(self.tokens)
            if self.kinds[number] == _UNUSED and token == f"[PAD{number}]"
        }
        self.vocab = {
            token: number for number, token in enumerate(self.tokens) if number not in absent
        }
        if len(self.vocab) + len(absent) != len(self.tokens):
            raise self.wrong("a token occurs twice")
        self.ids = {}
        for name, long in _SPECIAL.items():
            number = self.id(f"{long}_token_id")
            if number is not None:
                self.ids[name] = number

    def id(self, key: str) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise self.wrong(f"{key} is {value!r:.40}; expected 0 to {len(self.tokens) - 1}")
        return value if self.tokens[value] in self.vocab else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is not None and type(value) is not bool:
            raise self.wrong(f"{key} is {value!r:.40}; expected true or false")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        value = self._get(key)
        return default if value is None else str(value)[:80]

    def merges(self) -> list[tuple[str, str]]:
        merges = self._get("merges")
        if not isinstance(merges, list):
            raise self.wrong("there are no merges")
        pairs = []
        for merge in merges:
            # A merge that makes no token could never apply; the library would refuse all merges.
            left, _, right = str(merge).partition(" ")
            if left not in self.vocab or right not in self.vocab or left + right not in self.vocab:
                raise self.wrong(f"the merge {merge!r:.60} is not of tokens")
            pairs.append((left, right))
        return pairs

    def merges_by_score(self) -> list[tuple[str, str]]:
        """Every way to put a piece together from two others, the best piece first."""
        scores = self._numbers("scores", "f", default=None)
        pieces = {
            token: number
            for token, number in self.vocab.items()
            if self.kinds[number] not in (_UNKNOWN, _CONTROL, _USER, _BYTE)
        }
        found = []
        for token, number in pieces.items():
            ways = [
                (pieces[token[:cut]], pieces[token[cut:]], cut)
                for cut in range(1, len(token))
                if token[:cut] in pieces and token[cut:] in pieces
            ]
            found += [(-float(scores[number]), token, cut) for _, _, cut in sorted(ways)]
        found.sort(key=lambda way: way[0])  # stable: ways of one piece stay in the order of ids
        return [(token[:cut], token[cut:]) for _, token, cut in found]

    def added(self) -> list[tuple[int, str, bool]]:
        """Tokens that are found before a text is split: id, text, whether it is a control token."""
        return [
            (number, token, bool(kind == _CONTROL))
            for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (_CONTROL, _USER) and token in self.vocab
        ]

    def ends(self) -> tuple[int, ...]:
        """The ids after which an answer is over, the file's own first."""
        named = [self.id(f"{name}_token_id") for name in _ENDS]
        found = [end for end in named if end is not None] + ends_by_text(self.added())
        return tuple(dict.fromkeys(found))

    def wrong(self, why: str) -> ModelError:
        return ModelError(f"the tokenizer in '{self.path}' is not sound: {why}")

    def _numbers(self, key: str, kinds: str, default: int | None) -> Any:
        value = self._get(key)
        if value is None and default is not None:
            return np.full(len(self.tokens), default)
        if (
            not isinstance(value, np.ndarray)
            or value.dtype.kind not in kinds
            or len(value) != len(self.tokens)
            or not bool(np.isfinite(value).all())
        ):
            raise self.wrong(f"{key} is invalid; expected one number per token")
        return value

    def _get(self, key: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}")


def _byte_level(found: _Vocabulary) -> Tokenizer:
    name = found.text("pre", "default")
    bpe = models.BPE(found.vocab, found.merges(), ignore_merges=name in _LLAMA3)
    tokenizer = Tokenizer(bpe)
    cut: pre_tokenizers.PreTokenizer
    level = pre_tokenizers.ByteLevel
    if name in _PLAIN:
        cut = level(add_prefix_space=False, use_regex=True)
    elif name in _SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        cut = pre_tokenizers.Sequence([digits, level(add_prefix_space=False, use_regex=True)])
    elif name in _LLAMA3 or name in _QWEN:
        words = Regex(_WORDS % ("{1,3}" if name in _LLAMA3 else ""))
        split = pre_tokenizers.Split(words, behavior="isolated")
        cut = pre_tokenizers.Sequence([split, level(add_prefix_space=False, use_regex=False)])
    else:
        known = ", ".join((*_PLAIN, *_SINGLE_DIGITS, *_LLAMA3, *_QWEN))
        raise UnsupportedModel(
            f"'{found.path}' splits text by '{name}' (tokenizer.ggml.pre); expected {known}"
        )
    tokenizer.pre_tokenizer = cut
    if name in _QWEN:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(tokenizer, found)
    return tokenizer


def _sentencepiece(found: _Vocabulary, *, gemma: bool) -> Tokenizer:
    unknown = found.ids.get("unk")
    bpe = models.BPE(
        found.vocab,
        found.merges_by_score(),
        unk_token=None if unknown is None else found.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(bpe)
    spaces: normalizers.Normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if found.flag("add_space_prefix", not gemma):
        spaces = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    _add_tokens(tokenizer, found)
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, found: _Vocabulary) -> None:
    """Tokens that are found in the text before it is split: control tokens and the user's."""
    added = [
        AddedToken(token, normalized=False, special=control) for _, token, control in found.added()
    ]
    tokenizer.add_tokens(added)


def _add_ends(tokenizer: Tokenizer, found: _Vocabulary, kind: str) -> None:
    """The tokens before and after every text; where the file has no key, as in llama.cpp."""
    llama = kind == "llama" or found.text("pre", "") in _LLAMA3
    before, after = [], []
    if found.flag("add_bos_token", llama) and "bos" in found.ids:
        before.append("bos")
    if found.flag("add_eos_token", False) and "eos" in found.ids:
        after.append("eos")
    steps: list[Any] = [] if kind == "llama" else [processors.ByteLevel(trim_offsets=False)]
    if before or after:
        special = [(found.tokens[found.ids[name]], found.ids[name]) for name in before + after]
        first = [found.tokens[found.ids[name]] for name in before]
        last = [found.tokens[found.ids[name]] for name in after]
        steps.append(
            processors.TemplateProcessing(
                single=[*first, "$A", *last],
                pair=[
                    *first,
                    "$A",
                    *last,
                    *(f"{t}:1" for t in first),
                    "$B:1",
                    *(f"{t}:1" for t in last),
                ],
                special_tokens=special,
            )
        )
    if steps:
        tokenizer.post_processor = steps[0] if len(steps) == 1 else processors.Sequence(steps)
