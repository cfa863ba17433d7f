"""The text of single tokens, and other requests of clients to the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError
from foresay.models.tokenizer import Tokenizer
from foresay.serve.answer_schema import TokenizerInfo

__all__ = ["Words"]

_INCOMPLETE = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece writes the token of one byte


class Words:
    """A tokenizer that gives the text of single tokens. Threads may share it.

    Mutates: a cache of token texts.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._known: dict[int, str] = {}
        # Many tokenizers drop the leading space of a text's first token. So a token is decoded
        # after another one, as it is in a text.
        # (The first call may change settings of the tokenizer, which is not thread-safe; later
        # calls change nothing.)
        self._before: list[int] = tokenizer.encode("a", special=False)[-1:].tolist()
        self._lead = tokenizer.decode(self._before, special=True)

    def of(self, token: int) -> str:
        """The text of one token inside a text, special tokens included."""
        word = self._known.get(token)
        if word is None:
            decode = self._tokenizer.decode
            word = decode([*self._before, token], special=True)
            if word.startswith(self._lead):
                word = word[len(self._lead) :]
            else:  # the two are parts of one character
                word = decode([token], special=True)
            self._known[token] = word
        return word

    def bytes_of(self, token: int) -> list[int] | None:
        """The token's bytes, which may be a part of a character; None if unknown."""
        word = self.of(token)
        if _INCOMPLETE not in word:
            return list(word.encode())
        written = self._tokenizer.piece(token)
        if written is None:
            return None
        if _INCOMPLETE in written:  # the character itself
            return list(word.encode())
        one = _BYTE.fullmatch(written)
        if one is not None:
            return [int(one[1], 16)]
        found = [_BYTES.get(letter) for letter in written]
        return None if None in found else found  # type: ignore[return-value]

    def places(self, prompt: Sequence[int] = ()) -> IncrementalDetokenizer:
        """A text after a prompt, built token by token, to find where each token begins."""
        text = IncrementalDetokenizer(self._tokenizer.decode)
        text.follow(prompt)
        return text

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text, with or without the model's special tokens around it.

        Raises: InputError.
        """
        ids: list[int] = self._tokenizer.encode(text, special=special).tolist()
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included.

        Raises: InputError for a token outside the vocabulary.
        """
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise InputError(f"tokens holds {token}; expected 0 to {self._vocabulary - 1}")
        return self._tokenizer.decode(tokens, special=True)

    def about(self, context: int) -> TokenizerInfo:
        """Facts about the tokenizer, and the model's context."""
        facts: dict[str, Any] = self._tokenizer.facts()
        ends, size = list(self._tokenizer.ends), self._vocabulary
        return TokenizerInfo(**facts, end_token_ids=ends, vocab_size=size, max_model_len=context)


def _byte_letters() -> dict[str, int]:
    """The letters by which byte-level tokenizers write bytes: a byte that can be printed stands for
    itself, the others follow from 256 on.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTES = _byte_letters()
