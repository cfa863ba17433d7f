"""What a drafter's stated chances are worth, learned from which nodes were accepted.

The model. What is estimated is

    P(node accepted | parent accepted, class of its stated chance, first of its draft or later)

for each tenant apart: what one's drafts were worth changes nothing for another. A node's stated
chance is its score over its parent's. Only nodes whose parent was accepted were tested; those below
a rejected one teach nothing new. The first token and the later ones are told apart because where
the first is accepted, the draft has found its place in a text, and more follows.

Each class keeps the gap between how many of its last nodes were accepted and how many were stated
to be, against some nodes without a gap: so it begins with no correction, and old observations fade
as new ones come, not as time passes. A drafter without scores is taken to state the same chance for
every token. The chance of a node is the product of the calibrated ones along its path.

On top of that each request has a factor: a text of which nothing repeats may follow one that was
copied. It is how often the first token of its last drafts was accepted over how often that was
expected, against some drafts that were as good as expected; at most 1.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import Floats, Int32s, sizes_of
from foresay.budget.load import Tenants
from foresay.draft import DraftBatch
from foresay.drafter import ByTenant

__all__ = ["Calibration"]

Float64s: TypeAlias = NDArray[np.float64]
Int64s: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

_PRIOR = 4.0  # nodes without a gap: fewer, and one unlucky draft would end all drafting
_MEMORY = 128.0  # nodes of a class that count: some ten drafts, the length of a paragraph
_PRIOR_DRAFTS = 2.0  # drafts of a request as good as expected: an answer shows itself in a few
_MEMORY_DRAFTS = 20.0  # drafts of a request that count
_UNSCORED = 0.7  # chance of a node without a score: what prompt lookup reaches on copied text
_REMEMBERED = 4096  # requests whose factor is kept
_EDGES = 1 / (1 + np.exp(-np.linspace(-6.0, 6.0, 17)))  # of the classes: alike in log odds
_CLASSES = 2 * (len(_EDGES) + 1)  # of first and later tokens


class _Table:
    """What one tenant's nodes taught, by class."""

    __slots__ = ("beyond", "gap", "seen")

    def __init__(self) -> None:
        self.seen = np.zeros(_CLASSES)
        self.beyond = np.zeros(_CLASSES)  # accepted nodes more than were stated
        self.gap = np.zeros(_CLASSES)


class Calibration:
    """From what drafters state to chances; see above. The tenants and requests that were seen least
    recently are forgotten."""

    def __init__(self) -> None:
        self._tables = ByTenant(_Table)
        self._of: dict[int, tuple[float, float]] = {}  # expected and accepted; oldest first

    def __call__(self, drafts: DraftBatch, tenants: Tenants = None) -> Float64s:
        """The chance of each node of `drafts`; never more than its parent's."""
        names, rows = _rows(len(drafts), tenants)
        gaps = [self._tables[name].gap for name in names]
        if len(gaps) == 1:
            of = drafts.tokens, drafts.parents, drafts.offsets, _scores(drafts)
            return _core.calibrated(*of, _EDGES, gaps[0])
        parents = drafts.flat_parents
        stated, kinds = _classed(drafts, parents)
        gap = np.stack(gaps)[rows.repeat(sizes_of(drafts.offsets)), kinds]
        own = np.append(np.clip(stated + gap, 1e-6, 1 - 1e-9), 1.0)  # as in `calibrated`
        return drafts.along_paths(own, np.multiply, parents)[:-1]

    def factors(self, ids: Int64s) -> Float64s:
        """What to multiply the chances of each request's nodes by: at most 1."""
        found = []
        for request in ids.tolist():
            expected, accepted = self._of.get(request, (0.0, 0.0))
            found.append(min(1.0, (accepted + _PRIOR_DRAFTS) / (expected + _PRIOR_DRAFTS)))
        return np.array(found)

    def observe(
        self,
        drafts: DraftBatch,
        accepted: Bools,
        tenants: Tenants = None,
        ids: Int64s | None = None,
    ) -> None:
        """Learn from verified nodes.

        ids  a number for each request, None: requests are not told apart
        """
        if ids is not None:
            self._observe_requests(ids, drafts, self(drafts, tenants), accepted)
        parents = drafts.flat_parents
        stated, kinds = _classed(drafts, parents)
        names, rows = _rows(len(drafts), tenants)
        if len(names) > 1:
            kinds += _CLASSES * rows.repeat(sizes_of(drafts.offsets))
        tested = np.append(accepted, True)[parents[:-1]]
        kinds, gains = kinds[tested], accepted[tested] - stated[tested]
        size = len(names) * _CLASSES
        counts = np.bincount(kinds, minlength=size).reshape(-1, _CLASSES)
        beyond = np.bincount(kinds, gains, size).reshape(-1, _CLASSES)
        fades = (1 - 1 / _MEMORY) ** counts
        for name, fade, count, more in zip(names, fades, counts, beyond, strict=True):
            table = self._tables[name]
            table.seen = table.seen * fade + count
            table.beyond = table.beyond * fade + more
            table.gap = table.beyond / (table.seen + _PRIOR)

    def _observe_requests(
        self, ids: Int64s, drafts: DraftBatch, chances: Float64s, accepted: Bools
    ) -> None:
        roots = np.flatnonzero(drafts.parents < 0)
        owner = np.arange(len(drafts)).repeat(sizes_of(drafts.offsets))[roots]
        expected = np.bincount(owner, chances[roots], len(drafts)).tolist()
        found = np.bincount(owner, accepted[roots], len(drafts)).tolist()
        of, fade = self._of, 1 - 1 / _MEMORY_DRAFTS
        for at in np.unique(owner).tolist():
            request = int(ids[at])
            before = of.pop(request, (0.0, 0.0))
            of[request] = before[0] * fade + min(1.0, expected[at]), before[1] * fade + found[at]
        while len(of) > _REMEMBERED:
            del of[next(iter(of))]


def _scores(drafts: DraftBatch) -> Floats:
    """What is stated of each node.

    Sampled tokens are judged like those without scores: dropping one for what it is would change
    the distribution of committed tokens under the rule `rejection`.
    """
    if drafts.scores is not None and drafts.probs is None:
        return drafts.scores
    return (_UNSCORED**drafts.depths).astype(np.float32)


def _classed(drafts: DraftBatch, parents: Int64s) -> tuple[Float64s, Int64s]:
    """Each node's stated chance given its parent, and the class of that; as `calibrated` of
    csrc/budget/ranking.cpp has it."""
    scores = np.append(_scores(drafts).astype(np.float64), 1.0)
    stated: Float64s = scores[:-1] / np.maximum(scores[parents[:-1]], 1e-9)
    kinds = _EDGES.searchsorted(stated)
    kinds += (_CLASSES // 2) * (parents[:-1] >= 0)
    return stated, kinds


def _rows(requests: int, tenants: Tenants) -> tuple[list[str | None], Int32s]:
    """Each tenant once, and which one each request is of; None for requests that have none, or of
    whom it is not said."""
    if tenants is None:
        return [None], np.zeros(requests, np.int32)
    row = {tenant: at for at, tenant in enumerate(dict.fromkeys(tenants))}
    return list(row), np.array([row[tenant] for tenant in tenants], np.int32)
