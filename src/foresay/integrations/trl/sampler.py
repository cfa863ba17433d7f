"""A trainer's prompts through `foresay.rl.Rollouts`.

TRL repeats each prompt `num_generations` times, one after the other: a run of equal prompts is a
group. The weights are replaced in place where the trainer has changed its own. The noise of a
sample is a function of the trainer's seed, the process, the step, how many rollouts the step had
before, and the row: it repeats with the run, and never within it.
"""

from __future__ import annotations

import copy
import hashlib
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from foresay.counts import acceptance, tokens_per_step
from foresay.errors import InputError
from foresay.integrations.transformers.arguments import check_config, end_ids, params_of
from foresay.integrations.trl.model import marks_of, model_of, target_for, weights_of
from foresay.integrations.trl.settings import Settings
from foresay.rl import Rollout, Rollouts
from foresay.sampling.params import SamplingParams

__all__ = ["Answers", "Run", "Sampler", "runs_of", "seed_of"]


@dataclass(frozen=True, slots=True)
class Answers:
    """One answer per row.

    token_ids  with the token that ended it; an answer that was cut at max_completion_length has
               no EOS
    logprobs   of each token under the distribution that it was sampled from
    """

    token_ids: list[list[int]]
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one prompt, one after the other."""

    first: int
    size: int


def runs_of(prompts: Sequence[Sequence[int]], most: int) -> list[Run]:
    """The runs of equal prompts; longer ones are cut into runs of `most`, if that is more than 1:
    two neighbours in a dataset may be equal.
    """
    runs: list[Run] = []
    for row, prompt in enumerate(prompts):
        last = runs[-1] if runs else None
        if last and prompts[row - 1] == prompt and (most <= 1 or last.size < most):
            runs[-1] = Run(last.first, last.size + 1)
        else:
            runs.append(Run(row, 1))
    return runs


def seed_of(*parts: object) -> int:
    """64 bits that any of the parts changes, which may be words."""
    said = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest(), "little")


class Sampler:
    """Rollouts for one trainer, made with the first call.

    rollouts  None before that

    Raises: see `sample`. One thread at a time may use it.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rollouts: Rollouts | None = None
        self._model: weakref.ref[nn.Module] | None = None  # whose copy it samples from
        self._marks: object = None  # of its weights, when they were taken
        self._step: int | None = None
        self._calls: dict[str, int] = {}  # by mode, in this step

    def sample(
        self, trainer: Any, prompts: Sequence[Sequence[int]], num_generations: int
    ) -> Answers:
        """An answer to each row, with the trainer's sampling parameters and present weights. What
        it took is added to the trainer's metrics.

        Raises: UnsupportedModel for a model that cannot be run, InputError for an argument that
        cannot be honoured, by its name. Nothing runs then.
        """
        params, stops = _asked(trainer)
        began = time.perf_counter()
        rollouts = self._synced(trainer)
        synced = time.perf_counter()
        mode = "train" if trainer.model.training else "eval"
        call = self._calls.get(mode, 0)
        self._calls[mode] = call + 1
        rank = trainer.accelerator.process_index
        found: list[Rollout | None] = [None] * len(prompts)
        passes = 0
        runs = runs_of(prompts, num_generations)
        for size in sorted({run.size for run in runs}):
            same = [run for run in runs if run.size == size]
            seed = seed_of("trl", trainer.args.seed, rank, self._step, mode, call, size)
            listed = [prompts[run.first] for run in same]
            groups = rollouts.sample(listed, params, samples=size, seed=seed, stops=stops)
            passes += 0 if rollouts.stats is None else rollouts.stats.passes
            for run, group in zip(same, groups, strict=True):
                found[run.first : run.first + size] = group
        done = [one for one in found if one is not None]
        seconds = {"sync_seconds": synced - began, "seconds": time.perf_counter() - synced}
        _note(trainer, mode, done, {"target_passes": float(passes), **seconds})
        return Answers([one.token_ids for one in done], [one.logprobs.tolist() for one in done])

    def _synced(self, trainer: Any) -> Rollouts:
        """The rollouts, with the weights that the trainer has now."""
        model = model_of(trainer)
        marks, step = marks_of(model), trainer.state.global_step
        if self.rollouts is None or self._model is None or self._model() is not model:
            self.rollouts, self._step = None, None  # before the copy, so that there are not two
            given = self.settings
            self.rollouts = Rollouts(
                target_for(model, given),
                given.drafter,
                given.policy,
                memory=given.memory,
                max_running=given.max_running,
                max_rows=given.max_rows,
            )
            self._model = weakref.ref(model)
        elif step != self._step or marks != self._marks:
            self.rollouts.replace_weights(weights_of(model))
        self._marks = marks
        if step != self._step:
            self._step, self._calls = step, {}
        return self.rollouts


def _asked(trainer: Any) -> tuple[SamplingParams, tuple[int, ...]]:
    """The sampling parameters and the tokens that end an answer.

    Raises: InputError.
    """
    for name in ("use_vllm", "use_transformers_continuous_batching"):
        if getattr(trainer, name):
            raise InputError(f"{name} is True; expected False with foresay's rollouts")
    config = copy.copy(trainer.generation_config)
    check_config(config, "foresay's rollouts")
    if config.stop_strings:
        raise InputError(
            f"the GenerationConfig's stop_strings are {config.stop_strings!r}; expected None with "
            "foresay's rollouts, which know token ids only"
        )
    if (config.num_return_sequences or 1) != 1:
        raise InputError(
            f"the GenerationConfig's num_return_sequences is {config.num_return_sequences}; "
            "expected 1: the trainer repeats its prompts"
        )
    config.max_length, config.min_length = config.max_new_tokens, 0
    return params_of(config, 0), end_ids(config)


def _note(trainer: Any, mode: str, done: Sequence[Rollout], more: dict[str, float]) -> None:
    """Log what the rollouts of this process took."""
    tokens = sum(one.stats.tokens for one in done)
    drafted = sum(one.stats.drafted for one in done)
    figures = {
        "tokens_per_step": tokens_per_step(tokens, sum(one.stats.steps for one in done)),
        **more,
    }
    if drafted:
        figures["acceptance"] = acceptance(sum(one.stats.accepted for one in done), drafted)
    for name, value in figures.items():
        trainer._metrics[mode][f"foresay/{name}"].append(value)
