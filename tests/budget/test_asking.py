"""How many nodes a drafter is asked for: times that were not measured, and lookups."""

from __future__ import annotations

import numpy as np
import pytest

from budget.batches import facts, load_of
from foresay.budget.adaptive import Adaptive
from foresay.budget.asking import Asking
from foresay.budget.cost import StepCost
from foresay.draft import Draft, DraftBatch

ROWS = (1, 2, 4, 8, 16, 32)
PLAIN = 0.005  # seconds of a step without drafts


def asking_after(took: dict[int, float], rounds: int = 8) -> Asking:
    """One that was asked for these levels so often, in vain."""
    asking = Asking(32)
    for _ in range(rounds):
        for asked, seconds in took.items():
            asking.observe(asked, seconds, 1, np.array([0], np.int32), np.array([False]))
    return asking


def steps_until_asked(asking: Asking, cap: int) -> int | None:
    """Steps until a draft that needs no account; None if there is none in 100."""
    cost, load = StepCost(), load_of(9)
    for _ in range(40):
        cost.observe(1, 9, PLAIN)
    for step in range(100):
        if asking.plan(cost, cap, load, 1, PLAIN).best:
            return step
    return None


def test_times_that_were_not_measured() -> None:
    asking = asking_after({4: 0.001, 16: 0.004})
    assert asking.seconds(0) == 0.0
    assert (asking.seconds(4), asking.seconds(16)) == (0.001, 0.004)
    assert asking.seconds(8) == pytest.approx(0.002)  # on the line between
    assert asking.seconds(2) == pytest.approx(0.0005) and asking.seconds(32) == pytest.approx(0.008)
    assert Asking(32).seconds(8) == 0.0


def test_a_lookup_takes_about_the_same_for_few_and_many_nodes() -> None:
    """By the fewer nodes alone, 16 would be said to take too long for a lookup."""
    lookup = {3: 0.06 * PLAIN, 32: 0.08 * PLAIN}
    assert steps_until_asked(asking_after(lookup), 16) == 7
    assert steps_until_asked(asking_after({3: 0.06 * PLAIN}), 16) is None


def test_what_takes_longer_is_tried_less_often() -> None:
    waits = [steps_until_asked(asking_after({8: share * PLAIN}), 8) for share in (0.05, 0.2, 0.29)]
    assert waits == [7, 15, 23]


def test_a_good_draft_is_followed_by_others() -> None:
    """Of 32 requests one is copied by chance in any text: that is no reason."""
    for requests, found, followed in ((1, 1, True), (32, 1, False), (32, 16, True)):
        asking = asking_after({8: 0.05 * PLAIN})
        accepted = np.arange(32) < found
        asking.observe(8, 0.05 * PLAIN, requests, np.zeros(32, np.int32), accepted)
        assert (steps_until_asked(asking, 8) == 0) == followed


def test_a_model_is_not_tried_like_a_lookup() -> None:
    assert steps_until_asked(asking_after({3: 0.3 * PLAIN, 32: 3 * PLAIN}), 8) is None


def test_a_trial_that_fails_badly_is_charged_in_part() -> None:
    """What was verified seemed sure, and nothing of it was accepted."""
    cost = StepCost.measured((rows, 9 * rows, PLAIN * (1 + 0.25 * (rows - 1))) for rows in ROWS * 4)
    policy, load = Adaptive(cost), load_of(9)

    def step(draft: Draft) -> bool:
        """Whether it was a trial."""
        if not policy.budgets(load)[0]:
            draft = Draft.empty()
        trial = policy._trial is not None
        chosen = policy.choose(DraftBatch.of([draft]), load)
        seconds = PLAIN * (1 + 0.25 * len(chosen.drafts.tokens))
        policy.observe(facts(load, chosen, [[]], seconds=seconds, draft_seconds=0.4 * PLAIN))
        return trial

    for _ in range(60):  # asking does not pay
        step(Draft.empty())
    sure = Draft.chain(range(12), np.full(12, 0.98, np.float32))
    waits = [next(n for n in range(1000) if step(sure)) for _ in range(2)]
    assert 0 < waits[1] < 300
