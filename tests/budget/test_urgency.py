"""Where the caller waits for all answers, drafts go to the requests that end last."""

from __future__ import annotations

import numpy as np
import pytest

from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load
from foresay.budget.urgency import urgency
from foresay.draft import Draft, DraftBatch


def flat() -> StepCost:
    """A machine on which rows cost next to nothing."""
    return StepCost.measured((r, r * 64, 0.01 + 1e-6 * r, 64) for r in (1, 2, 8, 64, 256))


def test_who_needs_most_passes_counts_most() -> None:
    fast, slow, ending = urgency(tokens_left=[40, 40, 5], tokens=[24, 20, 20], steps=[20, 20, 20])
    assert slow == 1
    assert 0.2 < fast < 1
    assert ending == 0
    assert urgency([7], [0], [0]).tolist() == [1.0]
    assert urgency([], [], []).tolist() == []


def test_a_policy_drafts_nothing_for_weight_0_and_prefers_the_heavy() -> None:
    contexts, left = np.full(3, 50, np.int64), np.full(3, 50, np.int64)
    load = Load(contexts, left, weights=np.array([0.0, 0.3, 1.0]))
    policy = Adaptive(flat(), total=12)
    budgets = policy.budgets(load)
    assert budgets[0] == 0
    assert min(budgets[1:]) > 0
    same = Draft.chain([1, 2], scores=[0.5, 0.4])
    drafts = DraftBatch.of([Draft.empty(), same, same])
    order, gains = policy._ranked(drafts, load, None)
    assert order.tolist() == [2, 3, 0, 1]  # its 0.3 is less than any of the others
    assert gains == pytest.approx([0.5, 0.4, 0.15, 0.12])
    alike, _ = policy._ranked(drafts, Load(contexts, left), None)
    assert alike.tolist() == [0, 2, 1, 3]


def test_a_step_is_not_made_longer_for_a_light_request() -> None:
    """A drafted token for the light request pays if all count alike, and not by its weight."""
    contexts, left = np.full(2, 64, np.int64), np.full(2, 64, np.int64)
    steep = StepCost.measured((r, r * 64, 0.01 * (1 + 0.2 * (r - 1)), 64) for r in (1, 2, 4, 8, 64))
    drafts = DraftBatch.of([Draft.empty(), Draft.chain([1], scores=[0.9])])
    for weights, nodes in ((None, 1), (np.array([1.0, 0.2]), 0)):
        policy = Adaptive(steep, share=0.0)
        load = Load(contexts, left, weights=weights)
        policy.budgets(load)
        assert len(policy.choose(drafts, load).nodes) == nodes
