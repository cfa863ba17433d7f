"""What stated chances are worth: by class, by tenant and by request."""

from __future__ import annotations

import numpy as np
import pytest

from foresay.budget.calibration import Calibration
from foresay.draft import Draft, DraftBatch

TWO = DraftBatch.of([Draft.chain([0, 0], [0.8, 0.8])] * 2)


def chains(stated: float) -> DraftBatch:
    return DraftBatch.of([Draft.chain(range(6), [stated**i for i in range(1, 7)])] * 4)


@pytest.mark.parametrize("scored", [True, False])
@pytest.mark.parametrize(
    ("stated", "true"), [(0.9, 0.3), (0.2, 0.6), (0.05, 0.0), (0.999, 0.7), (0.5, 0.5)]
)
def test_stated_chances_become_true_ones(stated: float, true: float, scored: bool) -> None:
    """Those of a drafter without scores too."""
    rng = np.random.default_rng(0)
    calibration, batch = Calibration(), chains(stated)
    assert calibration(batch) == pytest.approx(batch.scores, abs=1e-3)  # no correction at first
    if not scored:
        batch = DraftBatch._trusted(batch.tokens, batch.parents, batch.offsets)
    means = []
    for _ in range(600):
        lucky = (rng.random((4, 6)) < true).cumprod(1).astype(bool).ravel()
        calibration.observe(batch, lucky)
        means.append(calibration(batch)[:6])
    found = np.mean(means[300:], axis=0)
    assert found == pytest.approx(true ** np.arange(1, 7), abs=0.06)


def test_first_tokens_and_later_ones_are_told_apart() -> None:
    calibration, batch = Calibration(), chains(0.7)
    for first in [False, False, False, True] * 50:
        calibration.observe(batch, np.repeat([first] * 4, 6))
    found = calibration(batch)
    assert found[0] == pytest.approx(0.25, abs=0.06)
    assert found[1] / found[0] > 0.95


def test_what_is_learned_of_a_class_is_used_for_it() -> None:
    """Observations fall into classes here, and the core looks them up: also at their very edges.
    With several tenants it is this module that does."""
    rng = np.random.default_rng(3)
    calibration = Calibration()
    edges = 1 / (1 + np.exp(-np.linspace(-6.0, 6.0, 17)))
    scores = [*edges.astype(np.float32).tolist(), 0.0, 0.3, 1.0]
    batch = DraftBatch.of(
        [Draft.chain([1, 2], [1.0, score]) for score in scores]
        + [
            Draft.chain([3], [np.nextafter(np.float32(score), np.float32(0)).item()])
            for score in scores
        ]
    )
    tenants = ["a"] * len(batch)
    for _ in range(50):
        calibration.observe(batch, rng.random(len(batch.tokens)) < 0.4, tenants)
    alone = calibration(batch, tenants)
    both = DraftBatch.of([*batch, Draft.chain([1], [0.5])])
    assert np.allclose(calibration(both, [*tenants, "b"])[:-1], alone, rtol=1e-12, atol=0)


def test_chances_never_rise_down_a_path() -> None:
    """Whatever was observed: a node must not be taken before its parent."""
    rng = np.random.default_rng(1)
    calibration = Calibration()
    for step in range(200):
        n = 40
        parents = np.array([int(rng.integers(-1, i)) for i in range(n)], np.int32)
        scores = np.ones(n, np.float32)
        for i, parent in enumerate(parents.tolist()):
            above = scores[parent] if parent >= 0 else np.float32(1)
            scores[i] = above * np.float32(rng.choice([1.0, 0.0, 0.5, 0.97]))
        batch = DraftBatch._trusted(
            np.zeros(n, np.int32),
            parents,
            np.array([0, n], np.int32),
            scores if step % 2 else None,
        )
        chances = calibration(batch)
        has_parent = parents >= 0
        assert (chances[has_parent] <= chances[parents[has_parent]]).all()
        assert ((chances >= 0) & (chances <= 1)).all()
        calibration.observe(batch, rng.random(n) < 0.5)


def test_a_request_is_worth_what_its_own_drafts_were() -> None:
    calibration = Calibration()
    bad, good, new = 5, 6, 7
    for _ in range(12):
        calibration.observe(TWO, np.array([False, False, True, True]), ids=np.array([bad, good]))
    found = calibration.factors(np.array([bad, good, new]))
    assert found[0] < 0.4
    assert found[1:].tolist() == [1, 1]  # never more than the scores say
    for number in range(10, 5000, 2):  # others push it out
        ids = np.array([number, number + 1])
        calibration.observe(TWO, np.zeros(4, bool), ids=ids)
    assert calibration.factors(np.array([bad])) == [1]


def test_old_drafts_of_a_request_fade() -> None:
    two_firsts = DraftBatch.of([Draft([0, 1], [-1, -1], [0.8, 0.8])])  # they are one draft
    calibration, request = Calibration(), np.array([3])
    calibration.observe(two_firsts, np.zeros(2, bool), ids=request)
    assert calibration.factors(request) == pytest.approx(2 / 3)  # at most one token was expected
    for _ in range(30):
        calibration.observe(two_firsts, np.zeros(2, bool), ids=request)
    bad = float(calibration.factors(request)[0])
    for _ in range(40):
        calibration.observe(two_firsts, np.array([True, False]), ids=request)
    assert bad < 0.4 and calibration.factors(request) > 0.75


@pytest.mark.parametrize("scored", [True, False])
def test_what_drafts_were_worth_is_counted_by_tenant(scored: bool) -> None:
    drafts = DraftBatch.of(
        [Draft.chain([1, 2], [0.9, 0.8]), Draft.empty(), Draft.chain([3, 4, 5], [0.9, 0.8, 0.7])]
    )
    if not scored:
        drafts = DraftBatch._trusted(drafts.tokens, drafts.parents, drafts.offsets)
    calibration, alone, fresh = Calibration(), Calibration(), Calibration()
    before = calibration(drafts, ["a", "b", "c"])
    for _ in range(20):
        calibration.observe(drafts, np.array([False, False, True, True, False]), ["a", "c", "b"])
        alone.observe(drafts[2:], np.array([True, True, False]))
    assert calibration(drafts, ["b", "a", "b"]) == pytest.approx(alone(drafts), rel=1e-12)
    assert calibration(drafts, ["a", "b", "c"])[:2].max() < before[:2].max()
    assert calibration(drafts, ["c", "c", "c"]).tolist() == fresh(drafts).tolist()
    for number in range(300):
        calibration(drafts, [f"{number}"] * 3)
    assert calibration(drafts, ["b"] * 3).tolist() == fresh(drafts).tolist()  # forgotten


def test_many_tenants_in_one_step_have_the_chances_that_each_has_alone() -> None:
    random = np.random.default_rng(2)
    sizes = random.integers(0, 5, 40)
    drafts = DraftBatch.of(
        [Draft.chain(range(n), np.sort(random.random(n))[::-1].tolist()) for n in sizes]
    )
    tenants = [f"tenant {i}" for i in random.integers(0, 7, 40)]
    accepted = random.random(len(drafts.tokens)) < 0.5
    together = Calibration()
    together.observe(drafts, accepted, tenants)
    found = together(drafts, tenants)
    owner = np.repeat(np.arange(40), sizes)
    for tenant in set(tenants):
        mine = [i for i in range(40) if tenants[i] == tenant]
        nodes = np.isin(owner, mine)
        own = DraftBatch.of([drafts[i] for i in mine])
        alone = Calibration()
        alone.observe(own, accepted[nodes])
        assert found[nodes] == pytest.approx(alone(own), rel=1e-12)
