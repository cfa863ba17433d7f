"""The drafts of a step, and which nodes are verified where draft tokens were sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import Floats, Int32s, sizes_of
from foresay.budget.load import Load, within_max_tokens
from foresay.budget.policy import Policy
from foresay.budget.selected import SelectedNodes
from foresay.draft import DraftBatch
from foresay.engine.request import Request
from foresay.errors import InputError
from foresay.verdict import TopK, VerdictBatch

__all__ = ["Completion", "Proposal", "check_probs", "choice", "that_fits", "with_all_sampled"]


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """How the forms of answers have changed the drafter's own drafts.

    given    int32[B + 1], the offsets of the drafter's own drafts
    offsets  int32[B + 1], those of the completed ones
    own      int32[N], the number of each node in the drafter's draft; -1: a form has added it
    forced   bool[N], whether it is the only token that the form allows there
    """

    given: Int32s
    offsets: Int32s
    own: Int32s
    forced: NDArray[np.bool_]

    def numbered(self, verdicts: VerdictBatch) -> tuple[VerdictBatch, VerdictBatch]:
        """Verdicts on the completed drafts in the drafter's own numbers: with -1 for each node that
        a form has added, and with paths that end before the first of these."""
        bounds, topk, rows = verdicts.path_offsets, verdicts.topk, verdicts.topk_offsets
        sizes = sizes_of(bounds)
        path = self.own[verdicts.path + self.offsets[:-1].repeat(sizes)]
        added = np.append(0, (path < 0).cumsum())
        within = added[1:] == added[bounds[:-1]].repeat(sizes)
        own_bounds = np.append(0, within.cumsum()).astype(np.int32)[bounds]
        if topk is not None:
            topk, rows = self._own_rows(topk)
        seen = topk, rows, verdicts.hidden
        whole = VerdictBatch._trusted(verdicts.tokens, verdicts.offsets, path, bounds, *seen)
        own = verdicts.tokens, verdicts.offsets, path[within], own_bounds
        return whole, VerdictBatch._trusted(*own, *seen)

    def _own_rows(self, topk: TopK) -> tuple[TopK, Int32s]:
        """The rows of the texts and of the drafter's nodes; those of nodes that are not there any
        more were not verified."""
        texts = np.arange(len(self.given), dtype=np.int32)  # each text has a row before its nodes
        rows, source = self.given + texts, np.full(self.given[-1] + texts[-1], -1)
        source[rows[:-1]] = self.offsets[:-1] + texts[:-1]
        kept = np.flatnonzero(self.own >= 0)
        text = texts[:-1].repeat(sizes_of(self.offsets))[kept]
        source[rows[text] + 1 + self.own[kept]] = kept + text + 1
        return topk.take(source), rows


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The drafts of a step's requests.

    drafts  without their probs: policies look at tokens, parents and scores
    probs   by the number of the draft, the distributions that its tokens were sampled from,
            float32[n, vocabulary]: only under rule rejection. Other drafts were not sampled
    known   which nodes are in the target's vocabulary, with all above them; None: all
    completion  how forms have changed the drafts; None: not at all
    """

    drafts: DraftBatch
    probs: Mapping[int, Floats] = field(default_factory=dict)
    known: NDArray[np.bool_] | None = None
    completion: Completion | None = None

    def probs_of(self, chosen: SelectedNodes) -> dict[int, Floats]:
        """The distributions of the nodes that are verified: copies."""
        bounds = self.drafts.offsets
        return {
            at: probs[chosen.keep[bounds[at] : bounds[at + 1]]] for at, probs in self.probs.items()
        }


def choice(proposal: Proposal, policy: Policy, load: Load) -> SelectedNodes:
    """The nodes that are to be verified, if there is memory for them: of those in the vocabulary,
    the ones that the policy chooses."""
    if proposal.known is None:
        chosen = policy.choose(proposal.drafts, load)
    else:
        possible = SelectedNodes(proposal.drafts, proposal.known)
        chosen = possible.of_these(policy.choose(possible.drafts, load))
    return with_all_sampled(chosen, proposal, load)


def with_all_sampled(chosen: SelectedNodes, proposal: Proposal, load: Load) -> SelectedNodes:
    """The nodes that a policy chose; of sampled drafts, every node within max_tokens.

    A row of `Draft.probs` is the distribution of a token given its parent and earlier siblings, and
    nothing else. If sampled tokens are dropped because of what they are (their score), the others
    do not follow that distribution any more. The same holds for the shape of the tree, since a
    drafter may go on or stop because of what it sampled. Only cuts that were fixed before sampling
    are exact: the budget, which the drafter was told, and the depth that max_tokens allows. Tokens
    that were not sampled may be dropped for any reason: each is tried against what is left of the
    target's own distribution.
    """
    if not proposal.probs:
        return chosen
    drafts, keep = proposal.drafts, chosen.keep.copy()
    within = within_max_tokens(drafts, load)
    for at in proposal.probs:
        own = slice(drafts.offsets[at], drafts.offsets[at + 1])
        keep[own] = within[own]
    return SelectedNodes(drafts, keep)


def that_fits(
    requests: Sequence[Request],
    chosen: SelectedNodes,
    reserve: Callable[[Sequence[Request], Sequence[int]], list[bool]],
) -> SelectedNodes:
    """The drafts for which there is memory: `reserve` holds it for so many nodes of each request,
    and says for which it could."""
    drafts = chosen.drafts
    if not len(drafts.tokens):
        return chosen
    fits = reserve(requests, sizes_of(drafts.offsets).tolist())
    if all(fits):
        return chosen
    return chosen.only(np.repeat(fits, sizes_of(chosen.proposal.offsets)))


def check_probs(probs: Floats, tokens: Int32s, width: int) -> None:
    """Refuse distributions that cannot have given the tokens: `probs` float32[n, width].

    Raises: InputError.
    """
    if not isinstance(probs, np.ndarray) or probs.dtype != np.float32:
        kind = getattr(probs, "dtype", type(probs).__name__)
        raise InputError(f"probs are of {kind}; expected an array of float32")
    if probs.shape != (len(tokens), width):
        raise InputError(f"probs have shape {probs.shape}; expected {(len(tokens), width)}")
    if tokens.max(initial=0) >= width:
        raise InputError(f"token {tokens.max()} was sampled; expected 0 to {width - 1}")
    sums = probs.sum(axis=1, dtype=np.float64)
    own = probs[np.arange(len(tokens)), tokens]
    if not ((probs >= 0).all() and np.isfinite(sums).all() and (own > 0).all()):
        raise InputError("probs have an invalid row; expected chances from 0, its token's above 0")
