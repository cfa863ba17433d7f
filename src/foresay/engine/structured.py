"""Structured answers in a step: their forms complete the drafts, and mask what is verified."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any

import numpy as np

from foresay.draft import Draft, DraftBatch
from foresay.engine.proposal import Completion, Proposal
from foresay.engine.request import Request
from foresay.engine.step import Step
from foresay.errors import ForesayError, InputError
from foresay.sampling.verification import VerificationBatch, VerificationInput
from foresay.structured.tree import CompletedDraft, completed, tree_masks

__all__ = ["asks_of", "with_forms"]


def with_forms(requests: Sequence[Request], proposal: Proposal, budgets: Sequence[int]) -> Proposal:
    """The proposal without nodes that the form of their answer forbids, and with the text that it
    forces, within the budgets. Sampled drafts stay whole: which of their tokens are verified must
    not depend on what they are."""
    formed = [
        request.matcher is not None and budget > 0 and at not in proposal.probs
        for at, (request, budget) in enumerate(zip(requests, budgets, strict=True))
    ]
    if True not in formed:
        return proposal
    given = proposal.drafts
    scored = given.scores is not None or not len(given.tokens)
    nodes: Any = CompletedDraft([], [], [], [])
    scores, sizes = list[float](), list[int]()
    for at, request in enumerate(requests):
        draft = given[at]
        if formed[at] and request.matcher is not None:
            part = CompletedDraft([], [], [], [])
            if not request.matcher.renewed:
                with suppress(InputError):  # the masks say whether the answer fails
                    part = completed(request.matcher, draft, budgets[at])
            part, chances = _within(budgets[at], part, _chances(part, draft), scored)
        else:
            part, chances = _as_it_is(draft), [] if draft.scores is None else draft.scores.tolist()
        for column, more in zip(nodes, part, strict=True):
            column += more
        scores += chances
        sizes.append(len(part.tokens))
    own = np.array(nodes.own, np.int32)
    drafts = DraftBatch._trusted(
        np.array(nodes.tokens, np.int32),
        np.array(nodes.parents, np.int32),
        np.array([0, *accumulate(sizes)], np.int32),
        np.array(scores, np.float32) if scored else None,
    )
    known = proposal.known
    if known is not None:  # what is left or forced of a completed draft is known
        known = np.append(known, True)[
            np.where(own < 0, -1, own + given.offsets[:-1].repeat(sizes))
        ]
    completion = Completion(given.offsets, drafts.offsets, own, np.array(nodes.forced, bool))
    return Proposal(drafts, proposal.probs, known, completion)


def asks_of(step: Step) -> tuple[VerificationBatch, dict[int, ForesayError]]:
    """What is asked of the verification, with masks; and the requests that fail because their
    grammar takes too much work behind what is committed: for these nothing is allowed.
    """
    asks, failures = list[VerificationInput](), dict[int, ForesayError]()
    chosen = step.chosen
    forced = None if step.completion is None else step.completion.forced[chosen.flat].tolist()
    for at, request in enumerate(step.decoding):
        masks = None
        if request.matcher is not None:
            draft = chosen.drafts[at]
            begin, end = chosen.drafts.offsets[at : at + 2]
            only = [False] * len(draft) if forced is None else forced[begin:end]
            try:
                masks = tree_masks(request.matcher, draft, only)
                if not masks[0].any():
                    raise InputError("the form of the answer allows no token of the model here")
            except InputError as error:
                masks = np.zeros((len(draft) + 1, request.matcher.grammar.words), np.int32)
                failures[at] = error
        asks.append(request.ask(masks))
    return VerificationBatch(asks), failures


def _as_it_is(draft: Draft) -> CompletedDraft:
    own = list(range(len(draft)))
    return CompletedDraft(draft.tokens.tolist(), draft.parents.tolist(), own, [False] * len(own))


def _chances(part: CompletedDraft, draft: Draft) -> list[float]:
    """Each node's chance: its parent's, times what the drafter thinks of its node behind that. What
    is forced always comes."""
    given = [1.0] * len(draft) if draft.scores is None else draft.scores.tolist()
    above, chances = draft.parents.tolist(), list[float]()
    for parent, own, forced in zip(part.parents, part.own, part.forced, strict=True):
        chance = 1.0 if parent < 0 else chances[parent]
        if not forced:
            before = 1.0 if above[own] < 0 else given[above[own]]
            chance *= min(given[own] / before, 1.0) if before > 0 else 0.0
        chances.append(chance)
    return chances


def _within(
    budget: int, part: CompletedDraft, chances: list[float], scored: bool
) -> tuple[CompletedDraft, list[float]]:
    """The likeliest nodes, as many as the budget allows."""
    count = len(part.tokens)
    if count <= budget:
        return part, chances
    # Parents have chances no less than their children's, and come before them.
    order: Any = np.argsort(-np.array(chances), kind="stable") if scored else np.arange(count)
    best = np.sort(order[:budget]).tolist()
    place = {-1: -1} | {old: new for new, old in enumerate(best)}
    left = CompletedDraft(
        [part.tokens[node] for node in best],
        [place[part.parents[node]] for node in best],
        [part.own[node] for node in best],
        [part.forced[node] for node in best],
    )
    return left, [chances[node] for node in best]
