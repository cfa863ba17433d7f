"""Verification of a batch, each request by its own rule."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from foresay.arrays import Floats
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.acceptance.verdicts import Rule, Verified, in_parts
from foresay.sampling.verification import VerificationBatch

__all__ = ["verify"]


def verify(
    drafts: DraftBatch,
    logits: Tensor,
    inputs: VerificationBatch,
    draft_probs: Mapping[int, Floats] | None = None,
) -> Verified:
    """Rule match or rejection, by each request's `params.rule`; a request's verdict does not depend
    on the others in the batch.

    draft_probs  the `probs` of drafts whose tokens were sampled, by the draft's number. Other
                 drafts under rule rejection were chosen; rule match needs none

    Raises: InputError for arguments that do not fit each other; the failure of a single request is
    in the result.
    """
    if all(request.params.rule == "match" for request in inputs.inputs):
        return match(drafts, logits, inputs)
    rows = len(drafts) + len(drafts.tokens)
    if len(inputs) != len(drafts) or len(logits) != rows:
        raise InputError(
            f"there are {len(inputs)} inputs and {len(logits)} rows of logits for {len(drafts)} "
            f"drafts; expected {len(drafts)} and {rows}"
        )
    known = draft_probs or {}
    by_match, chosen, sampled = list[int](), list[int](), list[int]()
    for at, request in enumerate(inputs.inputs):
        kind = sampled if at in known else chosen
        (by_match if request.params.rule == "match" else kind).append(at)

    def with_probs(some: DraftBatch, logits: Tensor, inputs: VerificationBatch) -> Verified:
        pairs = zip(some, sampled, strict=True)
        full = [Draft._trusted(one.tokens, one.parents, None, known[at]) for one, at in pairs]
        return rejection(full, logits, inputs)

    # A batch has probs for all of its drafts or for none, so there are three kinds.
    kinds: list[tuple[list[int], Rule]] = [
        (by_match, match),
        (chosen, rejection),
        (sampled, with_probs),
    ]
    return in_parts([kind for kind in kinds if kind[0]], drafts, logits, inputs)
