"""Loads, random trees and what became of them, for the tests of the budget."""

from __future__ import annotations

from typing import Any

import numpy as np

from foresay.budget.load import Load, StepFacts
from foresay.budget.selected import SelectedNodes
from foresay.draft import Draft, DraftBatch
from foresay.verdict import Verdict


def load_of(*contexts: int, tokens_left: int | list[int] = 1000, **more: Any) -> Load:
    count = len(contexts)
    left = [tokens_left] * count if isinstance(tokens_left, int) else tokens_left
    return Load(np.array(contexts, np.int64), np.array(left, np.int64), **more)


def trees(rng: np.random.Generator, requests: int, most: int, *, scored: bool = True) -> DraftBatch:
    """Random trees, some of them empty, some chains."""
    drafts = []
    for _ in range(requests):
        n = int(rng.integers(0, most + 1))
        chain = rng.random() < 0.3
        parents = [i - 1 if chain else int(rng.integers(-1, i)) for i in range(n)]
        scores: list[float] = []
        for parent in parents:
            above = scores[parent] if parent >= 0 else 1.0
            scores.append(above * float(rng.choice([1.0, 0.9, 0.5, rng.random()])))
        tokens = rng.integers(0, 99, n).astype(np.int32)
        as_array = np.array(scores, np.float32) if scored else None
        drafts.append(Draft(tokens, np.array(parents, np.int32), as_array))
    return DraftBatch.of(drafts)


def scored(seed: int, count: int) -> DraftBatch:
    """Random trees with scores; some of the drafts have no nodes."""
    rng = np.random.default_rng(seed)
    while (batch := trees(rng, count, 6)).scores is None:
        pass
    return batch


def depth_by_hand(draft: Draft) -> list[int]:
    depths: list[int] = []
    for parent in draft.parents.tolist():
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def check_subset(whole: DraftBatch, chosen: SelectedNodes, load: Load) -> None:
    """Closed under parents, in the old order, renumbered, within max_tokens."""
    assert len(chosen.drafts) == len(whole)
    assert len(chosen.nodes) == len(chosen.drafts.tokens)
    assert chosen.nodes.dtype == np.int32 and chosen.drafts.offsets.dtype == np.int32
    start = 0
    for old, new, left in zip(whole, chosen.drafts, load.tokens_left.tolist(), strict=True):
        kept = chosen.nodes[start : start + len(new)].tolist()
        start += len(new)
        assert kept == sorted(set(kept))
        assert old.tokens[kept].tolist() == new.tokens.tolist()
        for node, parent in zip(kept, new.parents.tolist(), strict=True):
            assert old.parents[node] == (-1 if parent < 0 else kept[parent])
        if old.scores is not None and len(new):
            assert new.scores is not None
            assert old.scores[kept].tolist() == new.scores.tolist()
        assert all(depth <= left - 1 for depth in depth_by_hand(new))
    # What a constructor would refuse was not made behind its back.
    DraftBatch(
        chosen.drafts.tokens, chosen.drafts.parents, chosen.drafts.offsets, chosen.drafts.scores
    )


def selected(batch: DraftBatch, flat: list[int] | None = None) -> SelectedNodes:
    """These nodes of a batch; None: all of them."""
    keep = np.ones(len(batch.tokens), bool)
    if flat is not None:
        keep[:] = False
        keep[flat] = True
    return SelectedNodes(batch, keep)


def facts(load: Load, chosen: SelectedNodes, paths: list[list[int]], **more: Any) -> StepFacts:
    verdicts = [Verdict(path, [1] * (len(path) + 1)) for path in paths]
    return StepFacts.of(load, chosen, chosen.numbered(verdicts), more.pop("seconds", 0.03), **more)


# The values
