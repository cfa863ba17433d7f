"""The values between an engine and its policy: a step's load, and its outcome.

Nothing here mutates its arguments; values are treated as immutable once made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import sizes_of
from foresay.budget.selected import SelectedNodes
from foresay.draft import DraftBatch
from foresay.errors import InputError
from foresay.verdict import Verdict, VerdictBatch

__all__ = ["Load", "StepFacts", "Tenants", "check_drafts_of", "within_max_tokens"]

Int64s: TypeAlias = NDArray[np.int64]
Float64s: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
_NONE: Bools = np.empty(0, bool)
Tenants: TypeAlias = "Sequence[str | None] | None"


@dataclass(frozen=True, eq=False)
class Load:
    """What a step has to do before anything is drafted.

    contexts     int64[B]  tokens of each decoding request, the last committed one included
    tokens_left  int64[B]  how many tokens each answer may still get, at least 1; 1 also where
                 nothing is to be drafted for it, which is the same to a policy
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
    probed       whether drafts are probed while a device computes, as long as nothing is verified
                 (`engine.ahead`): then what the host does for drafts costs time only where some
                 are verified
    """

    contexts: Int64s
    tokens_left: Int64s
    other_rows: int = 0
    other_reads: int = 0
    ids: Int64s | None = None
    weights: Float64s | None = None
    tenants: Tenants = None
    probed: bool = False

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
        return sum(self.contexts.tolist())  # sooner than numpy's, for as few as a step has

    @cached_property
    def fewest_left(self) -> int:
        """The smallest of `tokens_left`; without requests, a large number."""
        return min(self.tokens_left.tolist(), default=1 << 62)


@dataclass(frozen=True, slots=True, eq=False)
class StepFacts:
    """The outcome of a step.

    load           what it had to do
    chosen         the nodes that were verified
    accepted       bool[N'], by verified node
    committed      tokens that all decoding requests got
    seconds        the forward pass and the verification
    draft_seconds  what was done for drafts: budgets, propose, choose; where they are probed, all
                   that the device had to wait for
    """

    load: Load
    chosen: SelectedNodes
    accepted: Bools
    committed: int
    seconds: float
    draft_seconds: float = 0.0

    @classmethod
    def of(
        cls,
        load: Load,
        chosen: SelectedNodes,
        verdicts: Sequence[Verdict],
        seconds: float,
        draft_seconds: float = 0.0,
    ) -> StepFacts:
        """The facts from the verdicts on the proposal."""
        batch = VerdictBatch.of(verdicts)
        if not len(chosen.keep):
            # Requests can have left since the step was started (`engine.ahead`).
            nothing = SelectedNodes.nothing(len(load))
            return cls(load, nothing, _NONE, len(batch.tokens), seconds, draft_seconds)
        paths = batch.path, batch.path_offsets
        accepted = _core.accepted(*paths, chosen.proposal.offsets, chosen.keep).view(np.bool_)
        return cls(load, chosen, accepted, len(batch.tokens), seconds, draft_seconds)


def within_max_tokens(drafts: DraftBatch, load: Load) -> Bools:
    """Which nodes can still be committed.

    The target's own token takes the last place of an answer, so with r tokens left nodes are of
    use down to depth r - 1.

    Raises: InputError for a number of drafts that does not fit the load.
    """
    check_drafts_of(drafts, load)
    if not len(drafts.tokens) or drafts.largest < load.fewest_left:
        return np.ones(len(drafts.tokens), bool)
    within: Bools = drafts.depths < load.tokens_left.repeat(sizes_of(drafts.offsets))
    return within


def check_drafts_of(drafts: DraftBatch, load: Load) -> None:
    """Refuse a number of drafts that does not fit the load. Raises: InputError."""
    if len(drafts) != len(load):
        raise InputError(
            f"there are {len(drafts)} drafts for {len(load)} requests; expected one each"
        )
