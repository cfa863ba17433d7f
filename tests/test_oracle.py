"""The brute-force matcher on examples small enough to check by eye."""

from __future__ import annotations

from foresay import oracle

ABCBC = [1, 2, 3, 2, 3]


def test_longest_match() -> None:
    assert oracle.longest_match(ABCBC) == 2  # "bc" ended at 3 before
    assert oracle.longest_match([1, 2, 3]) == 0
    assert oracle.longest_match([7] * 5) == 4  # overlaps count
    assert oracle.longest_match([]) == 0


def test_occurrences() -> None:
    texts = [ABCBC, [2, 3, 9]]
    assert oracle.ends(ABCBC, [2, 3]) == [3, 5]
    assert oracle.occurrences(texts, [2, 3]) == 3
    assert oracle.occurrences(texts, [3, 2]) == 1  # not across the end of a text
    assert oracle.first_end(texts, [2, 3]) == (0, 3)
    assert oracle.last_end(texts, [2, 3]) == (1, 2)
    assert oracle.first_end(texts, [5]) is oracle.last_end(texts, [5]) is None
    assert oracle.continuations(texts, [3]) == {2: 1, 9: 1}


def test_chain() -> None:
    assert oracle.chain(ABCBC, 5) == [2, 3]
    assert oracle.chain(ABCBC, 1) == [2]
    assert oracle.chain([1, 5, 1, 6, 1], 9) == [6, 1]
    assert oracle.chain([1, 5, 1, 6, 1], 9, "first") == [5, 1, 6, 1]
    assert oracle.chain([1, 2], 9) == []
    assert oracle.prompt_lookup(ABCBC, 5, min_n=3, max_n=3) == []
