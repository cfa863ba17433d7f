"""What a step computes: the forward pass and the verification, as one function.

An engine can be given another function of this kind: `foresay.bench.simulate` gives it one that
walks recorded answers and advances a clock, so that everything else of a step is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from torch import Tensor

from foresay.engine.logprobs import logprobs_for, note_prompt_logprobs
from foresay.engine.step import Outcome, Step, Timings
from foresay.engine.structured import asks_of
from foresay.models.target import Target
from foresay.sampling.acceptance.masks import forbidden_in_place
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.acceptance.verify import verify
from foresay.sampling.logprobs import Logprobs, topk_of
from foresay.verdict import VerdictBatch, Wants

__all__ = ["Compute", "forward_and_verify"]


Compute: TypeAlias = Callable[[Step, Wants, Timings], Outcome]
"""compute(step, wants, laps): the outcome of a step whose parts are made. It ends the lap "forward"
with the forward pass; what follows is the lap "verify". Where a device computes meanwhile, it calls
`step.meanwhile` and says so in the outcome."""


def forward_and_verify(target: Target) -> Compute:
    """The computation by a model."""

    def compute(step: Step, wants: Wants, laps: Timings) -> Outcome:
        outputs = target.forward(step.parts, hidden=wants.hidden_layers or wants.hidden)
        if not step.decoding:  # of which nothing is read, so that it would be timed with the next
            outputs.wait()
        laps.end("forward")
        if outputs.on_gpu:
            step.meanwhile()
        own = len(outputs.logits) - int(step.parts.prefill_logits.sum())
        logits = outputs.logits[:own]
        verified, logprobs = _verify(step, logits, keep=wants.topk > 0)
        began = laps.clock()
        topk = topk_of(logits, wants.topk)
        showing = laps.clock() - began
        if own < len(outputs.logits):
            counts = step.parts.prefill_logits.tolist()
            prompts = [turn.request for turn in step.turns]
            pairs = list(zip(prompts, counts, strict=True))
            note_prompt_logprobs(pairs, outputs.logits[own:])
        return Outcome(verified, logprobs, topk, outputs.hidden, showing, outputs.on_gpu)

    return compute


def _verify(step: Step, logits: Tensor, keep: bool) -> tuple[Verified, Logprobs | None]:
    """Which drafted tokens are accepted, and the target's own tokens. `keep`: the logits are still
    needed as they are, as they are for log probabilities."""
    if not step.decoding:
        return _NOTHING, None
    asks, failures = asks_of(step)
    if not keep and all(request.params.logprobs is None for request in step.decoding):
        asks = forbidden_in_place(step.chosen.drafts, logits, asks)
    verified = verify(step.chosen.drafts, logits, asks, step.draft_probs)
    if failures:
        verified = replace(verified, failures={**verified.failures, **failures})
    return verified, logprobs_for(step.decoding, verified, step.chosen.drafts, logits, asks)


_NOTHING = Verified(VerdictBatch.of([]), {}, np.empty(0, np.int64))
