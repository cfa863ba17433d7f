"""How often words occur in a corpus file, looked up as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foresay._core import FrozenIndex
from foresay.arrays import Int32s, IntsLike
from foresay.corpus import open_corpus

if TYPE_CHECKING:
    from foresay.models.tokenizer import Tokenizer

__all__ = ["CorpusWords"]

_MOST = 1 << 16  # counts that are remembered


class CorpusWords(Mapping[str, int]):
    """The counts that `Rules.word_counts` takes, of a corpus file.

    index    of `corpus.open_corpus`
    encode   text to token ids, without special tokens

    A word counts where its tokens stand: with a space before it or without, in lower case or with a
    capital. A word whose tokens begin a longer word counts there too. `in` asks whether it occurs.
    It cannot be iterated: a corpus has no list of its words. Looking a word up remembers its count.
    """

    def __init__(self, index: FrozenIndex, encode: Callable[[str], IntsLike]) -> None:
        self._index = index
        self._encode = encode
        self._known: dict[str, int] = {}

    @classmethod
    def of(cls, file: str | Path, tokenizer: Tokenizer) -> CorpusWords:
        """Those of a corpus file. Raises: as `corpus.open_corpus`."""
        return cls(open_corpus(file), lambda text: tokenizer.encode(text, special=False))

    def __getitem__(self, word: str) -> int:
        """Raises: KeyError for a word that does not occur."""
        count = self._known.get(word)
        if count is None:
            forms = {word, word[:1].upper() + word[1:]}
            count = sum(map(self._count, forms))
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[word] = count
        if not count:
            raise KeyError(word)
        return count

    def _count(self, form: str) -> int:
        alone, spaced = (np.asarray(self._encode(text), np.int32) for text in (form, " " + form))
        count = self._occurrences(alone)
        if not np.array_equal(spaced[-len(alone) :], alone):  # else those are counted already
            count += self._occurrences(spaced)
        return count

    def _occurrences(self, tokens: Int32s) -> int:
        length, first, end = self._index.advance(tokens)
        return end - first if length == len(tokens) > 0 else 0

    def __iter__(self) -> Iterator[str]:
        raise TypeError("a corpus has no list of its words; expected a word to look up")

    def __len__(self) -> int:
        raise TypeError("a corpus has no list of its words; expected a word to look up")
