"""Where the caller waits for all answers, drafts go to the requests that end last."""

from __future__ import annotations

import numpy as np
import pytest

from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load
from foresay.budget.urgency import urgency, worth_of_tokens
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
    found = policy._selection(drafts, policy._begin(load))
    assert found.order.tolist() == [2, 3, 0, 1]  # its 0.3 is less than any of the others
    worth = worth_of_tokens(np.array([0.0, 0.3, 1.0]), 0.0)
    said = [worth[2] * 0.5, worth[2] * 0.4, worth[1] * 0.5, worth[1] * 0.4]
    assert np.diff(found.tokens) == pytest.approx(said, rel=0.01)  # rows are not quite free
    alike = policy._selection(drafts, policy._begin(Load(contexts, left)))
    assert alike.order.tolist() == [0, 2, 1, 3]


def test_a_step_is_not_made_longer_for_a_light_request() -> None:
    """A drafted token for the light request pays if all count alike, and not by its weight."""
    contexts, left = np.full(2, 64, np.int64), np.full(2, 64, np.int64)
    steep = StepCost.measured((r, r * 64, 0.01 * (1 + 0.2 * (r - 1)), 64) for r in (1, 2, 4, 8, 64))
    drafts = DraftBatch.of([Draft.empty(), Draft.chain([1], scores=[0.9])])
    for weights, nodes in ((None, 1), (np.array([1.0, 0.02]), 0)):
        policy = Adaptive(steep, share=0.0)
        load = Load(contexts, left, weights=weights)
        policy.budgets(load)
        assert len(policy.choose(drafts, load).nodes) == nodes


def test_what_a_token_saves() -> None:
    """A row for every request, the rest of a step for the last one; on average one token."""
    urgencies = np.array([1.0, 0.5, 0.0])
    assert worth_of_tokens(urgencies, 0.0).tolist() == [2.0, 1.0, 0.0]
    assert worth_of_tokens(urgencies, 1.0).tolist() == [1.0, 1.0, 1.0]
    assert worth_of_tokens(urgencies, 0.25) == pytest.approx([1.75, 1.0, 0.25])
    assert worth_of_tokens(np.zeros(2), 0.5).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("row", "nodes"), [(0.0, 1), (0.012, 0)])
def test_where_rows_cost_much_being_last_is_worth_little(row: float, nodes: int) -> None:
    """Of eight requests one is behind. A token for it saves most of a step where rows are free, and
    one row where they are all that a step takes: then it must pay as any other."""
    times = ((r, r * 64, 0.004 + 0.002 * (row == 0) + row * r, 64) for r in (1, 2, 4, 8, 16, 64))
    policy = Adaptive(StepCost.measured(times), share=0.0)
    urgencies = np.array([1.0] + [0.21] * 7)
    load = Load(np.full(8, 64, np.int64), np.full(8, 64, np.int64), weights=urgencies)
    policy.budgets(load)
    drafts = DraftBatch.of([Draft.chain([1], scores=[0.5])] + [Draft.empty()] * 7)
    assert len(policy.choose(drafts, load).nodes) == nodes
