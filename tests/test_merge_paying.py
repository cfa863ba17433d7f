"""Slow drafters of a merge are asked where that pays: simulated texts, drafters and seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from doubles import tokens
from foresay import Draft, DraftBatch, Verdict
from foresay.budget.draft_length import DraftLength, Plan, Price, by_part
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter
from foresay.errors import InputError
from slow_drafters import (
    SLOW,
    STEP,
    Clock,
    Knowing,
    Waited,
    alone,
    always,
    beside,
    copies,
    pair,
    slowly,
    speed,
    token_at,
    verdict,
)


@pytest.mark.parametrize("kind", SLOW)
def test_never_much_slower_than_the_best_of_them(kind: str) -> None:
    chance, steps = SLOW[kind]
    best = max(alone(copies, 12, slowly(0.0005)), alone(always(chance), 6, slowly(steps)))
    assert beside(chance, steps)[0] > 0.98 * best


def test_a_slow_drafter_that_is_of_no_use_is_soon_asked_rarely() -> None:
    _, quick, slow = beside(0.01, 0.1)
    assert slow.share_asked(200) < 0.1
    assert quick.share_asked() > 0.98
    most = {nodes for step in quick.asked[10:] for _, nodes in step}
    assert most <= {8, 16, 32}  # as without the other


def test_a_slow_drafter_is_asked_where_the_quick_one_is_unsure() -> None:
    _, _, slow = beside(0.7, 0.1)
    places = slow.places(50)
    unsure = [place for place in places if not copies(place)]
    assert slow.share_asked(50) > 0.6
    assert len(unsure) > 0.95 * len(places)


def test_together_they_are_faster_than_each() -> None:
    best = max(alone(copies, 12, slowly(0.0005)), alone(always(0.7), 6, slowly(0.1)))
    assert beside(0.7, 0.1)[0] > 1.4 * best


def test_a_chain_is_asked_for_as_long_as_it_pays() -> None:
    clock, _, slow, both = pair(knows=always(0.5), per_pass=slowly(0.15))
    speed(both, clock)
    short = [nodes for step in slow.asked[50:] for _, nodes in step if nodes <= 2]
    assert len(short) > 0.8 * len(slow.places(50))


@pytest.mark.parametrize("batch", [1, 4])
def test_a_drafter_that_becomes_useful_is_found_again(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    def late(place: int) -> float:
        return 0.8 if place > 500 else 0.01

    def share() -> float:
        clock, _, slow, both = pair(knows=late, per_pass=slowly(0.1))
        speed(both, clock, length=2000, batch=batch)
        return slow.share_asked(-200)

    assert share() > 0.6
    if batch > 1:  # requests that are ahead know more at once
        return
    monkeypatch.setattr("foresay.drafters.merge.gating.SHARE", 0.0)  # wrong: no trials
    assert share() == 0.0


@pytest.mark.parametrize("before", [0.0001, 0.04])
def test_a_drafter_that_becomes_slow_is_dropped(before: float) -> None:
    clock, _, slow, both = pair(
        knows=always(0.8), per_pass=lambda at: STEP * (before if at < 150 else 2.0)
    )
    speed(both, clock, length=2000)
    assert slow.share_asked(50, 150) > 0.6
    assert slow.share_asked(200) < 0.05


@pytest.mark.parametrize("steps", [0.02, 0.5])
def test_trials_lose_less_than_one_percent(steps: float) -> None:
    clock, _, _, both = pair(knows=always(0.01), per_pass=slowly(steps))
    best = alone(copies, 12, slowly(0.0005), length=3000, after=1000)
    assert speed(both, clock, length=3000, after=1000) > 0.99 * best


def test_of_several_requests_those_that_gain_by_it() -> None:
    clock, _, slow, both = pair(knows=always(0.7), per_pass=slowly(0.2))
    found = speed(both, clock, batch=4, length=1000)
    places = slow.places(50)
    assert sum(not copies(place) for place in places) > 0.9 * len(places)  # but for trials
    assert any(1 <= len(step) <= 3 for step in slow.asked[50:])
    assert found > 1.1 * alone(copies, 12, slowly(0.0005), batch=4, length=1000)


def test_the_first_that_has_a_draft() -> None:
    def both_of(chance: float) -> tuple[float, Knowing]:
        clock = Clock()
        slow = Knowing(clock, always(chance), per_pass=slowly(0.1))
        quick = Knowing(clock, copies, 12, slowly(0.0005))
        return speed(MergeDrafter(quick, slow, rule="first", clock=clock), clock), slow

    best = alone(copies, 12, slowly(0.0005))
    useful, slow = both_of(0.7)
    assert useful > 1.4 * best
    assert all(not copies(place) for place in slow.places())
    useless, slow = both_of(0.01)
    assert useless > 0.98 * best
    assert slow.share_asked(200) < 0.1


def test_the_first_alone_where_it_has_a_draft() -> None:
    """Also if a quick drafter comes after it."""
    clock = Clock()
    slow, quick = Knowing(clock, copies, 3, slowly(0.01)), Knowing(clock, always(0.9), 3)
    both = MergeDrafter(slow, quick, rule="first", clock=clock)
    state = both.begin(tokens(0))
    firsts = 0
    for _ in range(300):
        both.price(STEP, 0.0, STEP)
        drafts = both.propose([state], [8])
        who = {place for places in both.proposers(state) for place in places}
        assert len(who) < 2
        firsts += who == {0}
        both.observe([state], [verdict(drafts[0], 0, state.states[0][1])])
    assert 20 < firsts < 300


def test_a_draft_of_a_failed_step_is_forgotten() -> None:
    """A slow drafter that is not asked again is told to drop it: its states would be of a proposal
    that nobody verified."""
    _, _, slow, both = pair(knows=always(0.01), per_pass=slowly(1.0))
    state = both.begin(tokens(0))
    both.propose([state], [8])  # everyone is asked; the step fails, and nothing is observed
    assert slow.asked[-1]
    for _ in range(20):
        both.price(STEP, 0.0, STEP)
        both.propose([state], [8])
        both.observe([state], [Verdict([], [token_at(0, state.states[1][1])])])
    both.propose([state], [8])
    proposals = len(slow.asked)
    both.price(STEP, 0.0, STEP)
    both.propose([state], [8])
    assert len(slow.asked) == proposals + 1 and not slow.asked[-1]


@pytest.mark.parametrize(("chance", "often"), [(0.01, False), (0.7, True)])
def test_one_in_a_process_of_its_own(chance: float, often: bool) -> None:
    clock = Clock()
    slow = Waited(clock, always(chance), per_pass=slowly(0.1))
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    speed(MergeDrafter(slow, quick, clock=clock), clock)
    told = [[n for n in budgets if n] for budgets in slow.told]
    assert [[n for _, n in step] for step in slow.asked if step] == [each for each in told if each]
    assert (slow.share_asked(200) > 0.5) == often


def test_of_two_that_know_the_same_one_is_asked() -> None:
    clock = Clock()
    one = Knowing(clock, always(0.7), per_pass=slowly(0.05))
    other = Knowing(clock, always(0.7), per_pass=slowly(0.1))
    speed(MergeDrafter(other, one, clock=clock), clock)
    assert one.share_asked(100) > 0.8
    assert other.share_asked(100) < 0.2


def test_without_a_price_all_are_asked() -> None:
    clock, quick, slow, both = pair(knows=always(0.01), per_pass=slowly(1.0))
    speed(both, clock, policy=Fixed(k=8), length=200)
    for drafter in (quick, slow):
        assert {nodes for step in drafter.asked for _, nodes in step} == {20}
        assert drafter.share_asked() == 1.0


def test_a_price_holds_for_one_step() -> None:
    _, _, slow, both = pair(knows=always(0.01), per_pass=slowly(1.0))
    state = both.begin(tokens(0))
    asked = []
    for place in range(20):
        both.price(STEP, 0.0, STEP)
        before = len(slow.asked)
        both.propose([state], [8])
        asked.append(len(slow.asked) > before)
        both.observe([state], [Verdict([], [token_at(0, place)])])
    assert asked[0] and not asked[-1]
    assert both.weighed_seconds() == 0.0
    both.propose([state], [8])
    assert slow.asked[-1] == [(20, 20)]  # it has heard of all tokens


def test_the_same_proposal_twice() -> None:
    _, _, slow, both = pair(knows=always(0.3), per_pass=slowly(0.1))
    states = [both.begin(tokens(at)) for at in range(3)]
    counts, places = set(), [0, 0, 0]
    for _ in range(150):
        both.price(0.6 * STEP, 0.02 * STEP, STEP)
        before = len(slow.asked)
        drafts = [both.propose(states, [8, 8, 0]) for _ in range(2)]
        assert list(drafts[0]) == list(drafts[1])
        asked = [each for each in slow.asked[before:] if each]
        assert asked[::2] == asked[1::2]
        counts.add(len(asked[0]) if asked else 0)
        verdicts = [verdict(drafts[0][at], at, places[at]) for at in range(3)]
        places = [place + len(one.tokens) for place, one in zip(places, verdicts, strict=True)]
        both.observe(states, verdicts)
    assert counts > {0, 1}


def test_proposals_for_other_requests() -> None:
    """Of requests that are asked for again, with others or without."""
    _, _, _, both = pair(knows=always(0.7), per_pass=slowly(0.01))
    states = [both.begin(tokens(at)) for at in range(3)]
    for _ in range(12):
        both.price(STEP, 0.02 * STEP, STEP)
        both.propose(states[:1], [8])
        both.propose(states, [8, 8, 8])
        drafts = both.propose(states[1:2], [8])
        kept = [len(state.last.scores) for state in states if state.last is not None]
        assert len(kept) == 3 and kept[1] == len(drafts[0])
        told = [Verdict([], [token_at(at, state.states[1][1])]) for at, state in enumerate(states)]
        both.observe(states, told)


def test_too_few_drafts_are_refused() -> None:
    class Short(Knowing):
        def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
            return super().propose(states, budgets)[:1]

    clock = Clock()
    both = MergeDrafter(Short(clock, always(0.5)), Knowing(clock, always(0.5)), clock=clock)
    states = [both.begin(tokens(at)) for at in range(2)]
    both.price(STEP, 0.02 * STEP, STEP)
    with pytest.raises(InputError, match="1 drafts"):
        both.propose(states, [8, 8])


def test_a_lone_batch_has_no_probs() -> None:
    """Whether they were there would depend on what was sampled."""

    class Sampled(Knowing):
        def propose(self, states: Any, budgets: Any, /) -> Any:
            return DraftBatch([1], [-1], [0, 1], [0.5], probs=np.eye(1, 8, 1, dtype=np.float32))

    clock = Clock()
    both = MergeDrafter(Sampled(clock, always(0.5)), clock=clock)
    state = both.begin(tokens(0))
    for priced in (True, False):
        if priced:
            both.price(STEP, 0.02 * STEP, STEP)
        assert both.propose([state], [8]).probs is None


# The wrong variants fail, so that the tests above mean something.


def test_without_gains_a_useful_one_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    none = by_part([])
    learn, settle = DraftLength.observe, DraftLength.settle
    monkeypatch.setattr(
        DraftLength, "observe", lambda self, group, level, *_: learn(self, group, level, none, none)
    )

    def settled(self: DraftLength, plan: Plan, requests: int, wins: float, price: Price) -> None:
        settle(self, plan, requests, min(wins, 0.0), price)

    monkeypatch.setattr(DraftLength, "settle", settled)
    clock, _, slow, both = pair(knows=always(0.7), per_pass=slowly(0.1))
    speed(both, clock, length=1500)
    assert slow.share_asked(50) < 0.2


def test_if_always_asked_a_useless_one_would_cost_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DraftLength, "timed", False)
    clock, _, _, both = pair(knows=always(0.01), per_pass=slowly(0.1))
    assert speed(both, clock) < 0.9 * alone(copies, 12, slowly(0.0005))


def test_what_a_drafter_has_not_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of a text since the drafter was last asked for it: it has to read them first."""
    seen: list[tuple[bool, int]] = []
    plan = DraftLength.plan

    def watched(self: DraftLength, groups: Any, unread: Any, *rest: Any) -> Any:
        found = plan(self, groups, unread, *rest)
        if unread is not groups:  # a member's, not the policy's
            seen.append((bool(found.groups), sum(unread)))
        return found

    monkeypatch.setattr(DraftLength, "plan", watched)
    clock, _, _, both = pair(knows=always(0.3), per_pass=slowly(0.2))
    speed(both, clock, length=1500)
    counts = [unread for _, unread in seen]
    assert counts[0] > 0 and max(counts) > 20
    pairs = [(was, now, then) for (was, now), then in zip(seen, counts[1:], strict=False)]
    # After a draft only what was committed with it is new; without one it grows.
    fresh = [then for was, _, then in pairs if was]
    grows = [then > now for was, now, then in pairs if not was]
    assert len(fresh) > 20 and sum(n < 40 for n in fresh) > 0.8 * len(fresh)
    assert len(grows) > 20 and sum(grows) > 0.8 * len(grows)
