"""Budgets and choices: the baselines, the best choice by brute force."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from budget.batches import check_subset, facts, load_of, selected, trees
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load, StepFacts
from foresay.budget.policy import (
    POLICIES,
    DynamicK,
    Fixed,
    Policy,
    Pricing,
    Threshold,
    make_policy,
)
from foresay.budget.selected import SelectedNodes
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError


@pytest.mark.parametrize("name", list(POLICIES))
def test_every_policy_keeps_the_promises(name: str) -> None:
    rng = np.random.default_rng(2)
    policy = make_policy(name)
    assert isinstance(policy, Policy)
    assert policy.name == name
    for step in range(60):
        count = int(rng.integers(0, 6))
        load = load_of(
            *rng.integers(1, 900, count).tolist(),
            tokens_left=rng.integers(1, 8, count).tolist(),
            other_rows=int(rng.choice([0, 50])),
            other_reads=500,
            ids=np.arange(step, step + count),
        )
        budgets = policy.budgets(load)
        assert all(type(b) is int and 0 <= b <= 4096 for b in budgets)
        assert all(b == 0 for b, left in zip(budgets, load.tokens_left, strict=True) if left == 1)
        batch = trees(rng, count, 9, scored=bool(rng.random() < 0.7))
        chosen = policy.choose(batch, load)
        check_subset(batch, chosen, load)
        paths = [[0] if len(d) and rng.random() < 0.5 else [] for d in chosen.drafts]
        policy.observe(facts(load, chosen, paths, draft_seconds=float(rng.choice([0, 0.01]))))


@pytest.mark.parametrize("name", list(POLICIES))
def test_the_last_token_is_never_drafted(name: str) -> None:
    policy = make_policy(name)
    load = load_of(5, 5, tokens_left=1)
    assert policy.budgets(load) == [0, 0]
    batch = DraftBatch.of([Draft.chain([1, 2]), Draft.chain([3])])
    assert len(policy.choose(batch, load).drafts.tokens) == 0


def test_none_and_fixed() -> None:
    assert make_policy("none").budgets(load_of(5, 5)) == [0, 0]
    assert make_policy("fixed").budgets(load_of(5, 5)) == [8, 8]
    assert make_policy("fixed", k=3).budgets(load_of(5, 5, tokens_left=[1, 2])) == [0, 3]
    assert make_policy("fixed", k=0).budgets(load_of(5)) == [0]


def test_threshold_at_plus_and_minus_one() -> None:
    policy = make_policy("threshold", k=3, batch=8)
    for count, nodes in ((7, 3), (8, 3), (9, 0), (8, 3)):
        assert policy.budgets(load_of(*[10] * count)) == [nodes] * count
    assert Threshold().batch == 8


def test_dynamic_k_is_the_seeds_rule() -> None:
    policy = DynamicK()
    load = load_of(10, ids=np.array([7]))
    k = 6
    rng = np.random.default_rng(3)
    for _ in range(300):
        assert policy.budgets(load) == [k]
        won = k if rng.random() < 0.5 else int(rng.integers(0, k + 1))
        chosen = policy.choose(DraftBatch.of([Draft.chain([1] * k)]), load)
        policy.observe(facts(load, chosen, [list(range(won))]))
        ratio = won / k
        if ratio >= 0.8:
            k = min(k + 1, 12)
        elif ratio <= 0.4:
            k = max(k - 1, 3)


def test_dynamic_k_has_a_k_for_each_request_and_forgets_old_ones() -> None:
    policy = DynamicK(remembered=50)
    for step in range(200):
        load = load_of(10, 10, ids=np.array([0, 1000 + step]))
        good, new = policy.budgets(load)
        assert new == 6
        assert good == min(12, 6 + step)
        batch = DraftBatch.of([Draft.chain([1] * good), Draft.chain([1] * new)])
        policy.observe(facts(load, policy.choose(batch, load), [list(range(good)), []]))
        assert len(policy._of) <= 50
    # A step without a draft, and a draft cut short by max_tokens, are no failures.
    load = load_of(10, tokens_left=3, ids=np.array([0]))
    policy.observe(facts(load, SelectedNodes.nothing(1), [[]]))
    policy.observe(facts(load, selected(DraftBatch.of([Draft.chain([1, 1])])), [[0, 1]]))
    assert policy.budgets(load) == [12]


def test_dynamic_k_without_ids_has_one_k() -> None:
    policy = DynamicK()
    load = load_of(10, 10)
    chosen = selected(DraftBatch.of([Draft.chain([1] * 6)] * 2))
    policy.observe(facts(load, chosen, [list(range(6)), list(range(4))]))
    assert policy.budgets(load) == [7, 7]


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("greedy", {}, "'greedy'; expected one of none, fixed, threshold, dynamic-k, adaptive"),
        ("fixed", {"j": 3}, "'fixed' has no setting 'j'; expected k"),
        ("none", {"k": 3}, "'none' has no setting 'k'; expected none"),
        ("fixed", {"k": -1}, "k is -1"),
        ("threshold", {"batch": 1.5}, "batch is 1.5"),
        ("dynamic-k", {"least": 9}, "least is 9; expected a whole number from 1 to 6"),
        ("dynamic-k", {"up": 0.1}, "0 <= down < up <= 1"),
        ("adaptive", {"most": 0}, "most is 0"),
        ("adaptive", {"share": 2}, "share is 2"),
    ],
)
def test_what_cannot_be_made(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_policy(name, **settings)


def test_a_policy_that_is_made_already() -> None:
    policy = Fixed(k=2)
    assert make_policy(policy) is policy
    with pytest.raises(InputError, match="settings k came with a policy"):
        make_policy(policy, k=3)
    with pytest.raises(InputError, match="policy is 3"):
        make_policy(3)  # type: ignore[arg-type]
    cost = StepCost()
    made = make_policy("adaptive", cost)
    assert isinstance(made, Adaptive) and made.cost is cost
    assert make_policy().name == "adaptive"


# The best choice


def stairs(rows: NDArray[Any]) -> NDArray[Any]:
    return 1 + 0.2 * np.ceil(rows / 4 - 1)


class Stairs(StepCost):
    """A staircase with steps of 4 rows, and attention that counts. It learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        rows = np.arange(1.0, 300.0)
        self._set(rows.tolist(), stairs(rows).tolist(), [0.0] * len(rows))
        self._extras = [1e-4, 0.0, 0.0]

    def observe(self, *_: Any) -> None:
        pass


def closed_subsets(batch: DraftBatch) -> list[list[int]]:
    """All sets of flat nodes that hold every node's parent."""
    parents = [
        -1 if p < 0 else p + start
        for draft, start in zip(batch, batch.offsets.tolist(), strict=False)
        for p in draft.parents.tolist()
    ]
    sets: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        sets += [[*s, node] for s in sets if parent < 0 or parent in s]
    return sets


def test_the_choice_is_the_best_of_all_closed_subsets() -> None:
    """With equal contexts the best prefix of the ranking is the best of all subsets."""
    rng = np.random.default_rng(4)
    more_than_none = 0
    for _ in range(150):
        count = int(rng.integers(1, 4))
        batch = trees(rng, count, 4)
        load = load_of(*[50] * count, other_rows=int(rng.choice([0, 0, 6])))
        policy = Adaptive(Stairs(), share=0.0)
        policy.budgets(load)
        chosen = policy.choose(batch, load)
        check_subset(batch, chosen, load)
        if batch.scores is None:
            continue

        def rate(nodes: list[int], load: Load = load, batch: DraftBatch = batch) -> float:
            requests = len(load)
            assert batch.scores is not None
            tokens = requests + float(batch.scores[nodes].astype(float).sum())
            reads = load.keys + 51 * len(nodes)
            alone = Stairs().of(requests, load.keys)
            others = Stairs().of(requests + load.other_rows, load.keys) - alone
            rows = requests + load.other_rows + len(nodes)
            return tokens / (Stairs().of(rows, reads) - others)

        starts = batch.offsets[:-1].repeat(np.diff(chosen.drafts.offsets))
        taken = (chosen.nodes + starts).tolist()
        best = max(rate(nodes) for nodes in closed_subsets(batch))
        assert rate(taken) == pytest.approx(best, rel=1e-6)
        more_than_none += bool(taken)
    assert more_than_none > 50


def test_the_first_hill_is_not_the_highest() -> None:
    """The fourth node starts a new stair and alone is not worth it; with more of them it is."""
    batch = DraftBatch.of([Draft.chain([1] * 11, np.full(11, 0.45, np.float32))])
    load = load_of(1)
    cost = Stairs()
    policy = Adaptive(cost, share=0.0)
    policy.budgets(load)
    n = len(policy.choose(batch, load).drafts.tokens)
    rates = (1 + 0.45 * np.arange(12)) / cost.seconds(np.arange(1, 13), 2 * np.arange(12) + 1)
    assert rates[4] < rates[3]  # the hill
    assert n == int(rates.argmax()) == 11


def test_nodes_of_short_contexts_are_no_dearer_than_they_are() -> None:
    """Equal chances are shared out, and what a request's rows read is counted."""
    chain = Draft.chain([1] * 4, [0.9, 0.85, 0.8, 0.7])
    load = load_of(10, 10, 10, 10)
    policy = Adaptive(Stairs(), share=0.0)
    policy.budgets(load)
    chosen = policy.choose(DraftBatch.of([chain] * 4), load)
    counts = np.diff(chosen.drafts.offsets)
    assert counts.max() - counts.min() <= 1


def test_a_prefill_does_not_make_nodes_look_cheap() -> None:
    cost = StepCost()  # 9 rows cost twice as much as 1
    batch = DraftBatch.of([Draft.chain([1, 2, 3], [0.05, 0.04, 0.03])])
    for other in (0, 500):
        policy = Adaptive(cost, share=0.0)
        load = load_of(100, other_rows=other, other_reads=100 * other)
        policy.budgets(load)
        assert len(policy.choose(batch, load).drafts.tokens) == 0


def test_sampled_drafts_are_never_dropped_for_what_they_are() -> None:
    """The same shape with other scores gives the same choice: the distribution stays as it is."""
    probs = np.full((4, 2), 0.5, np.float32)
    seen = []
    for scores in ([0.9, 0.8, 0.7, 0.6], [0.1, 0.05, 0.01, 0.0]):
        as_array = np.array(scores, np.float32)
        batch = DraftBatch([1] * 4, [-1, 0, 1, 2], [0, 4], as_array, probs)
        policy = Adaptive(Stairs(), share=0.0)
        policy.budgets(load_of(5))
        seen.append(policy.choose(batch, load_of(5)).nodes.tolist())
    assert seen[0] == seen[1] != []


def test_the_batch_bounds_what_is_asked_for() -> None:
    policy = Adaptive(StepCost(), most=32, total=512)
    assert policy.budgets(load_of(5)) == [32]
    assert policy.budgets(load_of(*[5] * 32)) == [16] * 32
    assert policy.budgets(load_of(*[5] * 400)) == [4] * 400


def test_it_is_cheap() -> None:
    """85 us at 1 request and 145 us at 32 x 16 nodes were measured; here only the order."""
    rng = np.random.default_rng(0)
    for count, bound in ((1, 1e-3), (32, 2e-3)):
        policy = Adaptive(StepCost.measured([(1, 256, 0.027), (16, 4096, 0.03)]))
        load = load_of(*[500] * count)
        batch = DraftBatch.of(list(trees(rng, 200, 16))[:count])
        took = []
        for _ in range(60):
            start = time.perf_counter()
            policy.budgets(load)
            chosen = policy.choose(batch, load)
            policy.observe(StepFacts(load, chosen, np.zeros(len(chosen.nodes), bool), count, 0.03))
            took.append(time.perf_counter() - start)
        assert np.median(took) < bound


def test_the_price_of_a_token_is_the_time_of_tokens_now() -> None:
    cost = StepCost.measured((rows, 16 * rows, 0.01 + 0.001 * rows) for rows in (1, 2, 8, 16, 32))
    policy = Adaptive(cost)
    assert isinstance(policy, Pricing) and not isinstance(Fixed(), Pricing)
    one, four = load_of(16), load_of(16, 16, 16, 16)
    policy.budgets(one)
    token, node, step = policy.price(one)
    assert step == pytest.approx(0.011, rel=0.05)
    assert token == pytest.approx(0.011, rel=0.05)
    assert node == pytest.approx(0.001, rel=0.2)
    for _ in range(200):  # steps of two tokens, which take half as long again
        policy.budgets(one)
        chosen = selected(DraftBatch.of([Draft.chain([1], [0.9])]))
        policy.observe(StepFacts(one, chosen, np.array([True]), 2, 0.012, 0.0045))
    policy.budgets(one)
    assert policy.price(one)[0] == pytest.approx(0.75 * policy.cost.of(1, 16, 16, 1), rel=0.05)
    policy.budgets(four)  # another load: at once
    plain = policy.cost.of(4, 64, 64, 4)
    assert policy.price(four)[0] == pytest.approx(0.75 * plain / 4, rel=0.05)


def test_what_the_drafter_has_weighed_is_not_weighed_again() -> None:
    def asked(spent: float) -> list[int]:
        policy, load, found = Adaptive(StepCost()), load_of(16), []
        for _ in range(60):
            found.append(policy.budgets(load)[0])
            if found[-1]:
                policy.price(load)
                policy.spent(spent)
            nothing = SelectedNodes.nothing(1)
            policy.observe(StepFacts(load, nothing, np.empty(0, bool), 1, 1.0, 0.501))
        return found

    assert 0 not in asked(0.5)
    assert sum(map(bool, asked(0.0))) < 20
