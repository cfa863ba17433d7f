"""Drafters of a merge are shown what they want to see where that pays; simulated seconds."""

from __future__ import annotations

import numpy as np
import pytest

from doubles import tokens
from foresay import Verdict, Wants
from foresay.drafters import MergeDrafter, RecycleDrafter, SuffixDrafter
from foresay.drafters.merge import seeing
from foresay.drafters.merge.seeing import Seeing
from slow_drafters import STEP, Clock, Knowing, alone, always, copies, slowly, speed

SHOWING = 0.1 * STEP


def watching(chance: float, wants: Wants | None = None) -> tuple[Clock, Knowing, MergeDrafter]:
    """A drafter of copies, and one that wants to see the likeliest tokens."""
    clock = Clock()
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    other = Knowing(clock, always(chance), 6, slowly(0.001), wants=wants or Wants(topk=4))
    return clock, other, MergeDrafter(quick, other, clock=clock)


def test_a_drafter_that_wins_less_than_it_is_shown_for_rests() -> None:
    clock, other, both = watching(0.01)
    gained = speed(both, clock, showing=SHOWING, length=2000)
    assert gained > 0.98 * alone(copies, 12, slowly(0.0005))
    assert other.share_asked(500) < 0.1


def test_without_rests_it_would_cost_what_showing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Seeing, "observe", lambda self, net: None)  # wrong: always awake
    clock, _, both = watching(0.01)
    gained = speed(both, clock, showing=SHOWING)
    assert gained < 0.96 * alone(copies, 12, slowly(0.0005))


def test_a_drafter_that_wins_more_stays() -> None:
    clock, other, both = watching(0.8)
    assert speed(both, clock, showing=SHOWING) > 1.3 * alone(copies, 12, slowly(0.0005))
    assert other.share_asked() > 0.9


def test_one_that_becomes_useful_is_found_again() -> None:
    clock = Clock()
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    late = Knowing(
        clock,
        lambda place: 0.9 if place > 1000 else 0.01,
        6,
        slowly(0.001),
        wants=Wants(hidden=True),
    )
    both = MergeDrafter(quick, late, clock=clock)
    speed(both, clock, showing=SHOWING, length=4000)
    assert late.share_asked(300, 600) < 0.3
    assert late.share_asked(-300) > 0.9


def test_one_that_wants_nothing_never_rests() -> None:
    clock, _, both = watching(0.01, Wants())
    speed(both, clock, showing=SHOWING)
    assert all(both._members.awake(k) for k in (0, 1))


def test_without_prices_everything_is_shown() -> None:
    _, _, both = watching(0.0001)
    state = both.begin(tokens(0))
    for _ in range(1000):
        both.propose([state], [4])
        both.shown(10 * STEP)
        both.observe([state], [Verdict([], [1])])
    assert both.wants_now() == Wants(topk=4)


def test_trials_double_the_rest_that_follows_them() -> None:
    one, rests, asleep = Seeing(), [], 0
    for _ in range(20000):
        one.observe(-0.1)
        if not one.awake:
            asleep += 1
        elif asleep:
            rests.append(asleep)
            asleep = 0
    first = seeing._REST
    assert rests[:5] == [first, 2 * first, 4 * first, 8 * first, 16 * first]
    assert max(rests) == seeing._LONGEST


def awake(one: Seeing, net: float) -> bool:
    """Whether it is awake after a step."""
    one.observe(net)
    return one.awake


def test_a_trial_that_succeeds_ends_the_long_rests() -> None:
    one = Seeing()
    for _ in range(3000):
        one.observe(-0.1)
    while not awake(one, 0.0):
        pass
    assert all(awake(one, 0.3) for _ in range(100))
    while awake(one, -0.1):
        pass
    rest = 1
    while not awake(one, 0.0):
        rest += 1
    assert rest == seeing._REST


def test_who_rests_gets_every_token_and_nothing_else() -> None:
    recycle, suffix = RecycleDrafter(k=2), SuffixDrafter()
    both = MergeDrafter(suffix, recycle)
    both.price(1.0, 0.1, 1.0)
    state = both.begin(tokens(1, 2, 3, 1, 2, 3, 1, 2))
    both._members._seeing[1].awake = False
    for at in range(5):
        assert both.wants_now() == Wants()
        both.price(1.0, 0.1, 1.0)
        draft = both.propose([state], [4])[0]
        assert not any(1 in who for who in both.proposers(state))
        path = [0] if len(draft) else []
        both.observe([state], [Verdict(path, [*draft.tokens[path].tolist(), 7 + at])])
    assert len(both.text(state)) == len(suffix.text(state.states[0]))
    assert np.array_equal(recycle.text(state.states[1]), suffix.text(state.states[0]))
