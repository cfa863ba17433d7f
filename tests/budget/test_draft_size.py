"""How many nodes a drafter is asked for: times that were not measured, and lookups."""

from __future__ import annotations

import numpy as np
import pytest

from budget.batches import facts, load_of, selected
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.draft_size import DraftSize
from foresay.draft import Draft, DraftBatch

ROWS = (1, 2, 4, 8, 16, 32)
PLAIN = 0.005  # seconds of a step without drafts


def learned_after(took: dict[int, float], rounds: int = 8) -> DraftSize:
    """One that was asked for these levels so often, in vain."""
    controller = DraftSize(32)
    for _ in range(rounds):
        for asked, seconds in took.items():
            controller.observe(asked, seconds, 1, np.array([0], np.int32), np.array([False]))
    return controller


def test_times_that_were_not_measured() -> None:
    controller = learned_after({4: 0.001, 16: 0.004})
    assert controller.seconds(0) == 0.0
    assert (controller.seconds(4), controller.seconds(16)) == (0.001, 0.004)
    assert controller.seconds(8) == pytest.approx(0.002)  # on the line between
    assert controller.seconds(2) == pytest.approx(0.0005) and controller.seconds(
        32
    ) == pytest.approx(0.008)
    assert DraftSize(32).seconds(8) == 0.0


def test_what_takes_longer_is_tried_less_often() -> None:
    """And all of it loses no more than its share of the time, however long a draft takes."""
    load, tries = load_of(9), []
    for took in (0.05, 0.2, 3.0):
        cost = StepCost.measured((rows, 9 * rows, PLAIN) for rows in ROWS * 4)
        policy, lost = Adaptive(cost), 0.0
        for step in range(3000):
            asked = policy.budgets(load)[0] > 0
            chosen = policy.choose(DraftBatch.of([Draft.empty()]), load)
            drafting = took * PLAIN if asked else 0.0
            policy.observe(facts(load, chosen, [[]], seconds=PLAIN, draft_seconds=drafting))
            lost += took * (asked and step >= 100)
            tries += [took] * (asked and step >= 100)
        assert 0 < lost < 0.006 * 2900 + took
    counts = [tries.count(took) for took in (0.05, 0.2, 3.0)]
    assert counts[0] > 3 * counts[1] > 9 * counts[2] > 0


def test_a_trial_that_fails_badly_is_charged_in_part() -> None:
    """What was verified seemed sure, and nothing of it was accepted."""
    cost = StepCost.measured((rows, 9 * rows, PLAIN * (1 + 0.25 * (rows - 1))) for rows in ROWS * 4)
    policy, load = Adaptive(cost), load_of(9)

    def step(draft: Draft) -> bool:
        """Whether it was a trial."""
        if not policy.budgets(load)[0]:
            draft = Draft.empty()
        trial = policy._step_of(load).trial is not None
        chosen = policy.choose(DraftBatch.of([draft]), load)
        seconds = PLAIN * (1 + 0.25 * len(chosen.drafts.tokens))
        policy.observe(facts(load, chosen, [[]], seconds=seconds, draft_seconds=0.4 * PLAIN))
        return trial

    for _ in range(60):  # controller does not pay
        step(Draft.empty())
    sure = Draft.chain(range(12), np.full(12, 0.98, np.float32))
    waits = [next(n for n in range(1000) if step(sure)) for _ in range(2)]
    assert 0 < waits[1] < 300


def test_a_step_may_begin_before_the_one_before_is_observed() -> None:
    """Each is observed by its own plan: what one asked for is not counted for the other."""
    cost = StepCost.measured((rows, 9 * rows, PLAIN * (1 + 0.25 * (rows - 1))) for rows in ROWS * 4)
    drafted, plain = Adaptive(cost), Adaptive(cost)
    empty = DraftBatch.of([Draft.empty()])
    for policy in (drafted, plain):
        for at in range(40):
            loads = load_of(9), load_of(10, tokens_left=1)  # of the second nothing is asked
            assert policy.budgets(loads[0])[0] > 0 or at
            if policy is drafted:
                assert policy.budgets(loads[1]) == [0]
            chosen = policy.choose(empty, loads[0])
            policy.observe(facts(loads[0], chosen, [[]], seconds=PLAIN, draft_seconds=0.4 * PLAIN))
            if policy is plain:
                assert policy.budgets(loads[1]) == [0]
            policy.observe(facts(loads[1], selected(empty), [[]], seconds=PLAIN))
    took = [
        policy._draft_size.seconds(policy._draft_size._plan.trial) for policy in (drafted, plain)
    ]
    assert took[0] == took[1] > 0
    assert drafted._drafting_account.balance == plain._drafting_account.balance


def test_steps_that_failed_are_forgotten() -> None:
    policy = Adaptive(StepCost())
    for _ in range(50):
        policy.budgets(load_of(9))
    assert len(policy._begun) <= 4
    load = load_of(9)
    policy.budgets(load)
    policy.observe(facts(load, selected(DraftBatch.of([Draft.empty()])), [[]]))
    assert not policy._begun
