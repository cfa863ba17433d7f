"""The members' drafts of a step in one tree for each request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foresay import _core
from foresay.arrays import Floats, Int32s, sizes_of
from foresay.draft import Draft, DraftBatch
from foresay.drafter import MAX_BUDGET
from foresay.drafters.merge.gating import Asked
from foresay.drafters.merge.union import MergeState, Own, Union

__all__ = ["unite"]

_COUNT: Int32s = np.arange(MAX_BUDGET, dtype=np.int32)


def unite(
    merge: _core.TreeMerge,
    step: Sequence[Asked],
    states: Sequence[MergeState],
    budgets: list[int],
    *,
    keeps_lone: bool,
) -> DraftBatch:
    """The best of all drafts of a step, best first; each state knows its part of it.

    keeps_lone  whether a draft that is the only one of its request is proposed as it is: that takes
                less time than a small gain is worth
    """
    having = [one for one in step if one.drafts is not None and len(one.drafts.tokens)]
    batches = [one.drafts for one in having if one.drafts is not None]
    sizes = np.array([sizes_of(batch.offsets) for batch in batches])
    if not keeps_lone or not having:
        unite = np.full(len(states), bool(having))
    else:
        unscored = np.array([batch.scores is None for batch in batches])
        unite = ((sizes > 0).sum(0) > 1) | (sizes > budgets).any(0)
        unite |= (sizes[unscored] > 0).any(0)
    rows = np.flatnonzero(unite).tolist()
    merged, homes = _union_of(merge, having, [states[at] for at in rows], budgets, rows)
    if len(rows) == len(states):
        drafts = merged
    elif len(having) == 1 and not rows:
        drafts = batches[0]
    else:
        every: list[Draft] = [Draft.empty()] * len(states)
        for batch, count in zip(batches, sizes, strict=True):
            for at in np.flatnonzero(count).tolist():
                every[at] = batch[at]
        for at, draft in zip(rows, merged, strict=True):
            every[at] = draft
        drafts = DraftBatch.of(every) if having else no_drafts(len(states))
    _note(step, states, drafts, dict(zip(rows, homes, strict=True)))
    return drafts


def _union_of(
    merge: _core.TreeMerge,
    having: Sequence[Asked],
    states: Sequence[MergeState],
    budgets: list[int],
    rows: list[int],
) -> tuple[DraftBatch, list[dict[int, Int32s]]]:
    """The drafts of these requests united, and where each member's nodes went."""
    if not rows:
        return no_drafts(0), []
    batches = [no_drafts(len(rows))] * len(states[0].states)
    for one in having:
        assert one.drafts is not None
        whole = len(rows) == len(one.drafts)
        batches[one.member.index] = (
            one.drafts if whole else DraftBatch.of([one.drafts[at] for at in rows])
        )
    tokens, parents, offsets, scores, homes = merge.merge(
        [(each.tokens, each.parents, each.offsets, each.scores) for each in batches],
        np.array([budgets[at] for at in rows], np.int32),
        np.array([state.seed for state in states], np.uint64),
        np.array([state.temperature for state in states], np.float32),
        np.array([state.length for state in states], np.int64),
        [state.memory for state in states],
    )
    found = [
        {
            one.member.index: homes[one.member.index][first:end]
            for one in having
            for first, end in [batches[one.member.index].offsets[at : at + 2].tolist()]
        }
        for at in range(len(rows))
    ]
    return DraftBatch._trusted(tokens, parents, offsets, scores), found


def _note(
    step: Sequence[Asked],
    states: Sequence[MergeState],
    drafts: DraftBatch,
    homes: dict[int, dict[int, Int32s]],
) -> None:
    """Let each state know its part of the drafts, and whose they were made from.

    homes  where each member's nodes went, of the requests whose drafts were united
    """
    scores, bounds = drafts.scores, drafts.offsets.tolist()
    assert scores is not None
    for at, state in enumerate(states):
        own: dict[int, Own] = {}
        for one in step:
            if (not one.budgets[at] and one.plan is not None) or one.drafts is None:
                continue
            k = one.member.index
            first, end = one.drafts.offsets[at : at + 2].tolist()
            home = homes[at].get(k) if at in homes else _COUNT[: end - first]
            level, group = -1, 0
            if one.plan is not None:
                level, group = one.plan.level, one.groups[at]
            probs = None if one.probs is None else one.probs[at]
            own[k] = Own(_COUNT[:0] if home is None else home, group, level, probs)
        state.last = Union(scores[bounds[at] : bounds[at + 1]], own, at in homes)


def no_drafts(requests: int) -> DraftBatch:
    """A batch of empty drafts, with scores: it fits beside any other."""
    none = np.empty(0, np.int32)
    scores: Floats = np.empty(0, np.float32)
    return DraftBatch._trusted(none, none, np.zeros(requests + 1, np.int32), scores)
