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
from foresay.arrays import Floats, Int32s
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


class Calibration:
    """From what drafters state to chances; see above. The tenants and requests that were seen least
    recently are forgotten. The arithmetic is the core's: csrc/budget/worth.hpp."""

    def __init__(self) -> None:
        self._tables = ByTenant(lambda: _core.ClassTable(_EDGES, _PRIOR, _MEMORY))
        self._factors = _core.RequestFactors(_PRIOR_DRAFTS, _MEMORY_DRAFTS, _REMEMBERED)

    def __call__(self, drafts: DraftBatch, tenants: Tenants = None) -> Float64s:
        """The chance of each node of `drafts`; never more than its parent's."""
        tables, rows = self._tables_of(len(drafts), tenants)
        of = drafts.tokens, drafts.parents, drafts.offsets, _scores(drafts)
        return _core.calibrated(*of, tables, rows)

    def factors(self, ids: Int64s) -> Float64s:
        """What to multiply the chances of each request's nodes by: at most 1."""
        return self._factors.of(ids)

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
        tables, rows = self._tables_of(len(drafts), tenants)
        of = drafts.tokens, drafts.parents, drafts.offsets, _scores(drafts)
        factors = None if ids is None else self._factors
        _core.learn(*of, accepted, tables, rows, factors, ids)

    def _tables_of(self, requests: int, tenants: Tenants) -> tuple[list[_core.ClassTable], Int32s]:
        """Each tenant's table once, and which one each request's is; None is the tenant of requests
        that have none, or of whom it is not said."""
        if tenants is None or tenants.count(None) == len(tenants):
            return [self._tables[None]], np.zeros(requests, np.int32)
        row = {tenant: at for at, tenant in enumerate(dict.fromkeys(tenants))}
        tables = [self._tables[tenant] for tenant in row]
        return tables, np.array([row[tenant] for tenant in tenants], np.int32)


def _scores(drafts: DraftBatch) -> Floats:
    """What is stated of each node.

    Sampled tokens are judged like those without scores: dropping one for what it is would change
    the distribution of committed tokens under the rule `rejection`.
    """
    if drafts.scores is not None and drafts.probs is None:
        return drafts.scores
    return (_UNSCORED**drafts.depths).astype(np.float32)
