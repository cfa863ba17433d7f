"""A rollout function for GRPOTrainer's own hook."""

from __future__ import annotations

from typing import Any

from foresay.arrays import check_flag
from foresay.errors import InputError
from foresay.integrations.trl.difference import note_difference, trainers_own
from foresay.integrations.trl.sampler import Sampler
from foresay.integrations.trl.settings import Settings

__all__ = ["RolloutFunction", "foresay_rollouts"]


class RolloutFunction:
    """What `foresay_rollouts` makes; TRL calls it with its prompts and itself.

    sampler  the rollouts

    Raises: InputError for images and tools; as `Sampler.sample`.
    """

    def __init__(self, settings: Settings, *, compare: bool) -> None:
        self.sampler = Sampler(settings)
        self.compare = compare

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        if trainer.tools:
            raise InputError("the trainer has tools; expected none, or ForesayGRPOTrainer")
        prompt_ids, images, fields = trainer._tokenize_prompts(prompts)
        if images is not None or fields:
            raise InputError("the prompts hold images; expected text only")
        many = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        answers = self.sampler.sample(trainer, prompt_ids, many)
        if self.compare:
            given = (prompt_ids, answers.token_ids, answers.logprobs)
            note_difference(trainer, *trainers_own(trainer, *given))
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": answers.token_ids,
            "logprobs": answers.logprobs,
        }


def foresay_rollouts(settings: Settings | None = None, *, compare: bool = True) -> RolloutFunction:
    """A function for `GRPOTrainer(rollout_func=...)`. Prompts are tokenised by TRL, chats too.

    settings  None: the defaults
    compare   log how far its log probabilities are from the trainer's own (see `difference`), for
              one more forward pass over each batch. ForesayGRPOTrainer does so for nothing

    The log probabilities that it returns are of the distribution that was sampled from, after
    temperature, as those of TRL with vLLM.

    With another trainer the function begins anew. Raises: InputError. What the function raises: see
    `RolloutFunction`.
    """
    check_flag(compare, "compare")
    return RolloutFunction(settings or Settings(), compare=compare)
