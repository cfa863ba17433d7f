"""How many operations a token takes the automaton, in texts of every kind: amortised constant."""

from __future__ import annotations

import numpy as np
import pytest

from core.brute import int32s
from core.test_automaton import TEXTS
from foresay._core import Automaton


@pytest.mark.parametrize("texts", TEXTS.values(), ids=list(TEXTS))
def test_the_median_token_takes_no_longer_in_a_longer_text(texts: list[list[int]]) -> None:
    """Operations, not seconds: those of a token's extend, and of a text that is followed."""
    text = int32s([token for one in texts for token in one])
    automaton = Automaton()
    sequence = automaton.begin()
    took = []
    for token in text:
        before = automaton.link_steps
        automaton.extend(sequence, np.array([token], np.int32))
        took.append(automaton.link_steps - before)
    early, late = np.median(took[1000:6000]), np.median(took[-5000:])
    assert late <= early + 1
    assert np.mean(took) <= 4


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("other", ["real", "(a^k b)^m"])
def test_following_another_text_is_amortised_constant(name: str, other: str) -> None:
    """A group's or a history's text is followed by one more token: the suffixes that are tried are
    at most two for each token, since each that fails makes the match shorter."""
    automaton = Automaton()
    for text in TEXTS[name]:
        automaton.extend(automaton.begin(), int32s(text))
    followed = int32s([token for text in TEXTS[other] for token in text][:20_000])
    steps = automaton.advance_steps(followed)
    assert len(steps) == len(followed)
    assert sum(steps) <= 2 * len(followed)
