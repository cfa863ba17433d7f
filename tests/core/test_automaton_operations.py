"""How many operations a token takes the automaton, in texts of every kind: amortised constant."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from core.brute import fibonacci, int32s
from foresay._core import COUNTED, Automaton


def recorded() -> list[list[int]]:
    path = Path(__file__).parents[1] / "recorded.jsonl.gz"
    with gzip.open(path, "rt") as lines:
        return [(r := json.loads(line))["prompt"] + r["output"] for line in lines]


TEXTS: dict[str, list[list[int]]] = {
    "random": [np.random.default_rng(1).integers(0, 4, 20_000).tolist()],
    "random, large alphabet": [np.random.default_rng(2).integers(0, 5000, 20_000).tolist()],
    "Fibonacci": [fibonacci(20_000)],
    "a^n": [[1] * 20_000],
    "many a^n": [[1] * 500 for _ in range(40)],
    "periodic": [[1, 2, 3, 4, 5, 6, 7] * 3000],
    "period of 40": [list(range(40)) * 500],
    "(a^k b)^m": [([1] * 50 + [2]) * 400],
    "a^n b^n": [[1] * 10_000 + [2] * 10_000],
    "real": recorded(),
    "real, every text twice": recorded() * 2,
}


@pytest.mark.parametrize("texts", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.parametrize("occurrences", [False, True], ids=["novelties", "occurrences"])
@pytest.mark.parametrize("in_turns", [False, True], ids=["in a row", "in turns"])
def test_link_steps_are_linear(texts: list[list[int]], occurrences: bool, in_turns: bool) -> None:
    """An extend adds edges (each once: at most 3 n), leads edges to a split state (at most n more
    over all, the classical bound), and counts once; or at every context up to COUNTED tokens."""
    automaton = Automaton(occurrences)
    sequences = [automaton.begin() for _ in texts]
    if in_turns:
        for at in range(0, max(map(len, texts)), 16):
            for sequence, text in zip(sequences, texts, strict=True):
                automaton.extend(sequence, int32s(text[at : at + 16]))
    else:
        for sequence, text in zip(sequences, texts, strict=True):
            automaton.extend(sequence, int32s(text))
    n = sum(map(len, texts))
    assert automaton.size == n
    assert automaton.link_steps <= (COUNTED + 4 if occurrences else 4) * n
    assert automaton.num_inner_states <= n
    automaton.check_integrity()


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
