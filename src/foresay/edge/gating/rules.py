# ruff: noqa: RUF001 (full-width and typographic signs are meant)
"""Hard tokens by rule: numbers, dates, money, percentages, names and rare words, in English and
Chinese text.

A rule marks spans of the decoded text; a token that has a character in a span is hard. Give the
text before the drafted tokens too, at least the current sentence: a name is told from the first
word of a sentence by what stands before it, and a number may have begun earlier.

No model and no dependency: patterns and short lists. They take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import IntsLike, as_tokens, check_positive
from foresay.edge.gating.names import names
from foresay.edge.gating.numbers import dates, money, numbers, percentages
from foresay.errors import InputError

__all__ = [
    "KINDS",
    "Decode",
    "Kind",
    "Rules",
    "Span",
    "count_tokens",
    "hard_spans",
    "offsets_of_pieces",
    "rare_tokens",
    "rare_words",
    "read_tokens",
    "tokens_in",
]

Bools: TypeAlias = NDArray[np.bool_]
Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Token ids to text."""
Kind: TypeAlias = Literal["number", "date", "money", "percentage", "name"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""The rules that need no table. Rare words need one: `Rules.word_counts`."""

_WORD = re.compile(r"[\u4e00-\u9fff]+|[^\W\d_\u4e00-\u9fff]+(?:['’-][^\W\d_\u4e00-\u9fff]+)*")
_LONGEST_HAN = 4  # characters of a Chinese word in a table


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
        behind their last in `text`; `tokens` are needed for `token_counts` only.

        Raises: InputError for offsets outside the text, and for tokens that are
        missing.
        """
        spans = hard_spans(text, self.kinds)
        if self.word_counts is not None:
            spans += rare_words(text, self.word_counts, self.least)
        hard = tokens_in(spans, offsets, len(text))
        if self.token_counts is not None:
            rare = rare_tokens(tokens, self.token_counts, self.least)
            if rare.size != hard.size:
                raise InputError(
                    f"there are {rare.size} tokens and {hard.size} offsets; expected equally many"
                )
            hard |= rare
        return hard


def hard_spans(text: str, kinds: Sequence[Kind] = KINDS) -> list[Span]:
    """What the rules of these kinds mark, by start. Spans of different kinds overlap: $5 is money,
    and its 5 a number.

    Raises: InputError for an unknown kind.
    """
    _check_kinds(kinds)
    found = list(numbers(text)) if {"number", "money", "percentage"} & set(kinds) else []
    spans = {
        "number": iter(found),
        "date": dates(text),
        "money": money(text, found),
        "percentage": percentages(text, found),
        "name": names(text),
    }  # nothing is searched before it is asked for
    return sorted(Span(*bounds, kind) for kind in kinds for bounds in spans[kind])


def rare_words(text: str, counts: Mapping[str, int], least: int = 5) -> list[Span]:
    """The words that `counts` has fewer than `least` times; a word that it lacks counts 0.

    English words are looked up in lower case. Chinese has no spaces: at each place the longest word
    of the table is taken, up to 4 characters, or else one character.
    """
    found = []
    for match in _WORD.finditer(text):
        start, end = match.span()
        if not "\u4e00" <= match[0][0] <= "\u9fff":
            if counts.get(match[0].lower(), 0) < least:
                found.append(Span(start, end, "rare"))
            continue
        while start < end:
            sizes = range(min(_LONGEST_HAN, end - start), 0, -1)
            size = next((n for n in sizes if text[start : start + n] in counts), 1)
            if counts.get(text[start : start + size], 0) < least:
                found.append(Span(start, start + size, "rare"))
            start += size
    return found


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


def rare_tokens(tokens: IntsLike, counts: NDArray[np.int64], least: int = 5) -> Bools:
    """Which tokens occur fewer than `least` times, bool[n]; ids beyond the table are rare."""
    ids = as_tokens(tokens)
    table = np.append(counts, 0)
    rare: Bools = table[np.minimum(ids, counts.size)] < least
    return rare


def offsets_of_pieces(pieces: Sequence[str], start: int = 0) -> NDArray[np.int64]:
    """The offsets [n, 2] of tokens whose texts stand one after the other from `start`. A token that
    completes no character has an empty text, and the place of the next character."""
    ends = start + np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return np.stack([ends[:-1], ends[1:]], axis=1)


def read_tokens(
    decode: Decode, before: Sequence[int], tokens: Sequence[int]
) -> tuple[str, NDArray[np.int64]]:
    """The tokens as text behind those before them: the whole text, and the tokens' offsets."""
    texts = [decode([*before, *tokens[:n]]) for n in range(len(tokens) + 1)]
    # A token that completes no character is decoded as a mark that the next one replaces.
    ends = [len(texts[-1])] * len(texts)
    for at in range(len(texts) - 2, -1, -1):
        ends[at] = min(len(texts[at].rstrip("\ufffd")), ends[at + 1])
    pieces = [texts[-1][a:b] for a, b in pairwise(ends)]
    return texts[-1], offsets_of_pieces(pieces, ends[0])


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
    bad = (at[:, 0] < 0) | (at[:, 1] < at[:, 0]) | (at[:, 1] > length)
    for token in np.flatnonzero(bad):
        raise InputError(
            f"offsets[{token}] is {at[token].tolist()}; expected start <= end, from 0 to {length}"
        )
    merged: list[list[int]] = []  # apart and in order
    for start, end, _ in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    if not merged:
        return np.zeros(len(at), np.bool_)
    starts, ends = np.array(merged).T
    first = np.searchsorted(ends, at[:, 0], side="right")  # the first span that ends behind it
    reaches = np.maximum(at[:, 1], at[:, 0] + 1)
    inside: Bools = np.append(starts, np.iinfo(np.int64).max)[first] < reaches
    return inside


def _check_kinds(kinds: Sequence[Kind]) -> None:
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"kind is {kind!r}; expected some of {', '.join(KINDS)}")
