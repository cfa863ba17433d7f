"""Prompt lookup against the brute-force matcher, and against how transformers words it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay import Verdict, oracle
from foresay.drafters import NgramDrafter
from foresay.errors import InputError

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def windows(text: list[int], num_output: int, max_n: int) -> list[int]:
    """transformers' prompt lookup in its own words: every n from large to small, every window."""
    for n in range(min(max_n, len(text) - 1), 0, -1):
        for start in range(len(text) - n + 1):
            if text[start : start + n] == text[-n:]:
                end = start + n
                if end < min(end + num_output, len(text)):
                    return text[end : end + num_output]
    return []


@given(texts, st.integers(1, 3), st.integers(0, 5), st.integers(0, 8), st.booleans())
def test_equals_brute_force(text: list[int], low: int, more: int, budget: int, old: bool) -> None:
    occurrence: Literal["first", "latest"] = "first" if old else "latest"
    drafter = NgramDrafter(low, low + more, occurrence)
    draft = drafter.propose([drafter.begin(text)], [budget])[0]
    expected = oracle.prompt_lookup(text, budget, low, low + more, occurrence)
    assert draft.tokens.tolist() == expected
    assert draft.parents.tolist() == list(range(-1, len(expected) - 1))


@given(texts, st.integers(1, 6), st.integers(1, 8))
def test_equals_the_known_baseline(text: list[int], max_n: int, budget: int) -> None:
    drafter = NgramDrafter(1, max_n, occurrence="first")
    draft = drafter.propose([drafter.begin(text)], [budget])[0]
    assert draft.tokens.tolist() == windows(text, budget, max_n)


@given(texts, texts, st.integers(1, 7))
def test_text_grown_equals_text_given(prompt: list[int], output: list[int], size: int) -> None:
    drafter = NgramDrafter()
    grown = drafter.begin(prompt)
    for start in range(0, len(output), size):
        drafter.observe([grown], [Verdict([], output[start : start + size])])
    given_whole = drafter.begin(prompt + output)
    first, second = drafter.propose([grown, given_whole], [8, 8])
    assert first == second


def test_counts_what_it_holds() -> None:
    drafter = NgramDrafter()
    state = drafter.begin(np.arange(100, dtype=np.int32))
    drafter.observe([state], [Verdict([], list(range(150)))])
    assert drafter.tokens_held() == 250
    assert drafter.bytes_used() >= 4 * 250
    drafter.finish(state)
    assert drafter.tokens_held() == drafter.bytes_used() == 0


@pytest.mark.parametrize(("low", "high"), [(0, 3), (3, 2), (-1, -1)])
def test_bad_sizes(low: int, high: int) -> None:
    with pytest.raises(InputError, match=f"min_n is {low} and max_n is {high}"):
        NgramDrafter(low, high)


def test_bad_occurrence() -> None:
    with pytest.raises(InputError, match="'middle'"):
        NgramDrafter(occurrence="middle")  # type: ignore[arg-type]
