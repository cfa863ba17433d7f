"""Tokens to text as they come: nothing incomplete, nothing lost, nothing behind a stop."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from foresay.engine.text import IncrementalDetokenizer


def decode(tokens: Sequence[int]) -> str:
    """Tokens are bytes, so that most characters need several."""
    return bytes(tokens).decode(errors="replace")


@given(text=st.text(max_size=30))
def test_the_text_comes_whole(text: str) -> None:
    answer, taken = IncrementalDetokenizer(decode), ""
    for token in text.encode():
        assert not answer.add(token)
        taken += answer.take()
        assert "\ufffd" not in taken or "\ufffd" in text
    answer.finish()
    taken += answer.take(ended=True)
    assert answer.text == taken == text


@given(
    text=st.text("abc€", max_size=40),
    stops=st.lists(st.text("abc€", min_size=1, max_size=4)),
    least=st.one_of(st.just(0), st.integers(0, 60)),
)
def test_the_first_stop_to_be_complete_ends_the_text(
    text: str, stops: list[str], least: int
) -> None:
    """The first that is not complete within the first `least` tokens."""
    answer, taken = IncrementalDetokenizer(decode, stops, least), ""
    used = 0
    for token in text.encode():
        used += 1
        ended = answer.add(token)
        taken += answer.take()
        assert text.startswith(taken)
        if ended:
            break
    answer.finish()
    taken += answer.take(ended=True)
    free = len(decode(text.encode()[:least]).rstrip("\ufffd"))
    places = ((s, text.find(s, max(free - len(s) + 1, 0))) for s in stops)
    ends = [(at + len(s), at) for s, at in places if at >= 0]
    assert taken == answer.text == (text[: min(ends)[1]] if ends else text)
    if ends:
        assert used == len(text[: min(ends)[0]].encode())
        assert answer.stopped is not None and text[: min(ends)[0]].endswith(answer.stopped)


def test_half_a_character_at_the_end_is_not_lost() -> None:
    answer = IncrementalDetokenizer(decode)
    for token in "a€".encode()[:-1]:
        answer.add(token)
    assert answer.text == "a"
    answer.finish()
    assert answer.text == "a\ufffd"
