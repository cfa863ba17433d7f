"""Wrong engines that `run_engine` must find: each has one mistake that a real one could make.

Mutates: nothing. Valid until: for ever. Raises: as the engine. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from foresay.engine.compute import Compute, forward_and_verify
from foresay.engine.logprobs import logprobs_for
from foresay.engine.step import Outcome, Step, Timings
from foresay.engine.text import IncrementalDetokenizer
from foresay.lossless.engine_scripts import run_engine
from foresay.lossless.scripts import ScriptsResult
from foresay.models.target import Target
from foresay.sampling.acceptance.verify import verify
from foresay.sampling.logprobs import Logprobs
from foresay.sampling.verification import VerificationBatch
from foresay.verdict import Wants

Run: TypeAlias = Callable[..., ScriptsResult]
"""`run_engine` with a mistake."""


class _WithinATokenOnly(IncrementalDetokenizer):
    """Looks for stop strings in the text of each token by itself."""

    def _hits(self, new: str) -> list[tuple[int, int, str]]:
        known = len(self.text)
        return [(end, at, stop) for end, at, stop in super()._hits(new) if at >= known]


class _LateStop(IncrementalDetokenizer):
    """Ends an answer with the token after the one that completed the stop string."""

    _late = False

    def add(self, token: int) -> bool:
        late, self._late = self._late, self.stopped is None and super().add(token)
        return late


def _one_rule_for_all(target: Target) -> Compute:
    """Where one request is under rule rejection, all are verified by it."""
    right = forward_and_verify(target)

    def compute(step: Step, wants: Wants, laps: Timings) -> Outcome:
        outcome = right(step, wants, laps)
        inputs = [request.ask() for request in step.decoding]
        if len({one.params.rule for one in inputs}) < 2:
            return outcome
        inputs = [replace(one, params=replace(one.params, rule="rejection")) for one in inputs]
        own = target.forward(step.parts).logits
        own = own[: len(own) - sum(part.prefill_logits for part in step.parts)]
        batch, drafts = VerificationBatch.of(inputs), step.chosen.drafts
        verified = verify(drafts, own, batch, step.draft_probs)
        logprobs = logprobs_for(step.decoding, verified, drafts, own, batch)
        return replace(outcome, verified=verified, logprobs=logprobs)

    return compute


def _with_logprobs(change: Callable[[Logprobs], Logprobs]) -> Callable[[Target], Compute]:
    def made(target: Target) -> Compute:
        right = forward_and_verify(target)

        def compute(step: Step, wants: Wants, laps: Timings) -> Outcome:
            outcome = right(step, wants, laps)
            found = outcome.logprobs
            return outcome if found is None else replace(outcome, logprobs=change(found))

        return compute

    return made


def _of_the_row_before(found: Logprobs) -> Logprobs:
    return replace(found, processed=np.roll(found.processed, 1), raw=np.roll(found.raw, 1))


ENGINE_CONTROLS: Mapping[str, tuple[Run, str]] = MappingProxyType(
    {
        "stop in one token": (
            partial(run_engine, text=_WithinATokenOnly),
            "a stop string is found only if one token has all of it",
        ),
        "late stop": (
            partial(run_engine, text=_LateStop),
            "a stop string ends the answer one token too late",
        ),
        "one rule for all": (
            partial(run_engine, compute=_one_rule_for_all),
            "requests of rule match are verified by their neighbours' rule rejection",
        ),
        "logprobs of the row before": (
            partial(run_engine, compute=_with_logprobs(_of_the_row_before)),
            "a token has the log probability of the token before it",
        ),
        "raw for processed": (
            partial(
                run_engine,
                compute=_with_logprobs(lambda found: replace(found, processed=found.raw)),
            ),
            "log probabilities are told before the processors, not as sampled",
        ),
    }
)
"""Name, `run_engine` with a mistake, and what is wrong."""
