"""Drafters of a merge are shown what they want to see where that pays; simulated seconds."""

from __future__ import annotations

import numpy as np
import pytest

from doubles import tokens
from foresay import Verdict, Wants
from foresay.budget.trials import SHARE, TrialAccount
from foresay.drafters import MergeDrafter, RecycleDrafter, SuffixDrafter
from foresay.drafters.merge.gating import _Enabled
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
    monkeypatch.setattr(_Enabled, "observe", lambda self, net: None)  # wrong: always awake
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
    assert all(member.enabled for member in both._members)


def test_without_prices_everything_is_shown() -> None:
    _, _, both = watching(0.0001)
    state = both.begin(tokens(0))
    for _ in range(1000):
        both.propose([state], [4])
        both.shown(10 * STEP)
        both.observe([state], [Verdict([], [1])])
    assert both.wants_now() == Wants(topk=4)


def test_the_longer_a_trial_costs_the_longer_it_rests() -> None:
    """What it loses is the share of the time that all trials may lose."""
    shares = []
    for net in (-0.02, -0.2):
        one, enabled = _Enabled(TrialAccount()), 0
        for _ in range(60_000):
            one.observe(net if one.now else 0.0)
            enabled += one.now
            one.account.earn(1.0)
        shares.append(enabled / 60_000)
        assert 0.5 * SHARE < shares[-1] * -net < 1.5 * SHARE
    assert shares[0] > 5 * shares[1]


def test_a_trial_that_succeeds_ends_the_rests() -> None:
    one = _Enabled(TrialAccount())
    for _ in range(3000):
        one.observe(-0.1)
        one.account.earn(1.0)
    while not one.now:
        one.observe(0.0)
        one.account.earn(1.0)
    for _ in range(300):
        one.observe(0.3)
        assert one.now


def test_who_rests_gets_every_token_and_nothing_else() -> None:
    recycle, suffix = RecycleDrafter(k=2), SuffixDrafter()
    both = MergeDrafter(suffix, recycle)
    both.price(1.0, 0.1, 1.0)
    state = both.begin(tokens(1, 2, 3, 1, 2, 3, 1, 2))
    gate = both._members[1].gate
    assert gate is not None
    gate.now, gate._net.value = False, -1.0
    for at in range(5):
        assert both.wants_now() == Wants()
        both.price(1.0, 0.1, 1.0)
        draft = both.propose([state], [4])[0]
        assert not any(1 in who for who in both.proposers(state))
        path = [0] if len(draft) else []
        both.observe([state], [Verdict(path, [*draft.tokens[path].tolist(), 7 + at])])
    assert len(both.text(state)) == len(suffix.text(state.states[0]))
    assert np.array_equal(recycle.text(state.states[1]), suffix.text(state.states[0]))
