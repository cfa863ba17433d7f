"""What a drafter proposed in a step, and what of it is verified where tokens were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from foresay.arrays import Floats, Int32s
from foresay.budget.load import Chosen, Load, keep, within_max_tokens
from foresay.draft import DraftBatch
from foresay.errors import InputError

__all__ = ["Proposal", "check_probs", "with_all_drawn"]


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """The drafts of a step's requests.

    drafts  without their probs: policies look at tokens, parents and scores
    probs    by the number of the draft, what its tokens were drawn from, float32[n, vocabulary]:
            of requests under rule rejection whose drafter drew them. All others were chosen
    """

    drafts: DraftBatch
    probs: Mapping[int, Floats] = field(default_factory=dict)

    def probs_of(self, chosen: Chosen) -> dict[int, Floats]:
        """The probs of the nodes that are verified."""
        bounds = chosen.drafts.offsets
        return {
            at: law if len(nodes) == len(law) else law[nodes]
            for at, law in self.probs.items()
            for nodes in [chosen.kept[bounds[at] : bounds[at + 1]]]
        }


def with_all_drawn(chosen: Chosen, proposal: Proposal, load: Load) -> Chosen:
    """What a policy chose, but of drafts that were drawn every node that the answer has fitting for.

    A law in `Draft.probs` is that of a token given its parent and its earlier siblings, and nothing
    else. To leave a drawn token out because of what it is (its score) makes what is left another
    draw: one of tokens that are likely, or that have likely company. So does leaving it out because
    of the shape of the tree, since whether a drafter goes on may hang on what it drew. The only
    cuts that are sound are those that were fixed before anything was drawn: the budget, which the
    drafter was told, and the depth from which on an answer has no fitting. Chosen tokens may be left
    out for any reason: each is tried against what is left of the target's own law.
    """
    if not proposal.probs:
        return chosen
    drafts = proposal.drafts
    taken = np.zeros(len(drafts.tokens), bool)
    taken[chosen.kept + np.repeat(drafts.offsets[:-1], np.diff(chosen.drafts.offsets))] = True
    fitting = within_max_tokens(drafts, load)
    fits = np.ones(len(taken), bool) if fitting is None else np.zeros(len(taken), bool)
    if fitting is not None:
        fits[fitting] = True
    for at in proposal.probs:
        own = slice(drafts.offsets[at], drafts.offsets[at + 1])
        taken[own] = fits[own]
    return keep(drafts, np.flatnonzero(taken))


def check_probs(probs: Floats, tokens: Int32s, width: int) -> None:
    """Refuse what tokens cannot have been drawn from: `probs` float32[n, width], a row for each.

    Raises: InputError.
    """
    if probs.shape != (len(tokens), width):
        raise InputError(f"probs have shape {probs.shape}; {(len(tokens), width)} is needed")
    if tokens.max(initial=0) >= width:
        raise InputError(f"token {tokens.max()} was drawn; the model has {width}")
    sums = probs.sum(axis=1, dtype=np.float64)
    own = probs[np.arange(len(tokens)), tokens]
    if not ((probs >= 0).all() and np.isfinite(sums).all() and (own > 0).all()):
        raise InputError("probs have a row that is no law, or that cannot draw its token")
