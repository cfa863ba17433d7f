"""Edge-only: the edge's own model goes on where the cloud cannot be reached.

This is not the target model. It happens only if asked for, and every piece says so. Nothing of it
enters an `EdgeText`: what the cloud has committed and what the edge wrote stay apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from foresay.arrays import IntsLike
from foresay.drafter import Drafter, SeededParams, Source
from foresay.drafters.model import ModelDrafter
from foresay.edge.drafting import EdgeDrafts
from foresay.errors import InputError, StreamError

__all__ = ["LABEL", "model_in", "write_alone"]

LABEL = "edge-only: this is not the target model"
_STEP = 8
"""Tokens that are drafted at a time."""


def model_in(drafter: Drafter[Any] | None) -> ModelDrafter:
    """The model among a client's drafters.

    Raises: InputError if there is none.
    """
    for part in getattr(drafter, "drafters", (drafter,)):
        if isinstance(part, ModelDrafter):
            return part
    raise InputError(
        "edge_only is True, but no model drafts; expected a drafter with model:NAME, since only a "
        "model can write without the cloud"
    )


def write_alone(
    model: ModelDrafter,
    text: IntsLike,
    sampling: SeededParams,
    *,
    tokens: int,
    ends: Sequence[int],
) -> Iterator[tuple[list[int], str]]:
    """What the edge's model writes after a text: tokens, and at the end the finish reason.

    tokens: so many at most; ends: ids that end it. Stop strings are not looked for. Each step
    blocks for as long as the model takes. Raises: StreamError if the model cannot go on.
    """
    # One more: a drafter leaves the last token of an answer to the target.
    longer = replace(sampling.params, max_tokens=sampling.params.max_tokens + 1)
    drafts = EdgeDrafts(model, text, SeededParams(longer, sampling.seed))
    try:
        while tokens > 0:
            proposal = drafts.propose(min(tokens, _STEP))
            part = proposal.beyond(())
            if part is None or not len(part):
                raise StreamError(
                    f"{LABEL}, and it cannot go on: "
                    f"{drafts.error or 'the text is too long for it, or has tokens it lacks'}",
                    "unreachable",
                )
            new = part.draft.tokens.tolist()
            at = next((i for i, token in enumerate(new) if token in ends), None)
            new = new if at is None else new[: at + 1]
            tokens -= len(new)
            yield new, "stop" if at is not None else "" if tokens else "length"
            if at is not None:
                return
            drafts.observe(new)
    finally:
        drafts.finish()


def sources_of(tokens: Sequence[int]) -> tuple[Source, ...]:
    """All of the edge's model."""
    return (Source.DRAFT_MODEL,) * len(tokens)
