"""The time of a step: fitted, kept current, robust against the host's moods."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from foresay.budget.cost import KNOTS, Sample, StepCost, isotonic
from foresay.errors import InputError

ROWS = (1, 2, 4, 8, 16, 17, 32, 64, 128)


def amx(rows: float, reads: float, keys: float, requests: float = 1) -> float:
    """Nearly flat to 16 rows, then a stair per 16 rows; the numbers of a small model on 2 cores."""
    stairs = 0.005 * float(np.ceil(max(0.0, rows - 16) / 16))
    shape = 0.0272 + 0.0002 * min(rows, 16) + stairs
    return shape + 4.9e-7 * reads + 3.2e-6 * keys + 0.001 * requests


def samples(noise: Callable[[], float] = lambda: 1.0, repeats: int = 5) -> list[Sample]:
    return [
        Sample(r, r * c, amx(r, r * c, c) * noise(), c)
        for _ in range(repeats)
        for r in ROWS
        for c in (64, 256, 2048)
    ]


def test_isotonic_is_the_nearest_rising_fit() -> None:
    assert isotonic([1, 2, 3], [1, 1, 1]) == [1, 2, 3]
    assert isotonic([3, 1], [1, 3]) == [1.5, 1.5]
    assert isotonic([], []) == []
    rng = np.random.default_rng(3)
    for _ in range(50):
        values, weights = rng.random(6), rng.random(6) + 0.1
        fit = np.array(isotonic(values.tolist(), weights.tolist()))
        assert (np.diff(fit) >= 0).all()
        best = (weights * (fit - values) ** 2).sum()
        for _ in range(200):  # no rising curve near it is nearer
            other = np.sort(fit + 0.05 * rng.standard_normal(6))
            assert (weights * (other - values) ** 2).sum() >= best - 1e-12


def test_measured_reproduces_what_was_timed() -> None:
    cost = StepCost.measured(samples())
    for s in samples(repeats=1):
        assert cost.of(s.rows, s.reads, s.keys) == pytest.approx(s.seconds, rel=0.02)
    # and contexts in between and beyond
    assert cost.of(8, 8 * 1024, 1024) == pytest.approx(amx(8, 8 * 1024, 1024), rel=0.02)
    assert cost.of(8, 8 * 4096, 4096) == pytest.approx(amx(8, 8 * 4096, 4096), rel=0.05)


def test_measured_survives_outliers_and_a_slow_phase() -> None:
    rng = np.random.default_rng(5)
    count = 0

    def noise() -> float:
        nonlocal count
        count += 1
        slow = 1.5 if 30 < count < 70 else 1.0  # about one and a half of five rounds
        return slow * (3.0 if rng.random() < 0.03 else 1.0) * float(np.exp(0.03 * rng.normal()))

    cost = StepCost.measured(samples(noise))
    for rows in (1, 8, 16, 32, 64):
        ratio = cost.of(rows, rows * 256, 256) / cost.of(1, 256, 256)
        true = amx(rows, rows * 256, 256) / amx(1, 256, 256)
        assert ratio == pytest.approx(true, rel=0.12)


def test_seconds_is_vectorised_and_equals_of() -> None:
    cost = StepCost.measured(samples())
    rows = np.array([1, 5, 16, 17, 40, 3000, 100_000])
    many = cost.seconds(rows, rows * 100, 100, 2)
    assert many.shape == rows.shape
    assert many.tolist() == pytest.approx([cost.of(r, r * 100, 100, 2) for r in rows.tolist()])
    assert cost.seconds(3, 300).shape == ()


@pytest.mark.parametrize("make", [StepCost, lambda: StepCost.measured([(4, 400, 0.03)])])
def test_the_shape_never_falls(make: Callable[[], StepCost]) -> None:
    cost = make()
    rng = np.random.default_rng(0)
    rows = np.arange(1, 5000)
    for _ in range(600):
        cost.observe(int(rng.integers(1, 300)), 100, float(rng.uniform(0.01, 0.1)), 100)
        assert (np.diff(cost.seconds(rows, 0.0)) >= -1e-12).all()
        assert (cost.seconds(rows, 0.0) > 0).all()


def test_the_level_follows_a_slow_phase_within_steps_and_the_shape_stays() -> None:
    cost = StepCost.measured(samples())
    rng = np.random.default_rng(1)

    def ratio() -> float:
        return cost.of(17, 17 * 256, 256) / cost.of(1, 256, 256)

    before = ratio()
    for phase in range(6):
        slow = 1.5 if phase % 2 else 1.0
        for step in range(200):
            rows = 1 if rng.random() < 0.3 else 9
            seconds = amx(rows, rows * 256, 256) * slow
            if step > 5:
                assert cost.of(rows, rows * 256, 256) == pytest.approx(seconds, rel=0.1)
            cost.observe(rows, rows * 256, seconds * (3 if rng.random() < 0.02 else 1), 256)
    assert ratio() == pytest.approx(before, rel=0.05)


def test_one_outlier_changes_next_to_nothing() -> None:
    cost = StepCost.measured(samples())
    for _ in range(20):
        cost.observe(4, 4 * 256, amx(4, 4 * 256, 256), 256)
    before = cost.of(4, 4 * 256, 256)
    cost.observe(4, 4 * 256, 100.0, 256)
    assert cost.of(4, 4 * 256, 256) == pytest.approx(before, rel=1e-6)
    for _ in range(20):
        cost.observe(4, 4 * 256, amx(4, 4 * 256, 256), 256)
    assert cost.of(4, 4 * 256, 256) == pytest.approx(before, rel=0.02)


def test_without_measurements_it_learns_the_shape() -> None:
    cost = StepCost()
    rng = np.random.default_rng(2)
    for _ in range(1500):
        rows = int(rng.choice([1, 2, 4, 8, 16]))
        cost.observe(
            rows, rows * 256, amx(rows, rows * 256, 256) * np.exp(0.03 * rng.normal()), 256
        )
    for rows in (1, 4, 16):
        assert cost.of(rows, rows * 256, 256) == pytest.approx(amx(rows, rows * 256, 256), rel=0.08)
    # Rows that were never seen follow: the prior said 3.3 times as much for 24 rows as for 8.
    assert cost.of(24, 24 * 256, 256) < 2 * cost.of(8, 8 * 256, 256)


def test_prefills_beyond_what_was_measured_do_not_shift_the_level() -> None:
    """Most steps have 700 rows, far beyond the samples, and cost little of what was expected."""
    cost = StepCost.measured(samples())

    def true(rows: int) -> float:
        return amx(min(rows, 128), rows * 256, 256) * (1.2 if rows > 128 else 1.0)

    expected = cost.of(700, 700 * 256, 256)
    assert true(700) < 0.6 * expected
    rng = np.random.default_rng(8)
    for step in range(300):
        rows = 700 if rng.random() < 0.7 else int(rng.integers(1, 20))
        if step > 20:
            assert cost.of(4, 4 * 256, 256) == pytest.approx(true(4), rel=0.25)
        cost.observe(rows, rows * 256, true(rows), 256)
    assert cost.of(700, 700 * 256, 256) == pytest.approx(true(700), rel=0.1)
    assert cost.of(4, 4 * 256, 256) == pytest.approx(true(4), rel=0.1)


def test_the_cost_of_attention_is_learned() -> None:
    cost = StepCost.measured([(r, r * 64, amx(r, r * 64, 64)) for r in (1, 4, 8, 16)])
    rng = np.random.default_rng(4)
    for _ in range(6000):
        rows, context = int(rng.choice([1, 4, 8])), int(rng.choice([64, 2048]))
        cost.observe(rows, rows * context, amx(rows, rows * context, context), context)
    long, short = cost.of(1, 2048, 2048), cost.of(1, 64, 64)
    assert long / short == pytest.approx(amx(1, 2048, 2048) / amx(1, 64, 64), rel=0.1)


def test_times_that_are_none_are_passed_over() -> None:
    cost = StepCost()
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        cost.observe(1, 10, seconds)
    assert cost.level == 1.0


def test_the_same_inputs_give_the_same_costs() -> None:
    def run() -> list[float]:
        cost = StepCost.measured(samples())
        rng = np.random.default_rng(9)
        for _ in range(100):
            cost.observe(int(rng.integers(1, 40)), 500, float(rng.uniform(0.02, 0.06)), 100)
        out: list[float] = cost.seconds(np.array(KNOTS), 100.0).tolist()
        return out

    assert run() == run()


def test_the_table_shows_the_flat_region() -> None:
    cost = StepCost.measured(samples())
    table = cost.table(rows=(1, 16, 64), contexts=(256, 2048))
    lines = table.splitlines()
    assert len(lines) == 5 and "context 2048" in lines[0]
    assert 16 <= cost.flat_rows(256) < 40
    assert cost.flat_rows(2048) < cost.flat_rows(256)
    assert f"{cost.flat_rows(256)} at context 256" in lines[-1]
    assert cost.grid((1, 2), (10, 20, 30)).shape == (2, 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no samples"),
        ([(0, 0, 1.0)], "0 rows"),
        ([(1, 1, 0.0)], r"0\.0 seconds"),
        ([(1, 1, float("nan"))], "nan seconds"),
    ],
)
def test_samples_that_no_step_gave(given: list[tuple[float, ...]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        StepCost.measured(given)


def test_observe_is_cheap() -> None:
    cost = StepCost.measured(samples())
    took = []
    for i in range(400):
        start = time.perf_counter()
        cost.observe(1 + i % 20, 300, 0.03, 300)
        took.append(time.perf_counter() - start)
    # 8 to 15 us measured; the bound only catches another order of magnitude on a busy machine.
    assert np.median(took) < 200e-6
