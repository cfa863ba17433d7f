"""Structured answers in a step: illegal drafts are cut, the others get masks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
        committed = len(request.matcher)
        try:
            legal = legal_nodes(request.matcher, drafts[at])
        except InputError:  # a draft leads where the grammar takes too much work
            legal = np.zeros(end - begin, bool)
            with suppress(InputError):  # else the request fails when its masks are made
                request.matcher.restore(committed)
        if not legal.all():
            known = np.ones(len(drafts.tokens), bool) if known is None else known.copy()
            known[begin:end] &= legal
    return proposal if known is proposal.known else replace(proposal, known=known)


def asks_of(step: Step) -> tuple[VerificationBatch, dict[int, ForesayError]]:
    """What is asked of the verification, with masks; and the requests that fail because their
    grammar takes too much work behind what is committed: for these nothing is allowed. Where it
    does so on the way of a draft, nothing is allowed behind the drafted tokens.
    """
    asks, failures = list[VerificationInput](), dict[int, ForesayError]()
    for at, request in enumerate(step.decoding):
        masks = None
        if request.matcher is not None:
            draft, matcher = step.chosen.drafts[at], request.matcher
            committed = len(matcher)
            try:
                masks = tree_masks(matcher, draft)
            except InputError:
                masks = np.zeros((len(draft) + 1, matcher.grammar.words), np.int32)
                try:
                    matcher.restore(committed)
                    matcher.fill_mask(masks[0])
                except InputError as error:
                    failures[at] = error
        asks.append(request.ask(masks))
    return VerificationBatch(asks), failures
