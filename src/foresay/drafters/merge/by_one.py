"""A step in which one drafter of a merge takes part alone, because the others rest.

Its drafts are proposed as they are, and the others are told of what was committed when they are
asked again. So drafters that do not pay take next to no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from foresay.arrays import sizes_of
from foresay.draft import DraftBatch
from foresay.drafter import Drafter, check_lengths
from foresay.drafters.merge.merged import MergeState, Union, catch_up, chosen, laws_of, note_missed
from foresay.errors import InputError
from foresay.verdict import VerdictBatch

__all__ = ["observe", "propose"]


def propose(
    drafters: Sequence[Drafter[Any]], k: int, states: Sequence[MergeState], budgets: list[int]
) -> DraftBatch | None:
    """The drafts of drafter k; None if they have no scores, so that they have to be judged.

    Raises: InputError for a draft with too many nodes; what the drafter raises.
    """
    catch_up(drafters[k], k, states)
    given = drafters[k].propose([state.states[k] for state in states], list(budgets))
    drafts, laws = chosen(given), laws_of(given)
    check_lengths(len(states), len(drafts), "drafts")
    bounds, scores = drafts.offsets.tolist(), drafts.scores
    if scores is None:
        if len(drafts.tokens):
            return None
        scores = np.empty(0, np.float32)
    every = laws or [None] * len(states)
    for state, first, end, budget, law in zip(
        states, bounds, bounds[1:], budgets, every, strict=False
    ):
        if end - first > budget:
            raise InputError(
                f"drafter {k} has a draft of {end - first} nodes; expected at most {budget}"
            )
        state.last = Union.of_one(scores[first:end], k, len(drafters))
        if law is not None:
            state.last.laws[k] = law
    return drafts


def observe(
    drafter: Drafter[Any], k: int, states: Sequence[MergeState], batch: VerdictBatch
) -> None:
    """Tell drafter k what was committed, and note it for the others."""
    drafter.observe([state.states[k] for state in states], batch.copy())
    for other in range(len(states[0].missed) if states else 0):
        if other != k:
            note_missed(other, states, batch)
    for state, count in zip(states, sizes_of(batch.offsets).tolist(), strict=True):
        state.read[k], state.last = state.length, None
        state.length += count
