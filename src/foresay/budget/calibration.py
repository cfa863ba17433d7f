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
_NEW = (0.0, 0.0, 1.0)  # of a request without drafts
_FADES = 1 - 1 / _MEMORY
_FADES_DRAFTS = 1 - 1 / _MEMORY_DRAFTS
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
        # Of the first tokens of a request's drafts: how many were expected and accepted, and the
        # factor that comes of it; oldest first.
        self._of: dict[int, tuple[float, float, float]] = {}

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
        of = self._of
        return np.array([of.get(request, _NEW)[2] for request in ids.tolist()])

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
        names, rows = _rows(len(drafts), tenants)
        gaps = np.concatenate([self._tables[name].gap for name in names])
        given = drafts.tokens, drafts.parents, drafts.offsets, _scores(drafts)
        counts, beyond, *of_roots = _core.lessons(*given, _EDGES, gaps, accepted, rows)
        fades = _FADES**counts
        for at, name in enumerate(names):
            own = slice(at * _CLASSES, (at + 1) * _CLASSES)
            table = self._tables[name]
            table.seen = table.seen * fades[own] + counts[own]
            table.beyond = table.beyond * fades[own] + beyond[own]
            table.gap = table.beyond / (table.seen + _PRIOR)
        if ids is not None:
            self._observe_requests(ids.tolist(), *(each.tolist() for each in of_roots))

    def _observe_requests(
        self, ids: list[int], roots: list[int], expected: list[float], accepted: list[int]
    ) -> None:
        """Learn from each request's first tokens, of which so many were expected and accepted."""
        of = self._of
        for request, nodes, chance, found in zip(ids, roots, expected, accepted, strict=True):
            if not nodes:
                continue
            before = of.pop(request, _NEW)
            wanted = before[0] * _FADES_DRAFTS + min(1.0, chance)
            won = before[1] * _FADES_DRAFTS + found
            factor = min(1.0, (won + _PRIOR_DRAFTS) / (wanted + _PRIOR_DRAFTS))
            of[request] = wanted, won, factor
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
    if tenants is None or tenants.count(None) == len(tenants):
        return [None], np.zeros(requests, np.int32)
    row = {tenant: at for at, tenant in enumerate(dict.fromkeys(tenants))}
    return list(row), np.array([row[tenant] for tenant in tenants], np.int32)
