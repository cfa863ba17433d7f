"""Single tokens as text, and what else a client asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foresay.errors import InputError
from foresay.models.tokenizer import Tokenizer

__all__ = ["Words"]


class Words:
    """A tokenizer for those who look at single tokens. Threads may share it.

    Mutates: it remembers tokens that were asked for. Valid until: for ever. Raises: nothing. GIL:
    as the tokenizers library.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._known: dict[int, str] = {}
        # The first text may change settings of the tokenizer, which no two threads may do at once;
        # the following ones change nothing.
        tokenizer.encode("a")

    def of(self, token: int) -> str:
        """The text of one token, also of a special one.

        Mutates: what it remembers. Valid until: for ever. Raises: nothing. GIL: as the library.
        """
        word = self._known.get(token)
        if word is None:
            word = self._known[token] = self._tokenizer.decode([token], special=True)
        return word

    def bytes_of(self, token: int) -> list[int] | None:
        """The token's bytes, None where it holds a part of a character only.

        Mutates: what it remembers. Valid until: for ever. Raises: nothing. GIL: as the library.
        """
        word = self.of(token)
        return None if "\ufffd" in word else list(word.encode())

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The tokens of a text, with or without what the model wants around it.

        Mutates: nothing. Valid until: for ever. Raises: InputError. GIL: as the library.
        """
        ids: list[int] = self._tokenizer.encode(text, special=special).tolist()
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included.

        Mutates: nothing. Valid until: for ever. Raises: InputError for a token that is none. GIL:
        as the library.
        """
        for token in tokens:
            if not 0 <= token < self._vocabulary:
                raise InputError(f"tokens holds {token}; valid are 0 to {self._vocabulary - 1}")
        return self._tokenizer.decode(tokens, special=True)

    def about(self) -> dict[str, Any]:
        """What clients ask about the tokenizer.

        Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
        """
        return {**self._tokenizer.facts(), "vocab_size": self._vocabulary}
