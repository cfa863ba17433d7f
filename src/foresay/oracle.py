"""The brute-force matcher: the slow reference of the suffix automaton.

Every answer of the fast matcher is defined here in a few lines of plain Python that look at every
position. It is documentation, the tests' oracle, and a debugging aid; no other module of the
package uses it.

Positions are *ends*: the occurrence of a context that ends at `end` is `text[end - len : end]`, and
what follows it is `text[end]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Text = Sequence[int]


def ends(text: Text, context: Text) -> list[int]:
    """Where `context` occurs in `text`, oldest first, overlaps included."""
    n = len(context)
    wanted = list(context)
    return [end for end in range(n, len(text) + 1) if list(text[end - n : end]) == wanted]


def longest_match(text: Text) -> int:
    """Length of the longest suffix of `text` that also ends at an earlier position.

    This is `len(link(last))` in a suffix automaton of `text`.
    """
    for length in range(len(text) - 1, 0, -1):
        if len(ends(text, text[len(text) - length :])) > 1:
            return length
    return 0


def occurrences(texts: Sequence[Text], context: Text) -> int:
    """How often `context` occurs in all `texts`; never across the end of one."""
    return sum(len(ends(text, context)) for text in texts)


def first_end(texts: Sequence[Text], context: Text) -> tuple[int, int] | None:
    """(text index, end) of the first occurrence, in the order of the texts."""
    return next(((i, end) for i, text in enumerate(texts) for end in ends(text, context)), None)


def last_end(texts: Sequence[Text], context: Text) -> tuple[int, int] | None:
    """(text index, end) of the last occurrence, in the order of the texts."""
    found = [(i, end) for i, text in enumerate(texts) for end in ends(text, context)]
    return found[-1] if found else None


def continuations(texts: Sequence[Text], context: Text) -> Counter[int]:
    """What follows `context`, and how often."""
    return Counter(text[end] for text in texts for end in ends(text, context) if end < len(text))


def chain(text: Text, budget: int, occurrence: str = "latest") -> list[int]:
    """The tokens that followed the longest repeated suffix: the draft of a longest-match drafter.

    `occurrence` is "latest" or "first": which earlier place to copy from. The copy stops at the end
    of the text. Empty when nothing repeats.
    """
    return _copy(text, longest_match(text), budget, occurrence)


def prompt_lookup(
    text: Text, budget: int, min_n: int, max_n: int, occurrence: str = "first"
) -> list[int]:
    """The tokens that followed the longest repeated n-gram with min_n <= n <= max_n."""
    longest = min(longest_match(text), max_n)
    return _copy(text, longest, budget, occurrence) if longest >= min_n else []


def _copy(text: Text, length: int, budget: int, occurrence: str) -> list[int]:
    if length == 0:
        return []
    earlier = ends(text, text[len(text) - length :])[:-1]
    end = earlier[-1] if occurrence == "latest" else earlier[0]
    return list(text[end : end + budget])
