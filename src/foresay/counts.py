"""Tokens per step, acceptance, and where two texts differ: one definition for every place that
shows them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["acceptance", "first_difference", "tokens_per_step"]


def tokens_per_step(tokens: float, steps: float) -> float:
    """Committed tokens per decode step; 0.0 where there was no step.

    A step is one request's part of a forward pass in which its next token was chosen: a pass that
    decodes 8 requests is 8 steps, and a pass that only prefills a piece of a prompt is none. Tokens
    are all committed tokens, the target's own included. The first token of an answer counts like
    every other: the pass that ends the prefill chooses it, and is a step. So without drafts the
    result is 1, and with them 1 + accepted / steps, less what a stop cut off.
    """
    return tokens / steps if steps else 0.0


def acceptance(accepted: float, drafted: float) -> float:
    """Share of the drafted tokens that were committed; 0.0 where nothing was drafted.

    It falls as drafts get longer, also where tokens per step rise.
    """
    return accepted / drafted if drafted else 0.0


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """The place of the first token that differs; None if all are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = None if len(one) == len(other) else min(len(one), len(other))
    return next((at for at, (a, b) in pairs if a != b), shorter)
