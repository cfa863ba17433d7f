"""What a drafter's scores are worth, learned from which nodes were accepted.

A drafter whose scores are too high would make a step slower than no draft. So scores are corrected
by which earlier nodes were accepted, beginning with no correction. Drafters without scores are
judged by depth. A text of which nothing repeats may follow one that was copied: what its own drafts
were worth is counted apart. Old observations fade as new ones come, not as time passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import offsets_of, sizes_of
from foresay.budget.load import Tenants, depths_of, parents_of
from foresay.draft import DraftBatch
from foresay.drafter import ByTenant

__all__ = ["DepthCalibration", "RequestCalibration", "ScoreCalibration", "TenantCalibrations"]

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
        assert drafts.scores is not None
        return _core.calibrated(
            drafts.tokens, drafts.parents, drafts.offsets, drafts.scores, self._edges, self._gap
        )

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
        """Each node's score over its parent's, and the class of that; as `calibrated` of
        csrc/budget/ranking.cpp has it."""
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


class TenantCalibrations:
    """A calibration for each tenant: what one's drafts were worth changes nothing for another.

    make  a new calibration
    """

    def __init__(self, make: Callable[[], ScoreCalibration | DepthCalibration]) -> None:
        self._of = ByTenant(make)

    def __call__(self, drafts: DraftBatch, tenants: Tenants) -> Float64s:
        """The chance of each node of `drafts`, by the calibration of its request's tenant."""
        whose = _each_of(tenants)
        if len(whose) == 1:
            return self._of[whose[0]](drafts)
        chances = np.empty(len(drafts.tokens))
        for tenant, nodes, own in _by_tenant(drafts, tenants):
            chances[nodes] = self._of[tenant](own)
        return chances

    def observe(self, drafts: DraftBatch, tenants: Tenants, accepted: Bools) -> None:
        """Learn from verified nodes."""
        whose = _each_of(tenants)
        if len(whose) == 1:
            self._of[whose[0]].observe(drafts, accepted)
            return
        for tenant, nodes, own in _by_tenant(drafts, tenants):
            self._of[tenant].observe(own, accepted[nodes])


class RequestCalibration:
    """How much less the drafts of a request were worth than was expected of them.

    Each request keeps how often the first token of its drafts was expected to be accepted and how
    often it was, against `prior` drafts that were as good as expected; about the last `memory`
    drafts count. The last `remembered` requests are told apart by `Load.ids`.
    """

    def __init__(self, *, prior: float = 2.0, memory: float = 20.0, remembered: int = 4096) -> None:
        self._prior = prior
        self._fade = 1.0 - 1.0 / memory
        self._remembered = remembered
        self._of: dict[int, tuple[float, float]] = {}  # expected and accepted; oldest first

    def __call__(self, ids: Int64s) -> Float64s:
        """What to multiply the chances of each request's nodes by: at most 1."""
        of, prior = self._of, self._prior
        factors = []
        for request in ids.tolist():
            expected, accepted = of.get(request, (0.0, 0.0))
            factors.append(min(1.0, (accepted + prior) / (expected + prior)))
        return np.array(factors)

    def observe(self, ids: Int64s, drafts: DraftBatch, chances: Float64s, accepted: Bools) -> None:
        """Learn from verified nodes, which had these chances."""
        roots = np.flatnonzero(drafts.parents < 0)
        owner = np.arange(len(drafts)).repeat(sizes_of(drafts.offsets))[roots]
        expected = np.bincount(owner, chances[roots], len(drafts)).tolist()
        found = np.bincount(owner, accepted[roots], len(drafts)).tolist()
        of, fade = self._of, self._fade
        for at in np.unique(owner).tolist():
            request = int(ids[at])
            before = of.pop(request, (0.0, 0.0))
            of[request] = before[0] * fade + min(1.0, expected[at]), before[1] * fade + found[at]
        while len(of) > self._remembered:
            del of[next(iter(of))]


def _each_of(tenants: Tenants) -> list[str | None]:
    """Each tenant once; None for requests that have none, or of whom it is not said."""
    return [None] if tenants is None else list(dict.fromkeys(tenants))


def _by_tenant(
    drafts: DraftBatch, tenants: Tenants
) -> Iterator[tuple[str | None, Int64s, DraftBatch]]:
    """Each tenant that has nodes, which nodes those are, and the drafts of its requests. The nodes
    are sorted by tenant once, so that a step of many tenants costs little more than one of few."""
    assert tenants is not None
    whose = _each_of(tenants)
    number = {tenant: at for at, tenant in enumerate(whose)}
    owner = np.array([number[tenant] for tenant in tenants])
    sizes = np.asarray(sizes_of(drafts.offsets))
    requests = np.argsort(owner, kind="stable")
    nodes = np.argsort(np.repeat(owner, sizes), kind="stable")
    tokens, parents = drafts.tokens[nodes], drafts.parents[nodes]
    scores = None if drafts.scores is None else drafts.scores[nodes]
    ends = np.searchsorted(owner[requests], np.arange(len(whose)), side="right")
    first_request = first_node = 0
    for tenant, end in zip(whose, ends.tolist(), strict=True):
        own_sizes = sizes[requests[first_request:end]]
        last_node = first_node + int(own_sizes.sum())
        if last_node > first_node:
            part = slice(first_node, last_node)
            own = DraftBatch._trusted(
                tokens[part],
                parents[part],
                offsets_of(own_sizes.tolist()),
                None if scores is None else scores[part],
            )
            yield tenant, nodes[part], own
        first_request, first_node = end, last_node


def _tested(parents: Int64s, accepted: Bools) -> Bools:
    """Whether each node's parent was accepted, so that the node itself was tested."""
    known = np.ones(len(parents), bool)
    known[:-1] = accepted
    return known[parents[:-1]]
