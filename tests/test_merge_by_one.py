"""Steps of a merge in which one drafter takes part alone, because the others rest."""

from __future__ import annotations

from typing import Any

from doubles import tokens
from foresay.drafters import MergeDrafter
from slow_drafters import STEP, Clock, Knowing, always, copies, pair, slowly, verdict


def test_who_rests_is_told_later_and_of_everything() -> None:
    """Then the only drafter that is asked drafts as if it were alone."""
    clock, _, slow, both = pair(knows=always(0.0001), per_pass=slowly(0.3))
    alone = Knowing(clock, copies, 12, slowly(0.0005))
    told: list[int] = []
    heard = slow.observe

    def observe(states: Any, verdicts: Any) -> None:
        told.append(sum(len(one.tokens) for one in verdicts))
        heard(states, verdicts)

    slow.observe = observe  # type: ignore[method-assign]
    state, own = both.begin(tokens(0)), alone.begin(tokens(0))
    place = steps = asked = 0
    while place < 1500:
        both.price(STEP, 0.01 * STEP, STEP)
        before = len(slow.asked)
        drafts, wanted = both.propose([state], [8]), alone.propose([own], [8])
        steps, asked = steps + 1, asked + (len(slow.asked) > before)
        if len(slow.asked) == before:
            assert list(drafts) == wanted
            assert both.proposers(state) == [(0,)] * len(drafts[0])
        found = verdict(drafts[0], 0, place)
        place += len(found.tokens)
        both.observe([state], [found])
        alone.observe([own], [found])
        assert state.states[0] == own
    assert 0 < asked < 0.1 * steps
    assert len(told) < 0.2 * steps  # and not in every step
    assert sum(told) < place
    both.finish(state)
    assert state.states[1] == state.states[0] == [0, place]
    assert sum(told) == place


def test_a_step_that_failed_is_forgotten_by_those_that_rest() -> None:
    _, _, slow, both = pair(knows=always(0.0001), per_pass=slowly(0.3))
    state, place = both.begin(tokens(0)), 0
    for step in range(300):
        both.price(STEP, 0.01 * STEP, STEP)
        drafts = both.propose([state], [8])
        if step % 7 == 3:  # no verdict: the step is done again
            both.price(STEP, 0.01 * STEP, STEP)
            again = both.propose([state], [8])
            if slow.asked and not slow.asked[-1]:
                assert list(again) == list(drafts)
            drafts = again
        found = verdict(drafts[0], 0, place)
        place += len(found.tokens)
        both.observe([state], [found])
    both.finish(state)
    assert state.states[1] == state.states[0] == [0, place]


def test_who_rests_may_stand_before_the_one_that_drafts() -> None:
    clock = Clock()
    slow = Knowing(clock, knows=always(0.0001), per_pass=slowly(0.3))
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    both = MergeDrafter(slow, quick, clock=clock)
    state, place, alone = both.begin(tokens(0)), 0, 0
    while place < 600:
        both.price(STEP, 0.01 * STEP, STEP)
        before = len(slow.asked)
        (draft,) = both.propose([state], [8])
        alone += len(slow.asked) == before and both.proposers(state) == [(1,)] * len(draft)
        found = verdict(draft, 0, place)
        place += len(found.tokens)
        both.observe([state], [found])
    assert alone > 10
    both.finish(state)
    assert state.states[0] == state.states[1] == [0, place]
