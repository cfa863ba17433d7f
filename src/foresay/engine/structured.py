"""Structured answers in a step: illegal drafts are cut, the others get masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from foresay.engine.proposal import Proposal
from foresay.engine.request import Request
from foresay.engine.step import Step
from foresay.errors import ForesayError, InputError
from foresay.sampling.verification import VerificationBatch, VerificationInput
from foresay.structured.tree import legal_nodes, tree_masks

__all__ = ["asks_of", "without_illegal"]


def without_illegal(requests: Sequence[Request], proposal: Proposal) -> Proposal:
    """The proposal, without nodes that the grammar of their answer forbids. Sampled drafts stay
    whole: which of their tokens may be dropped must not depend on what they are."""
    drafts, known = proposal.drafts, proposal.known
    for at, request in enumerate(requests):
        if request.matcher is None or at in proposal.probs:
            continue
        begin, end = drafts.offsets[at], drafts.offsets[at + 1]
        try:
            legal = legal_nodes(request.matcher, drafts[at])
        except InputError:  # the request fails when its masks are made
            legal = np.zeros(end - begin, bool)
        if not legal.all():
            known = np.ones(len(drafts.tokens), bool) if known is None else known.copy()
            known[begin:end] &= legal
    return proposal if known is proposal.known else replace(proposal, known=known)


def asks_of(step: Step) -> tuple[VerificationBatch, dict[int, ForesayError]]:
    """What is asked of the verification, with masks; and the requests that fail because their
    grammar takes too much work behind what is committed: for these nothing is allowed.
    """
    asks, failures = list[VerificationInput](), dict[int, ForesayError]()
    for at, request in enumerate(step.decoding):
        masks = None
        if request.matcher is not None:
            draft = step.chosen.drafts[at]
            try:
                masks = tree_masks(request.matcher, draft)
            except InputError as error:
                masks = np.zeros((len(draft) + 1, request.matcher.grammar.words), np.int32)
                failures[at] = error
        asks.append(request.ask(masks))
    return VerificationBatch(asks), failures
