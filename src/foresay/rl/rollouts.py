"""Rollouts: several samples of each of many prompts, all waited for.

The samples of a prompt are a group: each drafts from the others as they grow, and from the answers
to the same prompt with earlier versions of the weights. Where not all of them fit at once, one
sample of every prompt begins before the second of any, so that the later ones have something to
draft from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Literal, TypeAlias, get_args
from uuid import uuid4

import numpy as np
from torch import Tensor

from foresay.arrays import Int32s, IntsLike, as_items, as_tokens, check_callable, check_positive
from foresay.budget.policy import Policy
from foresay.drafter import Drafter
from foresay.drafters.lineup import make_drafter
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.request import FinishReason, Request, RequestStats
from foresay.errors import InputError, StateError
from foresay.models.progress import Progress, silent
from foresay.models.target import Target
from foresay.rl.history import PromptHistory
from foresay.rl.steplog import RolloutStats, StepRecord
from foresay.sampling.noise import Doubles, seed_of_sample
from foresay.sampling.params import SamplingParams, check_seed
from foresay.structured.grammars import Grammars

__all__ = ["Order", "Rollout", "Rollouts", "rollout_drafter"]

Order: TypeAlias = Literal["stagger", "prompt"]
"""In which order samples begin, see `Rollouts`; for recorded requests: `traces.TraceOrder`."""


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One sample of a prompt.

    prompt         which of the prompts
    sample         which of its samples
    token_ids      the answer, the token that ended it included
    logprobs       float64[T], of each token under the distribution that it was sampled from: after
                   temperature, penalties and limits
    raw_logprobs   float64[T], of each token under the model's own distribution
    finish_reason  "stop" or "length"
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

    target         the model
    drafter        "suffix", another name of a drafter, a Drafter, or None
    policy         how many drafted tokens are verified, as in `Engine`
    versions       versions before the present one, whose answers are drafted from
    history_bytes  limit of the answers that are kept by prompt, of those that are kept for all
                   prompts together, and of what groups get to draft from of the former
    order          "stagger": one sample of every prompt begins before the second of any, which is
                   faster where not all fit at once; "prompt": all samples of a prompt before the
                   next, so that the first groups are complete earlier
    memory         bytes for the KV cache
    max_running    samples in one step; the others wait
    max_rows       prompt tokens in one step
    grammars       of the target's tokenizer, for answers that are to have a form
    progress       called while steps are timed, which takes seconds

    `steps` and `stats` tell of the last rollout.

    Raises: InputError when constructed. One thread at a time may use it.
    """

    def __init__(
        self,
        target: Target,
        drafter: str | Drafter[Any] | None = "suffix",
        policy: str | Policy = "adaptive",
        *,
        versions: int = 2,
        history_bytes: int = 64 << 20,
        order: Order = "stagger",
        memory: int = 4 << 30,
        max_running: int = 256,
        max_rows: int = 512,
        grammars: Grammars | None = None,
        progress: Progress = silent,
    ) -> None:
        if order not in get_args(Order):
            raise InputError(f"order is {order!r}; expected 'stagger' or 'prompt'")
        self._answers = PromptHistory(versions, history_bytes)
        self._versions, self._order = versions, order
        if drafter == "suffix":
            drafter = rollout_drafter(history_bytes)
        elif isinstance(drafter, str):
            drafter = None if drafter == "none" else make_drafter(drafter, share="all")
        self._told_tokens = history_bytes // _BYTES_PER_TOKEN  # of earlier answers, to all groups
        self.engine = Engine(
            target,
            drafter,
            policy=policy,
            memory=memory,
            max_running=max_running,
            max_rows=max_rows,
            grammars=grammars,
            progress=progress,
        )
        self._version_told = self.engine.version
        self._sampling = False
        self.steps: list[StepRecord] = []
        self.stats: RolloutStats | None = None

    @property
    def version(self) -> int:
        """How often the weights were replaced."""
        return self.engine.version

    @property
    def bytes_used(self) -> int:
        """Bytes that are held between rollouts: answers by prompt, and what the drafter holds."""
        return self._answers.bytes_used + self.engine.drafter.bytes_used()

    def replace_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with other weights, by the names that the model gives them. Answers of versions
        that are too old are forgotten.

        Raises: StateError while samples run; InputError as `Target.replace_weights`; nothing has
        changed then.
        """
        if self._sampling:
            raise StateError("samples are running; expected new weights between two rollouts")
        self.engine.replace_weights(weights)
        self._follow_version()

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

        Raises: InputError for what cannot be answered, before anything has begun; StateError while
        another rollout runs, or if the weights were replaced meanwhile; what a request or the model
        raises. Whatever is raised, nothing runs and nothing is held any more.
        """
        check_callable(progress, "progress")
        check_positive(samples, "samples")
        check_seed(seed)
        if not isinstance(params, SamplingParams):
            raise InputError(f"params are {params!r}; expected SamplingParams")
        if params.rule != "match":
            raise InputError(
                f"rule is {params.rule!r}; expected 'match' for rollouts, which a seed repeats"
            )
        if self._sampling:
            raise StateError("samples are running; expected one rollout at a time")
        if params.logprobs is None:
            params = replace(params, logprobs=0)
        listed = as_items(prompts, "prompts", "a list of prompts, each of token ids")
        tokens = [as_tokens(prompt, "prompt") for prompt in listed]
        self._follow_version()
        version, begin = self.version, perf_counter()
        groups = [f"rollout {uuid4()}" for _ in tokens]
        asked: dict[tuple[int, int], Request] = {}
        self._sampling = True
        try:
            for group in groups:
                self.engine.groups.open(None, group)
            for at, sample in _in_order(len(tokens), samples, self._order):
                asked[at, sample] = self.engine.add(
                    tokens[at],
                    params,
                    seed=seed_of_sample(seed, 1 + at * samples + sample),
                    stops=stops,
                    group=groups[at],
                    together=True,
                )
            self._prepare(groups, tokens)
            self._run(list(asked.values()), begin, progress)
            if self.version != version:
                raise StateError("the weights were replaced while samples ran; they are discarded")
        finally:
            try:
                self.engine.cancel(*asked.values())
            finally:
                self._sampling = False
                self._forget(groups)
        found = [
            [_rollout(at, sample, asked[at, sample], version) for sample in range(samples)]
            for at in range(len(tokens))
        ]
        for prompt, answers in zip(tokens, found, strict=True):
            self._answers.add(prompt, [answer.token_ids for answer in answers])
        return found

    def _run(
        self, requests: list[Request], begin: float, progress: Callable[[int], None] | None
    ) -> None:
        """Step until all have ended, and note each step."""
        self.steps, self.stats = [], None
        engine, held, last = self.engine, 0, begin
        while engine.busy:
            got = engine.step()
            now, ended = perf_counter(), sum(request.finished for request in got)
            queues, did = engine.scheduler, engine.last_step
            new = (0, 0, 0)
            if did is not None:
                new = len(did.chosen.nodes), int(did.accepted.sum()), did.committed
            self.steps.append(
                StepRecord(
                    now - begin,
                    now - last,
                    len(queues.running) + ended,
                    len(queues.waiting),
                    *new,
                )
            )
            last = now
            if len(self.steps) % _WEIGHED == 1:
                held = max(held, engine.drafter.bytes_used())
            if progress is not None:
                progress(new[2])
        self.stats = RolloutStats(
            len(requests),
            len(self.steps),
            sum(request.stats.tokens for request in requests),
            sum(request.stats.drafted for request in requests),
            sum(request.stats.accepted for request in requests),
            sum(request.stats.steps for request in requests),
            perf_counter() - begin,
            max(held, engine.drafter.bytes_used()),
        )

    def _prepare(self, groups: Sequence[str], prompts: Sequence[Int32s]) -> None:
        """Let each group draft from the latest answers to its prompt, as far as memory goes."""
        for group, prompt in zip(groups, prompts, strict=True):
            for answer in self._answers.latest(prompt, self._told_tokens // len(groups)):
                self.engine.drafter.add_to_group(group, prompt, answer)

    def _forget(self, groups: Sequence[str]) -> None:
        """Drop groups, also those that no request of them had begun."""
        for group in groups:
            self.engine.groups.close(None, group)
            self.engine.drop_group(group)

    def _follow_version(self) -> None:
        """Drop what is too old, also where the weights were replaced through the target."""
        while self._version_told < self.version:
            self._version_told += 1
            self._answers.new_version()
            self.engine.drafter.new_version(self._versions)


def rollout_drafter(history_bytes: int) -> SuffixDrafter:
    """The drafter of rollouts by default. Long answers of many samples are drafted from by their
    group alone, so that a thousand of eight thousand tokens take less than a gigabyte.
    """
    return SuffixDrafter(history_bytes=history_bytes, own_bytes=64 << 20)


_BYTES_PER_TOKEN = 100  # of a group's text, which is more than it usually takes
_WEIGHED = 16  # steps after which the drafter's memory is looked at again


def _in_order(prompts: int, samples: int, order: Order) -> list[tuple[int, int]]:
    """(prompt, sample) in the order in which they are to begin."""
    if order == "prompt":
        return [(at, sample) for at in range(prompts) for sample in range(samples)]
    return [(at, sample) for sample in range(samples) for at in range(prompts)]


def _rollout(prompt: int, sample: int, request: Request, version: int) -> Rollout:
    if request.error is not None:
        raise InputError(f"sample {sample} of prompt {prompt} failed: {request.error}")
    if request.finish_reason not in ("stop", "length"):
        raise StateError(f"sample {sample} of prompt {prompt} was cancelled; expected its end")
    return Rollout(
        prompt,
        sample,
        request.token_ids,
        np.array([p.processed for p in request.logprobs], np.float64),
        np.array([p.logprob for p in request.logprobs], np.float64),
        request.finish_reason,
        version,
        request.stats,
    )
