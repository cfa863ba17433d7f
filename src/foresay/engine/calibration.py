"""What a drafter's scores are worth, learned from which nodes were accepted.

A drafter that believes too much in itself would make a step slower than no draft, so its scores are
read through rising curves that begin as the identity and follow what is observed. Drafters
without scores are judged by depth. Old observations fade as new ones come, not as time passes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.draft import DraftBatch
from foresay.engine.isotonic import isotonic
from foresay.engine.load import along_paths, flat_parents
from foresay.errors import InputError

__all__ = ["Curve", "DepthShares", "ScoreCalibration"]

Float64s: TypeAlias = NDArray[np.float64]
Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


class Curve:
    """From a stated chance to the share of such guesses that come true.

    Chances fall into classes by their log odds. Each class keeps how many guesses came true beyond
    what was stated; `prior` guesses that kept their promise stand against it, and the last
    `memory` guesses of a class count.

    Mutates: only through `observe`. Valid until: for ever. Raises: nothing. GIL: held.
    """

    def __init__(self, *, prior: float = 8.0, memory: float = 128.0) -> None:
        odds = np.linspace(-6.0, 6.0, 17)
        step = odds[1] - odds[0]
        self._edges = _chance(odds)
        self._centres = _chance(np.append(odds - step / 2, odds[-1] + step / 2))
        self._prior = prior
        self._fade = 1.0 - 1.0 / memory
        self._seen = np.zeros(len(self._centres))
        self._beyond = np.zeros(len(self._centres))
        self._at = np.concatenate([[0.0], self._centres, [1.0]])
        self._curve = self._at

    def __call__(self, stated: Float64s) -> Float64s:
        """The estimates for `stated` chances, in the same order of size.

        Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
        """
        estimates: Float64s = np.interp(stated, self._at, self._curve)
        return estimates

    def observe(self, stated: Float64s, true: Bools) -> None:
        """Learn from guesses that were put to the test.

        Mutates: the curve. Valid until: it has faded. Raises: nothing. GIL: held.
        """
        if not len(stated):
            return
        kind = self._edges.searchsorted(stated)
        size = len(self._centres)
        count = np.bincount(kind, minlength=size)
        fade = self._fade**count
        self._seen = self._seen * fade + count
        self._beyond = self._beyond * fade + np.bincount(kind, true - stated, size)
        weights = self._seen + self._prior
        found = self._centres + self._beyond / weights
        rising = isotonic(found.tolist(), weights.tolist())
        curve = np.array([0.0, *rising, rising[-1]])
        self._curve = np.minimum(np.maximum(curve, 0.0), 1.0)


class ScoreCalibration:
    """From a drafter's scores to chances.

    What is calibrated is each node's chance once its parent is accepted: its score over its
    parent's. Only such nodes were put to the test on their own account; those below a wrong one
    all repeat the same news. The first token of a draft and the later ones have a curve each: where
    the first was right, the draft has found its place in a text, and more follows.

    Mutates: only through `observe`. Valid until: for ever. Raises: nothing. GIL: held.
    """

    def __init__(self) -> None:
        self._first = Curve()
        self._later = Curve()

    def __call__(self, drafts: DraftBatch) -> Float64s:
        """The chance of each node of `drafts`, less than its parent's.

        Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
        """
        parents = flat_parents(drafts)
        stated = _stated(drafts, parents)
        edges = np.where(drafts.parents < 0, self._first(stated), self._later(stated))
        # Bounded away from 1 by more than rounding, so that no child can overtake its parent.
        edges = np.minimum(np.maximum(edges, 1e-6), 1 - 1e-9)
        return np.exp(along_paths(drafts, parents, np.log(edges)))

    def observe(self, drafts: DraftBatch, accepted: Bools) -> None:
        """Learn from verified nodes.

        Mutates: the curves. Valid until: they have faded. Raises: nothing. GIL: held.
        """
        parents = flat_parents(drafts)
        stated = _stated(drafts, parents)
        first = drafts.parents < 0
        later = accepted[parents] & ~first
        self._first.observe(stated[first], accepted[first])
        self._later.observe(stated[later], accepted[later])


def _stated(drafts: DraftBatch, parents: Int64s) -> Float64s:
    """Each node's score over its parent's."""
    if drafts.scores is None:
        raise InputError("these drafts have no scores; a calibration of scores needs them")
    scores = drafts.scores.astype(np.float64)
    above = np.where(drafts.parents < 0, 1.0, scores[parents])
    stated: Float64s = scores / np.maximum(above, 1e-9)
    return stated


class DepthShares:
    """The share of nodes accepted at each depth, for drafts without scores.

    Mutates: only through `observe`. Valid until: for ever. Raises: nothing. GIL: held.
    """

    def __init__(self, *, prior: float = 8.0, memory: float = 256.0, deepest: int = 64) -> None:
        self._prior = prior
        self._fade = 1.0 - 1.0 / memory
        self._seen = np.zeros(deepest + 1)
        self._hits = np.zeros(deepest + 1)
        self._before = 0.6 * np.power(0.8, np.arange(deepest + 1) - 1.0)
        self._shares = self._before

    def __call__(self, depths: Int64s) -> Float64s:
        """The estimates for nodes at `depths`, which never rise with the depth.

        Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
        """
        estimates: Float64s = self._shares[np.minimum(depths, len(self._shares) - 1)]
        return estimates

    def observe(self, depths: Int64s, accepted: Bools) -> None:
        """Learn from verified nodes.

        Mutates: the shares. Valid until: they have faded. Raises: nothing. GIL: held.
        """
        size = len(self._seen)
        kind = np.minimum(depths, size - 1)
        count = np.bincount(kind, minlength=size)
        fade = self._fade**count
        self._seen = self._seen * fade + count
        self._hits = self._hits * fade + np.bincount(kind, accepted, size)
        shares = (self._hits + self._prior * self._before) / (self._seen + self._prior)
        self._shares = np.minimum.accumulate(shares)


def _chance(odds: Any) -> Float64s:
    chance: Float64s = 1.0 / (1.0 + np.exp(-odds))
    return chance
