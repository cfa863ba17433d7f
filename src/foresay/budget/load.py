"""The values between an engine and its policy: a step's load, the nodes chosen, its outcome.

Nothing here mutates its arguments; values are treated as immutable once made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.errors import InputError
from foresay.verdict import TopK, Verdict, VerdictBatch

__all__ = [
    "Chosen",
    "Load",
    "StepFacts",
    "Tenants",
    "along_paths",
    "choose_nodes",
    "depths_of",
    "longest",
    "parents_of",
    "within_max_tokens",
]

Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Tenants: TypeAlias = "Sequence[str | None] | None"


@dataclass(frozen=True, eq=False)
class Load:
    """What a step has to do before anything is drafted.

    contexts     int64[B]  tokens of each decoding request, the last committed one included
    tokens_left  int64[B]  how many tokens each answer may still get, at least 1
    other_rows   rows of the step that do not decode (prefill)
    other_reads  the tokens that those rows attend to, summed over the rows
    ids          int64[B] | None   a number for each request that no other request ever gets; only
                 policies with a state per request look at it; without it they have none, or one
                 for all
    weights      float64[B] | None   how likely each request is to end last, 0 to 1, if the caller
                 waits for all; a policy makes of it what a token is worth; without them all count
                 alike
    tenants      [B] | None   whose request each is: what one tenant's drafts were worth must not
                 change what another's are taken to be; without it all are of one
    """

    contexts: Int64s
    tokens_left: Int64s
    other_rows: int = 0
    other_reads: int = 0
    ids: Int64s | None = None
    weights: Float64s | None = None
    tenants: Tenants = None

    def __len__(self) -> int:
        return len(self.contexts)

    @cached_property
    def worth(self) -> float:
        """What one token for each request is worth."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())

    def worth_of(self, drafts: DraftBatch) -> Float64s:
        """What each node of these drafts is worth once it is accepted, float64[N]."""
        if self.weights is None:
            return np.ones(len(drafts.tokens))
        return self.weights.repeat(sizes_of(drafts.offsets))

    @cached_property
    def keys(self) -> int:
        """The tokens of all decoding requests together."""
        return int(self.contexts.sum())

    @cached_property
    def fewest_left(self) -> int:
        """The smallest of `tokens_left`; without requests, a large number."""
        return int(self.tokens_left.min()) if len(self.tokens_left) else 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The nodes of a proposal that are verified, and their numbers in the drafter's own drafts.

    drafts  what is verified: in every draft with a node its parent, in the old order
    nodes   int32[N']  the number that each verified node has in its own draft of the proposal
    whole   int32[B + 1]  the offsets of the proposal
    """

    drafts: DraftBatch
    nodes: Int32s
    whole: Int32s

    @classmethod
    def nothing(cls, requests: int) -> Chosen:
        """What a step without drafts verifies."""
        none, offsets = np.empty(0, np.int32), np.zeros(requests + 1, np.int32)
        return cls(DraftBatch._trusted(none, none, offsets), none, offsets)

    def only(self, requests: Bools | Sequence[bool]) -> Chosen:
        """The nodes of these requests alone; the others verify none."""
        nodes = np.flatnonzero(np.repeat(requests, sizes_of(self.drafts.offsets)))
        return Chosen(choose_nodes(self.drafts, nodes).drafts, self.nodes[nodes], self.whole)

    def original_paths(self, verdicts: Sequence[Verdict]) -> VerdictBatch:
        """Verdicts on `drafts` as verdicts on the proposal: what the drafter is to observe.

        The rows of `topk` move to the nodes' old places; nodes that were not verified have none.

        Raises: InputError for a number of verdicts, or of rows of topk, that does not fit the
        drafts.
        """
        batch = VerdictBatch.of(verdicts)
        if len(batch) != len(self.drafts):
            raise InputError(
                f"there are {len(batch)} verdicts but {len(self.drafts)} drafts; expected one each"
            )
        if self.whole is self.drafts.offsets:
            return batch  # nothing was dropped
        path = self.nodes[_flat_path(self.drafts, batch)]
        topk, rows = batch.topk, batch.topk_offsets
        if topk is not None and rows is not None:
            topk, rows = self._original_rows(topk, rows)
        return VerdictBatch._trusted(
            batch.tokens, batch.offsets, path, batch.path_offsets, topk, rows, batch.hidden
        )

    def _original_rows(self, topk: TopK, rows: Int32s) -> tuple[TopK, Int32s]:
        one_each = np.arange(len(self.whole), dtype=np.int32)  # a row for the text before the draft
        if not np.array_equal(rows, self.drafts.offsets + one_each):
            raise InputError(
                f"topk has {len(topk)} rows for {len(self.nodes)} nodes of {len(self.drafts)} "
                "drafts; expected one row more than nodes for each draft"
            )
        whole = self.whole + one_each
        source = np.full(int(whole[-1]), -1, np.int64)
        source[whole[:-1]] = rows[:-1]
        counts = sizes_of(self.drafts.offsets)
        first = np.repeat(rows[:-1] - self.drafts.offsets[:-1], counts)
        places = np.repeat(whole[:-1] + 1, counts) + self.nodes
        source[places] = first + np.arange(1, len(self.nodes) + 1)
        return topk.take(source), whole


@dataclass(frozen=True, slots=True, eq=False)
class StepFacts:
    """The outcome of a step.

    load           what it had to do
    chosen         the nodes that were verified
    accepted       bool[N'], by verified node
    committed      tokens that all decoding requests got
    seconds        the forward pass and the verification
    draft_seconds  all that would not have been done without drafts: budgets, propose, choose
    """

    load: Load
    chosen: Chosen
    accepted: Bools
    committed: int
    seconds: float
    draft_seconds: float = 0.0

    @classmethod
    def of(
        cls,
        load: Load,
        chosen: Chosen,
        verdicts: Sequence[Verdict],
        seconds: float,
        draft_seconds: float = 0.0,
    ) -> StepFacts:
        """The facts from the verdicts on `chosen.drafts`, in their own numbering."""
        batch = VerdictBatch.of(verdicts)
        accepted = np.zeros(len(chosen.nodes), bool)
        accepted[_flat_path(chosen.drafts, batch)] = True
        return cls(load, chosen, accepted, len(batch.tokens), seconds, draft_seconds)


def choose_nodes(drafts: DraftBatch, nodes: Int64s | None) -> Chosen:
    """The rising flat indices `nodes` of `drafts`, or all of them; with a node, its parent too."""
    offsets = drafts.offsets
    if nodes is None or len(nodes) == len(drafts.tokens):
        if len(drafts) == 1:
            return Chosen(drafts, np.arange(len(drafts.tokens), dtype=np.int32), offsets)
        starts = offsets[:-1].repeat(sizes_of(offsets))
        return Chosen(drafts, np.arange(len(starts), dtype=np.int32) - starts, offsets)
    if not len(nodes):
        chosen = Chosen.nothing(len(drafts))
        return Chosen(chosen.drafts, chosen.nodes, offsets)
    bounds = nodes.searchsorted(offsets).astype(np.int32)
    counts = bounds[1:] - bounds[:-1]
    old_starts, new_starts = offsets[:-1].repeat(counts), bounds[:-1].repeat(counts)
    place = np.empty(len(drafts.tokens), np.int32)
    place[nodes] = np.arange(len(nodes), dtype=np.int32)
    parents = drafts.parents[nodes]
    # A root's -1 reads some other node's place here; np.where then drops what was read.
    parents = np.where(parents < 0, parents, place[old_starts + parents] - new_starts)
    chosen_drafts = DraftBatch._trusted(
        drafts.tokens[nodes],
        parents,
        bounds,
        None if drafts.scores is None else drafts.scores[nodes],
        None if drafts.probs is None else drafts.probs[nodes],
    )
    return Chosen(chosen_drafts, nodes.astype(np.int32) - old_starts, offsets)


def within_max_tokens(drafts: DraftBatch, load: Load) -> Int64s | None:
    """The flat indices of the nodes that can still be committed; None if that is all of them.

    The target's own token takes the last place of an answer, so with r tokens left nodes are of
    use down to depth r - 1.

    Raises: InputError for a number of drafts that does not fit the load.
    """
    if len(drafts) != len(load):
        raise InputError(
            f"there are {len(drafts)} drafts for {len(load)} requests; expected one each"
        )
    if not len(drafts) or longest(drafts) < load.fewest_left:
        return None  # no path is longer than its draft has nodes
    counts = sizes_of(drafts.offsets)
    return np.flatnonzero(depths_of(drafts) < load.tokens_left.repeat(counts))


def longest(drafts: DraftBatch) -> int:
    """The nodes of the largest draft, of one draft or more."""
    if len(drafts) == 1:
        return len(drafts.tokens)
    return int(sizes_of(drafts.offsets).max())


def depths_of(drafts: DraftBatch) -> Int64s:
    """How deep each node hangs, int64[N]; a child of the last committed token has depth 1."""
    one = np.ones(len(drafts.tokens) + 1, np.int64)
    one[-1] = 0
    return along_paths(drafts, parents_of(drafts), one, np.add)[:-1]


def parents_of(drafts: DraftBatch) -> Int64s:
    """The flat index of each node's parent, int64[N + 1]; -1 for a root, and in the last place.

    So an array [N + 1] indexed by it has in its last place what stands above all roots.
    """
    offsets, n = drafts.offsets, len(drafts.tokens)
    parents = np.empty(n + 1, np.int64)
    parents[:n] = drafts.parents
    parents[n] = -1
    if len(drafts) > 1:
        parents[:n] += offsets[:-1].repeat(sizes_of(offsets))
        parents[:n][drafts.parents < 0] = -1
    return parents


def along_paths(drafts: DraftBatch, parents: Int64s, values: Int64s, combine: np.ufunc) -> Int64s:
    """`values` combined over each node and its ancestors, [N + 1].

    `parents` comes from `parents_of`; the last of the `values` stands above all roots and must
    change nothing it is combined with.
    """
    # Every node looks at its ancestor twice as far up in each round.
    rounds = (longest(drafts) - 1).bit_length() if len(drafts) else 0
    for left in range(rounds, 0, -1):
        values = combine(values, values[parents])
        if left > 1:
            parents = parents[parents]
    return values


def _flat_path(drafts: DraftBatch, verdicts: VerdictBatch) -> Int32s:
    bounds = verdicts.path_offsets
    flat: Int32s = verdicts.path + np.repeat(drafts.offsets[:-1], bounds[1:] - bounds[:-1])
    return flat
