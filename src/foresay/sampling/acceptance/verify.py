"""Verification of a batch, each request by its own rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Floats, joined, offsets_of
from foresay.draft import Draft, DraftBatch
from foresay.errors import ForesayError, InputError
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.ask import AskBatch
from foresay.verdict import VerdictBatch

__all__ = ["verify"]


def verify(
    drafts: DraftBatch,
    logits: Tensor,
    asks: AskBatch,
    draft_probs: Mapping[int, Floats] | None = None,
) -> Verified:
    """Rule match or rejection, by each request's `params.rule`; a request's verdict does not depend
    on the others in the batch.

    draft_probs  the `probs` of drafts whose tokens were sampled, by the draft's number. Other
                 drafts under rule rejection were chosen; rule match needs none

    Raises: InputError for arguments that do not fit each other; the failure of a single request is
    in the result.
    """
    if all(ask.params.rule == "match" for ask in asks.asks):
        return match(drafts, logits, asks)
    draft_probs = draft_probs or {}
    kinds = np.array(
        [
            0 if ask.params.rule == "match" else 2 if at in draft_probs else 1
            for at, ask in enumerate(asks.asks)
        ],
        np.int64,
    )
    # A batch has probs for all of its drafts or for none, so there are three kinds.
    rows = Rows.of(drafts)
    if len(asks) != len(drafts) or len(logits) != len(rows.request):
        raise InputError(
            f"there are {len(asks)} asks and {len(logits)} rows of logits for {len(drafts)} "
            f"drafts; expected {len(drafts)} and {len(rows.request)}"
        )
    found: dict[int, tuple[Verified, int]] = {}
    places: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    failures: dict[int, ForesayError] = {}
    for kind in np.unique(kinds).tolist():
        own = np.flatnonzero(kinds == kind).tolist()
        there = np.flatnonzero(np.isin(rows.request, own))
        some = [drafts[at] for at in own]
        if kind == 2:
            some = [
                Draft._trusted(draft.tokens, draft.parents, None, draft_probs[at])
                for at, draft in zip(own, some, strict=True)
            ]
        verified = (match if kind == 0 else rejection)(
            DraftBatch.of(some),
            logits[torch.as_tensor(there, device=logits.device)],
            AskBatch.of([asks.asks[at] for at in own]),
        )
        bounds = verified.verdicts.offsets
        for place, at in enumerate(own):
            found[at] = verified, place
            places[at] = there[verified.rows[bounds[place] : bounds[place + 1]]]
            if place in verified.failures:
                failures[at] = verified.failures[place]
    each = [of.verdicts[place] for of, place in (found[at] for at in range(len(asks)))]
    packed = VerdictBatch._trusted(
        joined([verdict.tokens for verdict in each]),
        offsets_of([len(verdict.tokens) for verdict in each]),
        joined([verdict.path for verdict in each]),
        offsets_of([len(verdict.path) for verdict in each]),
    )
    return Verified(packed, failures, np.concatenate([places[at] for at in range(len(asks))]))
