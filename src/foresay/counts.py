"""What is counted of speculation, and by which definition: one for every place that shows it."""

from __future__ import annotations

__all__ = ["tokens_per_step"]


def tokens_per_step(tokens: float, steps: float) -> float:
    """Committed tokens per decode step; 0.0 where there was no step.

    A step is one request's part of a pass of the model in which its next token was chosen: a pass
    that writes for 8 requests is 8 steps, and a pass that only reads a piece of a prompt is none.
    Tokens are all that were committed, the target's own included. The first token of an answer
    counts like every other: the pass that reads the end of the prompt chooses it, and is a step.
    So without drafts it is 1, and with them 1 + accepted / steps, less what a stop cut off.
    """
    return tokens / steps if steps else 0.0
