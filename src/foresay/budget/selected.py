"""Which nodes of a proposal are verified: a mask over the drafts.

Whoever leaves nodes out clears their bits: the vocabulary, the policy, max_tokens, memory. A node
keeps its number from the proposal to the verdict. Two see packed nodes: the target (`numbered`
leads back from its rows), and the policy where some nodes may not come at all (`of_these` leads
back from what it chose).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.errors import InputError
from foresay.verdict import TopK, Verdict, VerdictBatch

__all__ = ["SelectedNodes"]

Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SelectedNodes:
    """The nodes of a proposal that are verified.

    proposal  the drafts, completed by the forms of answers, without their probs
    keep      bool[N]: which nodes; with a node its parent
    """

    proposal: DraftBatch
    keep: Bools

    @classmethod
    def nothing(cls, requests: int) -> SelectedNodes:
        """What a step without drafts verifies."""
        none, offsets = np.empty(0, np.int32), np.zeros(requests + 1, np.int32)
        return cls(DraftBatch._trusted(none, none, offsets), np.empty(0, bool))

    def only(self, keep: Bools) -> SelectedNodes:
        """Those of its nodes that this mask keeps too."""
        return SelectedNodes(self.proposal, self.keep & keep)

    def of_these(self, chosen: SelectedNodes) -> SelectedNodes:
        """Those of its nodes that were chosen among its packed `drafts`."""
        keep = np.zeros(len(self.keep), bool)
        keep[self.flat[chosen.keep]] = True
        return SelectedNodes(self.proposal, keep)

    @cached_property
    def flat(self) -> NDArray[np.int64]:
        """The kept nodes' places in the proposal, int64[N']."""
        return self.keep.nonzero()[0]

    @property
    def nodes(self) -> Int32s:
        """The kept nodes' numbers, each in its own draft, int32[N']."""
        return self._packed[1]

    @property
    def drafts(self) -> DraftBatch:
        """What the target computes: the kept nodes packed, in the old order.

        Raises: InputError for a node that is kept without its parent.
        """
        return self._packed[0]

    @cached_property
    def _packed(self) -> tuple[DraftBatch, Int32s]:
        given = self.proposal
        if not len(given.tokens):
            return given, given.tokens
        tokens, parents, offsets, scores, nodes = _core.packed(
            given.tokens, given.parents, given.offsets, given.scores, self.keep
        )
        if len(tokens) == len(given.tokens):
            return given, nodes
        kept = None if given.scores is None else scores
        probs = None if given.probs is None else given.probs[self.flat]
        return DraftBatch._trusted(tokens, parents, offsets, kept, probs), nodes

    def numbered(self, verdicts: Sequence[Verdict]) -> VerdictBatch:
        """Verdicts on the packed `drafts` as verdicts on the proposal, which all others know.

        The rows of `topk` move to the nodes' places; nodes that were not verified have none.

        Raises: InputError for a number of verdicts, or of rows of topk, that does not fit the
        drafts.
        """
        batch = VerdictBatch.of(verdicts)
        if len(batch) != len(self.drafts):
            raise InputError(
                f"there are {len(batch)} verdicts but {len(self.drafts)} drafts; expected one each"
            )
        if self.drafts is self.proposal:
            return batch
        path = _core.numbered(batch.path, batch.path_offsets, self.drafts.offsets, self.nodes)
        topk, rows = batch.topk, batch.topk_offsets
        if topk is not None and rows is not None:
            topk, rows = self._numbered_rows(topk, rows)
        return VerdictBatch._trusted(
            batch.tokens, batch.offsets, path, batch.path_offsets, topk, rows, batch.hidden
        )

    def _numbered_rows(self, topk: TopK, rows: Int32s) -> tuple[TopK, Int32s]:
        offsets = self.proposal.offsets
        one_each = np.arange(len(offsets), dtype=np.int32)  # a row for the text before the draft
        if not np.array_equal(rows, self.drafts.offsets + one_each):
            raise InputError(
                f"topk has {len(topk)} rows for {len(self.flat)} nodes of {len(self.drafts)} "
                "drafts; expected one row more than nodes for each draft"
            )
        whole = offsets + one_each
        verified = np.zeros(int(whole[-1]), bool)
        verified[whole[:-1]] = True
        verified[self.flat + one_each[1:].repeat(sizes_of(self.drafts.offsets))] = True
        source = np.where(verified, verified.cumsum() - 1, -1)
        return topk.take(source), whole
