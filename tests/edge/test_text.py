"""The edge's view of a stream: commits in any order and cut, roll-back, hashes, counts."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.draft import Draft
from foresay.drafter import Source
from foresay.edge.text import EdgeText, best_chain
from foresay.errors import GapError, StreamError

PROMPT = [5, 6, 7]
Tokens = st.lists(st.integers(0, 3), max_size=30)


def crc(tokens: list[int]) -> int:
    return zlib.crc32(np.array(tokens, "<i4").tobytes())


def chain(*tokens: int) -> Draft:
    return Draft.chain(np.array(tokens, np.int32))


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """A true text, and pieces of it in any order, again and again."""
    true = draw(Tokens)
    places = st.integers(0, len(true))
    cuts = draw(st.lists(st.tuples(places, places), max_size=20))
    return true, [(min(a, b), max(a, b)) for a, b in cuts]


@given(commits(), st.lists(st.tuples(st.integers(0, 19), Tokens), max_size=8))
def test_the_text_is_always_a_prefix_of_the_true_one(
    found: tuple[list[int], list[tuple[int, int]]], drafts: list[tuple[int, list[int]]]
) -> None:
    true, cuts = found
    text = EdgeText(PROMPT)
    longest = 0
    for number, (first, last) in enumerate(cuts):
        for _, tokens in (d for d in drafts if d[0] == number):
            before = text.following(text.start)
            sent = text.send(chain(*tokens))
            assert sent.base == text.start + len(before)
            assert sent.prefix == crc([*PROMPT, *before])
        try:
            taken = text.commit(text.start + last, np.array(true[first:last], np.int32))
        except GapError:
            assert first > longest
            continue
        assert list(taken.tokens) == true[longest:last] if last > longest else not taken.tokens
        longest = max(longest, last)
        assert text.tokens == true[:longest]
        assert text.position == text.confirmed == text.start + longest
        assert text.hash_at(text.position) == crc([*PROMPT, *text.tokens])
        assert len(text.sources) == longest
        counted = text.statistics
        assert min(counted.accepted, text.in_flight, counted.wasted - text.in_flight) >= 0
        assert text.head == text.position + len(text.ahead())


@given(Tokens, st.integers(0, 29), st.integers(0, 3))
def test_a_commit_that_contradicts_is_refused_and_changes_nothing(
    true: list[int], at: int, token: int
) -> None:
    text = EdgeText(PROMPT)
    text.commit(text.start + len(true), np.array(true, np.int32))
    if at >= len(true) or true[at] == token:
        return
    wrong = [*true[:at], token, *true[at + 1 :], 1, 2]
    with pytest.raises(StreamError, match=f"token {token} at position {at + 3}") as caught:
        text.commit(text.start + len(wrong), np.array(wrong, np.int32))
    assert caught.value.code == "contradiction"
    assert text.tokens == true


def test_a_commit_into_the_prompt_is_refused() -> None:
    with pytest.raises(GapError, match="from position 2 on; expected them from 3"):
        EdgeText(PROMPT).commit(4, np.array([1, 2], np.int32))


def test_drafts_continue_each_other_and_agree() -> None:
    text = EdgeText(PROMPT)
    one = text.send(chain(1, 2), [Source.OWN, Source.CORPUS])
    two = text.send(chain(3, 4))
    assert (one.seq, one.base, one.prefix) == (1, 3, crc(PROMPT))
    assert (two.seq, two.base, two.prefix) == (2, 5, crc([*PROMPT, 1, 2]))
    assert (text.in_flight, text.head, text.position) == (4, 7, 3)
    taken = text.commit(6, np.array([1, 2, 3], np.int32), seq=1)
    assert taken.sources == (Source.OWN, Source.CORPUS, Source.OTHER)
    assert [(d.seq, d.accepted, d.examined) for d in taken.decided] == [(1, 2, 2)]
    assert text.ahead() == [4] and text.in_flight == 1
    assert text.send(chain(9)).prefix == crc([*PROMPT, 1, 2, 3, 4])


def test_a_mismatch_rolls_back_what_is_behind_it() -> None:
    text = EdgeText(PROMPT)
    text.send(chain(1, 2))
    text.send(chain(3, 4, 5))
    taken = text.commit(5, np.array([1, 9], np.int32), seq=1)
    assert taken.sources == (Source.OTHER, Source.MODEL)
    assert [(d.seq, d.accepted, d.examined) for d in taken.decided] == [(1, 1, 2), (2, 0, 0)]
    assert (text.in_flight, text.head, text.statistics.wasted) == (0, 5, 4)
    counted = text.statistics
    assert (counted.rolled_back, counted.rounds, counted.stale, counted.accepted) == (4, 1, 1, 1)
    assert (counted.examined, counted.accepted_at) == ([1, 1], [1, 0])
    assert text.send(chain(7)).prefix == crc([*PROMPT, 1, 9])


def test_a_tree_may_be_left_to_a_side_branch() -> None:
    tree = Draft(
        np.array([1, 2, 3, 4], np.int32),
        np.array([-1, -1, 1, 0], np.int32),
        np.array([0.6, 0.3, 0.2, 0.5], np.float32),
    )
    assert best_chain(tree) == [0, 3]
    text = EdgeText(PROMPT)
    text.send(tree)
    text.send(chain(8))
    assert text.ahead() == [1, 4, 8]
    taken = text.commit(4, np.array([2], np.int32), seq=2)
    assert [d.seq for d in taken.decided] == [2] and text.ahead() == [3]
    taken = text.commit(5, np.array([3], np.int32), seq=2)
    assert [(d.seq, d.accepted) for d in taken.decided] == [(1, 2)] and not text.in_flight


def test_a_lost_connection_keeps_the_numbers_and_a_new_stream_does_not() -> None:
    text = EdgeText(PROMPT)
    text.send(chain(1))
    text.lose()
    assert text.send(chain(2)).seq == 2
    assert text.statistics.lost == 1
    text.commit(5, np.array([2, 3], np.int32))
    text.restart()
    assert (text.confirmed, text.head, text.position) == (3, 3, 5)
    again = text.send(chain(2))
    assert (again.seq, again.base, again.prefix) == (1, 3, crc(PROMPT))
    assert text.following(5) == []
    assert not text.commit(4, np.array([2], np.int32)).tokens
    text.send(chain(3, 9))
    assert text.following(5) == [9]
    with pytest.raises(StreamError, match="had committed 3 before"):
        text.commit(5, np.array([4], np.int32))


def test_an_empty_draft_is_numbered_and_not_in_flight() -> None:
    text = EdgeText(PROMPT)
    assert text.send(Draft.empty()).seq == 1
    assert text.in_flight == text.statistics.drafts == 0
    assert text.send(chain(1)).seq == 2
