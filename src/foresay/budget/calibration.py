"""What a drafter's scores are worth, learned from which nodes were accepted.

A drafter whose scores are too high would make a step slower than no draft. So scores are corrected
by which earlier nodes were accepted, beginning with no correction. Drafters without scores are
judged by depth. Old observations fade as new ones come, not as time passes.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.budget.load import along_paths, depths_of, parents_of
from foresay.draft import DraftBatch

__all__ = ["DepthCalibration", "ScoreCalibration"]

Float64s: TypeAlias = NDArray[np.float64]
Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

_DEEPEST = 64  # depth; what is deeper counts as this deep


class ScoreCalibration:
    """From a drafter's scores to chances.

    What is calibrated is each node's chance once its parent is accepted: its score over its
    parent's. Only such nodes were tested; nodes below a rejected one teach nothing new. The first
    token of a draft and the later ones are counted apart: where the first is accepted, the draft
    has found its place in a text, and more follows.

    Chances fall into classes by their log odds. Each class keeps how many more nodes were accepted
    than the scores stated, against `prior` nodes without a difference; the last `memory` nodes of a
    class count.
    """

    def __init__(self, *, prior: float = 4.0, memory: float = 128.0) -> None:
        self._edges = 1 / (1 + np.exp(-np.linspace(-6.0, 6.0, 17)))
        self._classes = len(self._edges) + 1  # and as many again for later tokens
        self._prior = prior
        self._fade = 1.0 - 1.0 / memory
        self._seen = np.zeros(2 * self._classes)
        self._beyond = np.zeros(2 * self._classes)
        self._gap = np.zeros(2 * self._classes)

    def __call__(self, drafts: DraftBatch) -> Float64s:
        """The chance of each node of `drafts`, which have scores; never more than its parent's."""
        parents = parents_of(drafts)
        stated, kinds = self._classed(drafts, parents)
        chances = np.ones(len(parents))
        own = chances[:-1]
        np.add(stated, self._gap[kinds], out=own)
        # Bounded away from 1 by more than rounding, so that no child can overtake its parent.
        np.minimum(own, 1 - 1e-9, out=own)
        np.maximum(own, 1e-6, out=own)
        return along_paths(drafts, parents, chances, np.multiply)[:-1]

    def observe(self, drafts: DraftBatch, accepted: Bools) -> None:
        """Learn from verified nodes."""
        parents = parents_of(drafts)
        stated, kinds = self._classed(drafts, parents)
        tested = _tested(parents, accepted)
        stated, kinds, true = stated[tested], kinds[tested], accepted[tested]
        size = len(self._seen)
        count = np.bincount(kinds, minlength=size)
        fade = self._fade**count
        self._seen = self._seen * fade + count
        self._beyond = self._beyond * fade + np.bincount(kinds, true - stated, size)
        self._gap = self._beyond / (self._seen + self._prior)

    def _classed(self, drafts: DraftBatch, parents: Int64s) -> tuple[Float64s, Int64s]:
        """Each node's score over its parent's, and the class of that."""
        n = len(parents) - 1
        scores = np.ones(n + 1)
        scores[:n] = drafts.scores
        stated: Float64s = scores[:n] / np.maximum(scores[parents[:n]], 1e-9)
        kinds = self._edges.searchsorted(stated)
        kinds += self._classes * (parents[:n] >= 0)
        return stated, kinds


class DepthCalibration:
    """Chances by depth alone, for drafts without scores.

    As with scores, each depth keeps the share of nodes that were accepted once their parent was; a
    depth with few observations is taken to be as good as the one above it.
    """

    def __init__(self, *, prior: float = 4.0, memory: float = 128.0) -> None:
        self._prior = prior
        self._fade = 1.0 - 1.0 / memory
        self._seen = np.zeros(_DEEPEST)
        self._hits = np.zeros(_DEEPEST)
        self._chances = 0.7 ** np.arange(_DEEPEST + 1.0)

    def __call__(self, drafts: DraftBatch) -> Float64s:
        """The chance of each node of `drafts`; never more than its parent's."""
        chances: Float64s = self._chances[np.minimum(depths_of(drafts), _DEEPEST)]
        return chances

    def observe(self, drafts: DraftBatch, accepted: Bools) -> None:
        """Learn from verified nodes."""
        tested = _tested(parents_of(drafts), accepted)
        depths = np.minimum(depths_of(drafts)[tested], _DEEPEST) - 1
        count = np.bincount(depths, minlength=_DEEPEST)
        fade = self._fade**count
        self._seen = self._seen * fade + count
        self._hits = self._hits * fade + np.bincount(depths, accepted[tested], _DEEPEST)
        share, chances = 0.7, [1.0]
        for seen, hits in zip(self._seen.tolist(), self._hits.tolist(), strict=True):
            share = (hits + self._prior * share) / (seen + self._prior)
            chances.append(chances[-1] * share)
        self._chances = np.array(chances)


def _tested(parents: Int64s, accepted: Bools) -> Bools:
    """Whether each node's parent was accepted, so that the node itself was tested."""
    known = np.ones(len(parents), bool)
    known[:-1] = accepted
    return known[parents[:-1]]
