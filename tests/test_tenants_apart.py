"""What is learned from one tenant's texts changes nothing for another: neither the drafts, nor what
they are taken to be worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from foresay import Draft, DraftBatch, Verdict
from foresay.arrays import Int32s
from foresay.bench.replay import walk
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import Sample, StepCost
from foresay.budget.load import Load, StepFacts
from foresay.drafter import ByTenant
from foresay.drafters import MergeDrafter, ModelDrafter, NgramDrafter, SuffixDrafter
from foresay.drafters.decoding.noise_weight import NoiseWeight
from foresay.models.load_transformers import target_of
from models import zoo

DRAFTERS: dict[str, Callable[[], Any]] = {
    "suffix": SuffixDrafter,
    "suffix, chains": lambda: SuffixDrafter(chain=True),
    "merge": lambda: MergeDrafter(SuffixDrafter(), NgramDrafter()),
}


def texts(count: int, seed: int) -> list[Int32s]:
    """Texts with something to copy, over few tokens: the same contexts come in all of them."""
    random = np.random.default_rng(seed)
    pieces = random.integers(0, 30, (6, 5))
    return [pieces[random.integers(0, 6, 14)].reshape(-1).astype(np.int32) for _ in range(count)]


def lived(drafter: Any, text: Int32s, tenant: str | None) -> list[Draft]:
    """The drafts of a request that writes this text."""
    at, drafts = 20, []
    state = drafter.begin(text[:at], tenant=tenant)
    while at < len(text):
        (draft,) = DraftBatch.of(drafter.propose([state], [6]))
        drafts.append(Draft(draft.tokens.copy(), draft.parents.copy(), draft.scores))
        path = walk(draft, text[at:-1].tolist())
        drafter.observe([state], [Verdict(path, text[at : at + len(path) + 1])])
        at += len(path) + 1
    drafter.finish(state)
    return drafts


@pytest.mark.parametrize("name", DRAFTERS)
def test_another_tenants_texts_change_no_draft(name: str) -> None:
    alone, shared, one = (DRAFTERS[name]() for _ in range(3))
    for mine, theirs in zip(texts(8, 1), texts(8, 2), strict=True):
        expected = lived(alone, mine, "mine")
        for other in (theirs, mine):
            lived(shared, other, "theirs")
            lived(shared, other, None)
            lived(one, other, "mine")
        assert lived(shared, mine, "mine") == expected
        assert lived(one, mine, "mine") != expected  # one's own texts do


def test_when_another_tenant_works_changes_no_lesson() -> None:
    """After much experience a drafter learns from some steps only: which, is the tenant's own."""
    found = []
    for others in (0, 1):
        drafter = SuffixDrafter()
        (text,) = texts(1, 3)
        states = [drafter.begin(text[:20], tenant="mine") for _ in range(256)]
        other = drafter.begin(text[:20], tenant="theirs")
        for at in range(20, 20 + 100):
            drafter.observe(states, [Verdict([], text[[at % 70]])] * len(states))
            if at < 20 + 50 * others:
                drafter.observe([other], [Verdict([], [3])])
        for state in states[1:]:
            drafter.finish(state)
        found.append(lived(drafter, text, "mine"))
        for _ in range(others):
            drafter.observe([other], [Verdict([], [3])])
        found[-1] += lived(drafter, texts(1, 4)[0], "mine")
    assert found[0] == found[1]


def test_a_tenant_that_is_dropped_begins_anew() -> None:
    drafter, fresh = DRAFTERS["merge"](), DRAFTERS["merge"]()
    mine = texts(3, 5)
    for text in mine:
        lived(drafter, text, "mine")
    drafter.drop_tenant("mine")
    assert lived(drafter, mine[0], "mine") == lived(fresh, mine[0], "mine")


def test_many_tenants_are_forgotten_but_for_those_at_work() -> None:
    """What a merge has learned of them; drafters have limits of their own."""
    drafter = MergeDrafter(NgramDrafter(), NgramDrafter())
    (text,) = texts(1, 6)
    fresh = lived(drafter, text, "idle")
    taught = lived(drafter, text, "at work")
    assert fresh == taught and lived(drafter, text, "idle") != fresh
    running = drafter.begin(text[:20], tenant="at work")
    for number in range(300):
        drafter.finish(drafter.begin(text[:20], tenant=f"{number}"))
    assert lived(drafter, text, "idle") == fresh
    assert lived(drafter, text, "at work") != fresh
    drafter.finish(running)


def seconds(rows: int) -> float:
    return 1 + 0.2 * rows


def test_the_policy_judges_each_tenants_drafts_by_its_own() -> None:
    """A new request of a tenant whose drafts were always wrong gets none; the other's does."""
    samples = [Sample(rows, 50 * rows, seconds(rows)) for rows in (1, 2, 4, 8, 16) for _ in "abc"]
    policy = Adaptive(StepCost.measured(samples))
    whose = ["wrong", "right"]
    drafts = DraftBatch.of([Draft.chain([1, 2], [0.6, 0.5]), Draft.chain([3, 4], [0.6, 0.5])])

    def load(first: int) -> Load:
        ids = np.array([first, first + 1])
        return Load(np.array([50, 50]), np.array([90, 90]), ids=ids, tenants=whose)

    for step in range(60):
        policy.budgets(load(step))
        chosen = policy.choose(drafts, load(step))
        count = int(np.diff(chosen.drafts.offsets)[1])
        verdicts = [Verdict([], [9]), Verdict(list(range(count)), [3, 4, 5][: count + 1])]
        took = seconds(2 + len(chosen.nodes))
        policy.observe(StepFacts.of(load(step), chosen, verdicts, took))
    policy.budgets(load(100))
    assert np.diff(policy.choose(drafts, load(100)).drafts.offsets).tolist() == [0, 2]


def test_how_much_of_the_noise_is_followed_is_learned_by_tenant() -> None:
    weights = ByTenant(NoiseWeight)
    for _ in range(10):  # what 0.7 finds is always right
        weights["a"].learn([1, 1, 2, 1, 1], 2)
    assert [weights[name].value for name in ("a", "b", None)] == [0.7, 1.0, 1.0]
    weights.forget("a")
    assert weights["a"].value == 1.0


def test_a_draft_model_learns_by_tenant() -> None:
    drafter = ModelDrafter(target_of(zoo.make("llama", seed=1)), shape=2)
    learned = drafter.begin([1, 2, 3], tenant="a").noise_weight
    for _ in range(10):
        learned.learn([1, 1, 2, 1, 1], 2)

    def weights() -> list[float]:
        return [drafter.begin([1], tenant=name).noise_weight.value for name in ("a", "b", None)]

    assert weights() == [0.7, 1.0, 1.0]
    drafter.drop_tenant("a")
    assert weights() == [1.0, 1.0, 1.0]


def test_the_tenant_that_was_asked_least_recently_is_forgotten() -> None:
    lists = ByTenant[list[int]](list, most=2)
    lists["a"].append(1)
    lists["b"].append(2)
    assert lists["a"] == [1]  # asked again
    lists["c"].append(3)
    assert (lists["a"], lists["c"], lists["b"]) == ([1], [3], [])
