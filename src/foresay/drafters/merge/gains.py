"""What drafts are expected to gain, and which nodes of a union gained something, by drafter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foresay.arrays import Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.drafters.merge.merged import Union
from foresay.drafters.merge.paying import ALL, part_of

__all__ = ["alone", "by_part", "deepest", "expected", "gains"]


def alone(union: Union, k: int, path: Int32s, least: float) -> tuple[int, int]:
    """Of the nodes that only drafter k has: how many are on the path, and how many are worth
    verifying."""
    others = np.zeros(union.size, bool)
    for other, home in enumerate(union.homes):
        if other != k:
            others[home[home >= 0]] = True
    home = union.homes[k]
    own = np.unique(home[home >= 0])
    own = own[~others[own]]
    return int(np.isin(path, own).sum()), int((union.scores[own] >= least).sum())


def expected(drafts: DraftBatch, least: float) -> list[float]:
    """The tokens that nodes worth verifying are expected to make for each request."""
    if drafts.scores is None:
        return [0.0] * len(drafts)
    if len(drafts) == 1:
        return [float(drafts.scores[drafts.scores >= least].sum())]
    worth = np.where(drafts.scores >= least, drafts.scores, 0.0)
    sums = np.append(0.0, worth.cumsum())
    found: list[float] = (sums[drafts.offsets[1:]] - sums[drafts.offsets[:-1]]).tolist()
    return found


def gains(
    union: Union, path: Int32s, least: float
) -> list[tuple[int, int, int, tuple[list[int], list[int]]]]:
    """For each slow drafter: itself, its group and level, and the places in its own draft of nodes
    that nobody who was asked before has: those on the path, and those that are worth verifying.
    """
    found = []
    had = np.zeros(union.size, bool)
    for k, group, level in union.notes:
        home = union.homes[k]
        kept = home >= 0
        if level >= 0:
            new = kept.copy()
            new[kept] = ~had[home[kept]]
            places = np.flatnonzero(new)
            nodes = home[places]
            on_path = places[np.isin(nodes, path)].tolist()
            verified = places[union.scores[nodes] >= least].tolist()
            found.append((k, group, level, (on_path, verified)))
        had[home[kept]] = True
    return found


def by_part(places: Sequence[int]) -> list[int]:
    counts = [0] * (ALL + 1)
    for place in places:
        counts[part_of(place)] += 1
    return counts


def deepest(batch: DraftBatch) -> int:
    """The levels of the deepest draft."""
    depths: list[int] = []
    starts = np.repeat(batch.offsets[:-1], sizes_of(batch.offsets)).tolist()
    for parent, start in zip(batch.parents.tolist(), starts, strict=True):
        depths.append(1 + (depths[start + parent] if parent >= 0 else 0))
    return max(depths, default=0)
