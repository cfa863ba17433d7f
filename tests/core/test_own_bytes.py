"""The bound on the automata of own texts, for members of groups."""

from __future__ import annotations

import numpy as np
import pytest

from doubles import tokens
from foresay import Verdict
from foresay.drafter import Source
from foresay.drafters import SuffixDrafter

PROMPT = np.arange(200, dtype=np.int32)


def grown(bound: int, group: str | None) -> tuple[SuffixDrafter, list[object]]:
    """Eight requests with 4,800 random tokens each."""
    drafter = SuffixDrafter(history=False, own_bytes=bound)
    states = [drafter.begin(PROMPT, group=group) for _ in range(8)]
    random = np.random.default_rng(0)
    for _ in range(48):
        texts = random.integers(1000, 1500, (8, 100), np.int32)
        drafter.observe(states, [Verdict([], text) for text in texts])
    drafter.check_integrity()
    return drafter, list(states)


def test_members_of_groups_keep_the_bound() -> None:
    (free, one), (bounded, two) = grown(1 << 50, "g"), grown(300_000, "g")
    assert len(one) == len(two)  # both are kept: a state that is dropped frees its text
    (alone, states) = grown(1 << 50, None)
    own = alone.bytes_used()
    for state in states:
        alone.finish(state)  # type: ignore[arg-type]
    own -= alone.bytes_used()
    assert own > 1_500_000
    saved = free.bytes_used() - bounded.bytes_used()
    assert 0.75 * own - 300_000 < saved < own


def test_requests_without_a_group_keep_their_text() -> None:
    assert grown(0, None)[0].bytes_used() == grown(1 << 50, None)[0].bytes_used()


def test_who_loses_its_text_is_the_same_each_time() -> None:
    """Also among texts that are equally large: not by their addresses."""
    found = []
    for _ in range(6):
        drafter, states = grown(900_000, "g")
        drafter.propose(states, [4] * 8)  # type: ignore[arg-type]
        named = [drafter.sources(state) for state in states]  # type: ignore[arg-type]
        found.append([any(Source.OWN in each for each in of) for of in named])
    assert any(found[0]) and not all(found[0])
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("bound", [0, 1 << 50])
def test_without_own_text_prompt_and_answer_are_drafted_from_the_group(bound: int) -> None:
    drafter, states = grown(bound, "g")
    known = tokens(5, 6, 7, 8, 9, 10)  # of the prompt's beginning
    drafter.observe(states, [Verdict([], known)] * 8)  # type: ignore[arg-type]
    for draft in drafter.propose(states, [4] * 8):  # type: ignore[arg-type]
        assert draft.tokens[:1].tolist() == [11]
    for state in states:
        drafter.finish(state)  # type: ignore[arg-type]
    drafter.drop_group("g")
    assert drafter.bytes_used() < 900_000  # what is left is what was learned, not text
