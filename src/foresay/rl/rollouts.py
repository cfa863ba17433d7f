"""Rollouts: several samples of each of many prompts, all waited for.

The samples of a prompt are a group, which drafts from each other as they grow. Where not all of
them fit at once, one sample of every prompt begins before the second of any, so that the later
ones have something to draft from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
from torch import Tensor

from foresay.arrays import IntsLike, as_items, check_callable, check_positive
from foresay.budget.policy import Policy
from foresay.drafter import Drafter
from foresay.drafters.lineup import make_drafter
from foresay.engine.engine import Engine
from foresay.engine.request import FinishReason, Request, RequestStats
from foresay.errors import InputError, StateError
from foresay.models.target import Target
from foresay.sampling.noise import Doubles, seed_of_sample
from foresay.sampling.params import SamplingParams

__all__ = ["Rollout", "Rollouts"]


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sample of a prompt.

    prompt         which of the prompts
    sample         which of its samples
    token_ids      the answer, the token that ended it included
    logprobs       float64[T], of each token under the distribution that it was sampled from: after
                   temperature, penalties and limits
    raw_logprobs   float64[T], of each token under the model's own distribution
    finish_reason  "stop" or "length"; a request that failed raises instead
    version        of the weights, which sampled all of it
    stats          what it took
    """

    prompt: int
    sample: int
    token_ids: list[int]
    logprobs: Doubles
    raw_logprobs: Doubles
    finish_reason: FinishReason
    version: int
    stats: RequestStats


class Rollouts:
    """Samples of many prompts from a model that is being trained.

    target       the model
    drafter      "suffix", another name of a drafter, a Drafter, or None
    policy       how many drafted tokens are verified, as in `Engine`
    memory       bytes for the KV cache
    max_running  samples in one step; the others wait
    max_rows     prompt tokens in one step

    Raises: InputError when constructed. One thread at a time may use it.
    """

    def __init__(
        self,
        target: Target,
        drafter: str | Drafter[Any] | None = "suffix",
        policy: str | Policy = "adaptive",
        *,
        memory: int = 4 << 30,
        max_running: int = 256,
        max_rows: int = 512,
    ) -> None:
        made = make_drafter(drafter, share="all") if isinstance(drafter, str) else drafter
        self.engine = Engine(
            target,
            made,
            policy=policy,
            memory=memory,
            max_running=max_running,
            max_rows=max_rows,
        )

    @property
    def version(self) -> int:
        """How often the weights were replaced."""
        return self.engine.version

    def replace_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with other weights, by the names that the model gives them.

        Raises: StateError while samples run; InputError as `Target.replace_weights`; nothing has
        changed then.
        """
        if self.engine.busy:
            raise StateError("samples are running; expected new weights between two rollouts")
        self.engine.replace_weights(weights)

    def sample(
        self,
        prompts: Sequence[IntsLike],
        params: SamplingParams,
        *,
        samples: int,
        seed: int,
        stops: Sequence[int] = (),
        progress: Callable[[int], None] | None = None,
    ) -> list[list[Rollout]]:
        """`samples` answers to each of the prompts, in their order; all of them or none.

        seed      of all noise: the same seed, prompts and weights give the same answers, whatever
                  the drafter, the policy and the limits are
        stops     token ids that end an answer
        progress  called for new tokens: progress(how many); what it raises ends the rollout

        Raises: InputError for what cannot be answered, before anything has begun; what a request
        or the model raises. Whatever is raised, nothing runs and nothing is held any more.
        """
        check_callable(progress, "progress")
        if params.logprobs is None:
            params = replace(params, logprobs=0)
        check_positive(samples, "samples")
        listed = as_items(prompts, "prompts", "a list of prompts, each of token ids")
        groups = [f"rollout {uuid4()}" for _ in listed]
        asked: dict[tuple[int, int], Request] = {}
        try:
            for group in groups:
                self.engine.groups.open(None, group)
            for sample in range(samples):
                for at, prompt in enumerate(listed):
                    asked[at, sample] = self.engine.add(
                        prompt,
                        params,
                        seed=seed_of_sample(seed, 1 + at * samples + sample),
                        stops=stops,
                        group=groups[at],
                        together=True,
                    )
            while self.engine.busy:
                before = sum(request.stats.tokens for request in asked.values())
                self.engine.step()
                if progress is not None:
                    progress(sum(r.stats.tokens for r in asked.values()) - before)
        finally:
            self.engine.cancel(*asked.values())
            for group in groups:
                self.engine.groups.close(None, group)
        return [
            [self._rollout(at, sample, asked[at, sample]) for sample in range(samples)]
            for at in range(len(listed))
        ]

    def _rollout(self, prompt: int, sample: int, request: Request) -> Rollout:
        if request.error is not None:
            raise InputError(f"sample {sample} of prompt {prompt} failed: {request.error}")
        assert request.finish_reason is not None
        return Rollout(
            prompt,
            sample,
            request.token_ids,
            np.array([p.processed for p in request.logprobs], np.float64),
            np.array([p.logprob for p in request.logprobs], np.float64),
            request.finish_reason,
            self.version,
            request.stats,
        )
