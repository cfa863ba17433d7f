"""What drafted nodes are worth and in which order they are taken, against loops that one can read;
and that the core refuses what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from budget.batches import trees
from foresay import _core
from foresay.draft import DraftBatch

EDGES = np.linspace(0.1, 0.9, 5)


def scored(seed: int, count: int) -> DraftBatch:
    """Some of the drafts have no nodes."""
    rng = np.random.default_rng(seed)
    while (batch := trees(rng, count, 6)).scores is None:
        pass
    return batch


def calibrated(batch: DraftBatch, gaps: Any) -> Any:
    assert batch.scores is not None
    of = (batch.tokens, batch.parents, batch.offsets, batch.scores)
    return _core.calibrated(*of, EDGES, gaps)


@pytest.mark.parametrize("seed", range(40))
def test_chances_are_products_along_paths(seed: int) -> None:
    batch = scored(seed, 4)
    gaps = np.random.default_rng(seed).normal(0, 0.3, 12)
    wanted = []
    for draft in batch:
        assert draft.scores is not None
        chances: list[float] = []
        for score, parent in zip(draft.scores.tolist(), draft.parents.tolist(), strict=True):
            ratio = score / max(1e-9, draft.scores[parent].item() if parent >= 0 else 1.0)
            kind = sum(edge < ratio for edge in EDGES.tolist()) + (6 if parent >= 0 else 0)
            own = min(1 - 1e-9, max(1e-6, ratio + gaps[kind].item()))
            chances.append(own * (chances[parent] if parent >= 0 else 1.0))
        wanted += chances
    assert np.array_equal(calibrated(batch, gaps), wanted)


@pytest.mark.parametrize("seed", range(40))
def test_nodes_whose_parent_was_accepted_teach(seed: int) -> None:
    batch, rng = scored(seed, 4), np.random.default_rng(seed)
    gaps, tables = rng.normal(0, 0.3, 24), rng.integers(0, 2, 4).astype(np.int32)
    accepted = rng.random(len(batch.tokens)) < 0.5
    counts, beyond = np.zeros(24), np.zeros(24)
    of_roots = np.zeros((3, 4))
    for at, draft in enumerate(batch):
        own = accepted[batch.offsets[at] : batch.offsets[at + 1]].tolist()
        if not own:
            continue
        chances = calibrated(DraftBatch.of([draft]), gaps.reshape(2, 12)[tables[at]])
        assert draft.scores is not None
        for node, parent in enumerate(draft.parents.tolist()):
            ratio = draft.scores[node].item()
            if parent < 0:
                of_roots[:, at] += 1, chances[node], own[node]
            else:
                ratio /= max(1e-9, draft.scores[parent].item())
            if parent < 0 or own[parent]:
                kind = sum(edge < ratio for edge in EDGES.tolist()) + (6 if parent >= 0 else 0)
                counts[12 * tables[at] + kind] += 1
                beyond[12 * tables[at] + kind] += own[node] - ratio
    assert batch.scores is not None
    of = (batch.tokens, batch.parents, batch.offsets, batch.scores)
    found = _core.lessons(*of, EDGES, gaps, accepted, tables)
    for one, wanted in zip(found, (counts, beyond, *of_roots), strict=True):
        assert np.array_equal(one, wanted)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_is_by_gain_then_by_place_then_by_draft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 6, 5)
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int32)
    chances = rng.choice([0.0, 0.25, 0.5], int(sizes.sum()))
    worth = rng.choice([0.5, 1.0], 5)
    owner = np.arange(5).repeat(sizes)
    gains, place = chances * worth[owner], np.arange(len(owner)) - offsets[owner]
    all_nodes = sorted(range(len(owner)), key=lambda i: (-gains[i], place[i], i))
    order, found = _core.ranked(chances, offsets, worth, None)
    assert order.tolist() == all_nodes and np.array_equal(found, gains[all_nodes])
    some = np.flatnonzero(rng.random(len(owner)) < 0.5)
    order, _ = _core.ranked(chances, offsets, worth, some)
    assert order.tolist() == [i for i in all_nodes if i in some.tolist()]
    assert not len(_core.ranked(chances, offsets, worth, some[:0])[0])
