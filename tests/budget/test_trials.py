"""What trials may lose."""

from __future__ import annotations

import pytest

from foresay.budget.recent import RecentMean, RecentMedian
from foresay.budget.trials import SHARE, TrialAccount


@pytest.mark.parametrize("loss", [0.1, 1.0, 30.0])
def test_trials_that_fail_take_their_share_of_the_time(loss: float) -> None:
    account, trials, steps = TrialAccount(), 0, 60_000
    for _ in range(steps):
        if account.covers(loss):
            trials += 1
            account.settle(loss)
        account.earn(1.0)
    assert trials * loss == pytest.approx(SHARE * steps, rel=0.15)


def test_trials_that_succeed_follow_each_other() -> None:
    account, trials = TrialAccount(), []
    for _ in range(300):
        trials.append(account.covers(0.4))
        if trials[-1]:
            account.settle(-0.5)
        account.earn(1.0)
    first = trials.index(True)
    assert first >= 0.4 / SHARE - 1 and all(trials[first:])


def test_a_trial_that_fails_badly_is_charged_in_part() -> None:
    """The next text may be another one, and must not wait for long."""
    account = TrialAccount()
    while not account.covers(0.2):
        account.earn(1.0)
    account.settle(50.0)
    steps = 0
    while not account.covers(0.2):
        account.earn(1.0)
        steps += 1
    assert 0.2 / SHARE < steps < 1.5 / SHARE


def test_nothing_is_saved_up_for_ever_and_nothing_is_tried_on_credit() -> None:
    account = TrialAccount()
    assert not account.covers(0.0)
    for _ in range(100_000):
        account.earn(1.0)
    assert account.balance == 0.5
    assert not account.covers(2.0)
    assert not TrialAccount(0.0).covers(0.0)


def test_recent_observations() -> None:
    mean = RecentMean(1.0, count=1, memory=4)
    for value, wanted in ((3.0, 2.0), (3.0, 7 / 3)):
        mean.observe(value)
        assert mean.value == pytest.approx(wanted)
    for _ in range(40):
        mean.observe(9.0)
    assert mean.value == pytest.approx(9.0, abs=1e-3)
    median = RecentMedian()
    assert median.value == 0.0 and not len(median)
    for value in (100.0, 1.0, 2.0, 90.0, 3.0, 4.0):
        median.observe(value)
    assert median.value == 3.0 and list(median) == [1.0, 2.0, 90.0, 3.0, 4.0]
