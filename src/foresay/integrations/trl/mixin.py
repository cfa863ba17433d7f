"""A mixin for GRPOTrainer: its prompts, chat templates and tools, and foresay's engine."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from trl import GRPOTrainer

from foresay.errors import InputError
from foresay.integrations.trl.difference import note_difference
from foresay.integrations.trl.sampler import Sampler
from foresay.integrations.trl.settings import Settings

__all__ = ["ForesayGRPOTrainer", "ForesayMixin"]


class ForesayMixin:
    """Put it before GRPOTrainer or a class of it: `class Mine(ForesayMixin, GRPOTrainer)`.

    foresay  Settings; None: the defaults

    Log probabilities that it gives to TRL are of the distribution that was sampled from, after
    temperature, as those of TRL with vLLM. They are compared with the trainer's own of the first
    pass over the batch, which TRL computes anyway, and the difference is logged.

    Raises: InputError for images and for a rollout_func; as `Sampler.sample`.
    """

    def __init__(self, *args: Any, foresay: Settings | None = None, **kwargs: Any) -> None:
        if kwargs.get("rollout_func") is not None:
            raise InputError("rollout_func is given; expected None: the mixin makes the rollouts")
        self.sampler = Sampler(foresay or Settings())
        self._trainers_own: Tensor | None = None
        super().__init__(*args, **kwargs)

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: Any,
        multimodal_fields: dict[str, Any],
        num_generations: int,
        has_tool_images: bool = False,
    ) -> tuple[list[list[int]], list[list[float]]]:
        if images is not None or multimodal_fields or has_tool_images:
            raise InputError("the prompts hold images; expected text only")
        answers = self.sampler.sample(self, prompt_ids, num_generations)
        return answers.token_ids, answers.logprobs

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)  # type: ignore[misc]
        self._trainers_own = found[0].detach()
        return found

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self._trainers_own = None
        loss = super()._compute_loss(model, inputs)  # type: ignore[misc]
        own = inputs.get("old_per_token_logps", self._trainers_own)
        rolled, self._trainers_own = inputs.get("sampling_per_token_logps"), None
        if own is not None and rolled is not None:
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
            note_difference(self, own, rolled, mask)
        return loss


class ForesayGRPOTrainer(ForesayMixin, GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer with foresay's rollouts."""
