# ruff: noqa: RUF001 (typographic signs are meant)
"""Hard tokens by rule: those of `text_patterns`, and rare words and tokens by tables.

A rule marks spans of the decoded text; a token that has a character in a span is hard. Give the
text before the drafted tokens too, at least the current sentence: a name is told from the first
word of a sentence by what stands before it, and a number may have begun earlier.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from foresay._core import FrozenIndex
from foresay.arrays import Int32s, IntsLike, as_tokens, check_positive
from foresay.corpus import open_corpus
from foresay.edge.text_patterns import PATTERNS
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.models.tokenizer import Tokenizer

__all__ = [
    "KINDS",
    "CorpusWords",
    "Decode",
    "Kind",
    "Rules",
    "Span",
    "count_tokens",
    "hard_spans",
    "rare_words",
    "read_tokens",
    "tokens_in",
]

Bools: TypeAlias = NDArray[np.bool_]
Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Token ids to text."""
Kind: TypeAlias = Literal["number", "date", "money", "percentage", "name"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The rules that need no table."""

_WORD = re.compile(r"[\u4e00-\u9fff]+|[^\W\d_\u4e00-\u9fff]+(?:['’-][^\W\d_\u4e00-\u9fff]+)*")
_LONGEST_HAN = 4  # characters of a Chinese word in a table
_REMEMBERED = 1 << 16  # counts of words


class Span(NamedTuple):
    """text[start:end], and the rule that marked it: a `Kind` or "rare"."""

    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules mark tokens.

    kinds          some of `KINDS`
    word_counts    how often each word occurs in some corpus, English in lower case; None: no rule
                   for rare words
    token_counts   the same by token id, from `count_tokens`; None: no rule for rare tokens
    least          a word or token with a smaller count is rare

    Raises: InputError when constructed.
    """

    kinds: tuple[Kind, ...] = KINDS
    word_counts: Mapping[str, int] | None = None
    token_counts: NDArray[np.int64] | None = None
    least: int = 5

    def __post_init__(self) -> None:
        _check_kinds(self.kinds)
        check_positive(self.least, "least")

    def mask(self, text: str, offsets: Any, tokens: IntsLike = ()) -> Bools:
        """Which tokens are hard, bool[n]. `offsets` [n, 2] are their first character and the one
        behind their last in `text`; `tokens` are needed for `token_counts` only, and ids beyond
        that table are rare.

        Raises: InputError for offsets outside the text, and for tokens that are missing.
        """
        spans = hard_spans(text, self.kinds)
        if self.word_counts is not None:
            spans += rare_words(text, self.word_counts, self.least)
        hard = tokens_in(spans, offsets, len(text))
        if self.token_counts is not None:
            ids = as_tokens(tokens)
            if ids.size != hard.size:
                raise InputError(
                    f"there are {ids.size} tokens and {hard.size} offsets; expected equally many"
                )
            counts = np.append(self.token_counts, 0)
            hard |= counts[np.minimum(ids, counts.size - 1)] < self.least
        return hard


def hard_spans(text: str, kinds: Sequence[Kind] = KINDS) -> list[Span]:
    """What the rules of these kinds mark, by start. Spans of different kinds overlap: $5 is money,
    and its 5 a number.

    Raises: InputError for an unknown kind.
    """
    _check_kinds(kinds)
    return sorted(Span(*bounds, kind) for kind in kinds for bounds in PATTERNS[kind](text))


def rare_words(text: str, counts: Mapping[str, int], least: int = 5) -> list[Span]:
    """The words that `counts` has fewer than `least` times; a word that it lacks counts 0.

    English words are looked up in lower case. Chinese has no spaces: at each place the longest word
    of the table is taken, up to 4 characters, or else one character.
    """
    words: list[tuple[int, str]] = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        if not "\u4e00" <= match[0][0] <= "\u9fff":
            words.append((start, match[0].lower()))
            continue
        while start < end:
            sizes = range(min(_LONGEST_HAN, end - start), 0, -1)
            size = next((n for n in sizes if text[start : start + n] in counts), 1)
            words.append((start, text[start : start + size]))
            start += size
    rare = [(start, word) for start, word in words if counts.get(word, 0) < least]
    return [Span(start, start + len(word), "rare") for start, word in rare]


def count_tokens(texts: Iterable[IntsLike], vocabulary: int) -> NDArray[np.int64]:
    """How often each token id occurs in a corpus of texts, int64[vocabulary].

    Raises: InputError for a token id that is not below `vocabulary`.
    """
    check_positive(vocabulary, "vocabulary")
    counts = np.zeros(vocabulary, np.int64)
    for text in texts:
        ids = as_tokens(text)
        if ids.size and ids.max() >= vocabulary:
            raise InputError(f"a text has token {ids.max()}; expected token ids below {vocabulary}")
        counts += np.bincount(ids, minlength=vocabulary)
    return counts


def read_tokens(
    decode: Decode, before: Sequence[int], tokens: Sequence[int]
) -> tuple[str, NDArray[np.int64]]:
    """The tokens as text behind those before them: the whole text, and the tokens' offsets."""
    texts = [decode([*before, *tokens[:n]]) for n in range(len(tokens) + 1)]
    # A token that completes no character is decoded as a mark that the next one replaces.
    ends = [len(texts[-1])] * len(texts)
    for at in range(len(texts) - 2, -1, -1):
        ends[at] = min(len(texts[at].rstrip("\ufffd")), ends[at + 1])
    return texts[-1], np.array(list(pairwise(ends)), np.int64).reshape(-1, 2)


def tokens_in(spans: Iterable[tuple[int, int, str]], offsets: Any, length: int) -> Bools:
    """Which tokens have a character in a span, bool[n]; one without characters stands for the
    character at its place.

    Raises: InputError for offsets that are not [n, 2], fall, or leave 0 to `length`.
    """
    at = np.asarray(offsets)
    if not at.size:
        return np.zeros(0, np.bool_)
    if at.ndim != 2 or at.shape[1] != 2 or at.dtype.kind not in "iu":
        raise InputError(f"offsets are {at.dtype}{list(at.shape)}; expected whole numbers [n, 2]")
    for token in np.flatnonzero((at[:, 0] < 0) | (at[:, 1] < at[:, 0]) | (at[:, 1] > length)):
        raise InputError(
            f"offsets[{token}] is {at[token].tolist()}; expected start <= end, from 0 to {length}"
        )
    inside = np.zeros(length + 2, np.int64)  # behind the text there is no span
    for start, end, _ in spans:
        inside[start + 1 : end + 1] = 1
    before = np.cumsum(inside)  # characters in a span before each place
    behind = np.maximum(at[:, 1], at[:, 0] + 1)
    hard: Bools = before[behind] > before[at[:, 0]]
    return hard


def _check_kinds(kinds: Sequence[Kind]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"kind is {kind!r}; expected some of {', '.join(KINDS)}")


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
        if word not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[word] = sum(map(self._count, {word, word[:1].upper() + word[1:]}))
        if not self._known[word]:
            raise KeyError(word)
        return self._known[word]

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
