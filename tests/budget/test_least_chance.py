"""The least chance: drafts where they pay, and only there, by nothing but how long steps take."""

from __future__ import annotations

import random

import pytest

from foresay.budget.least_chance import LeastChance


def drive(
    policy: LeastChance, fixed: float, per_token: float, chance: float, rows: int = 4
) -> list[int]:
    """How many steps of each 64 had drafts, if steps take fixed + per_token * verified tokens."""
    luck, drafting = random.Random(0), []
    for _ in range(640):
        least = policy.of(rows)
        nodes = 4 * rows if least is not None and chance >= least else 0
        won = sum(luck.random() < chance for _ in range(nodes))
        seconds = (fixed + per_token * (rows + nodes)) * luck.uniform(0.95, 1.05)
        policy.observe(rows, nodes, rows + won, seconds, 1e-5, least or 0.0)
        drafting.append(nodes > 0)
    return [sum(drafting[at : at + 64]) for at in range(0, 640, 64)]


@pytest.mark.parametrize(
    ("fixed", "per_token", "chance", "drafts"),
    [
        (0.010, 1e-5, 0.5, True),  # verification is nearly free
        (0.010, 1e-5, 0.15, True),
        (0.000, 1e-3, 0.5, False),  # each token costs as much as any other
        (0.004, 1e-3, 0.3, False),
        (0.004, 1e-3, 0.9, True),
    ],
)
def test_drafts_are_verified_where_they_pay(
    fixed: float, per_token: float, chance: float, drafts: bool
) -> None:
    policy = LeastChance(0.1)
    after = drive(policy, fixed, per_token, chance)[2:]
    assert all(count >= 60 for count in after) if drafts else all(count <= 4 for count in after)


def test_drafts_come_back_when_times_change() -> None:
    policy = LeastChance(0.1)
    assert drive(policy, 0.0, 1e-3, 0.5)[-1] <= 4
    assert drive(policy, 0.02, 1e-6, 0.5)[-1] >= 60


@pytest.mark.parametrize("rows", [4, 16])
def test_sure_drafts_are_tried_at_once(rows: int) -> None:
    policy = LeastChance(0.1)
    assert drive(policy, 0.004, 1e-3, 0.15, rows)[-1] <= 4  # drafts that do not pay
    assert drive(policy, 0.004, 1e-3, 0.97, rows)[0] >= 60  # and then a text that is known


def test_sure_drafts_that_do_not_pay_are_given_up() -> None:
    policy = LeastChance(0.1)
    drive(policy, 0.0, 1e-3, 0.5)  # each token costs as much as any other
    steps = drive(policy, 0.0, 1e-3, 0.9)
    assert steps[0] <= 12 and sum(steps) <= 64  # of 640


def test_without_measuring_it_knows_rows_and_chances_only() -> None:
    policy = LeastChance(0.2, max_requests=8, measure=False)
    assert drive(policy, 0.0, 1e-3, 0.5) == [64] * 10
    assert [policy.of(rows) for rows in (1, 8, 9)] == [0.2, 0.2, None]
