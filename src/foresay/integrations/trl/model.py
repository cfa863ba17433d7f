"""The policy that is trained, as a target: a copy of the trainer's model, and its weights.

TRL replaces `forward` of the model by a function that computes log probabilities and calls the old
one. A copy of the model would take this function with it, and it would run the *trainer's* model.
So the copy gets the `forward` of its class back.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from foresay.errors import UnsupportedModel
from foresay.integrations.transformers.twin import DTYPES, copied, refuse_hooks
from foresay.integrations.trl.settings import Settings
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.replacing import tensors_of
from foresay.models.target import Target

__all__ = ["marks_of", "model_of", "target_for", "weights_of"]

_OWN = ("forward", "_original_forward")  # set on the model by TRL and accelerate


def model_of(trainer: Any) -> nn.Module:
    """The trainer's model without what accelerate has put around it.

    Raises: UnsupportedModel for one that is not whole on this device, or has adapters.
    """
    state = trainer.accelerator.state
    deepspeed = getattr(state, "deepspeed_plugin", None)
    if deepspeed is not None and deepspeed.zero_stage == 3:
        raise UnsupportedModel(
            "the trainer shards its model (DeepSpeed ZeRO stage 3); expected a model that is whole "
            "in each process, such as with ZeRO stage 2"
        )
    if getattr(state, "fsdp_plugin", None) is not None:
        raise UnsupportedModel(
            "the trainer shards its model (FSDP); expected a model that is whole in each process"
        )
    model: nn.Module = trainer.accelerator.unwrap_model(trainer.model)
    kind = type(model).__name__
    if hasattr(model, "peft_config"):
        raise UnsupportedModel(
            f"the trainer's model is a {kind} with adapters; expected a model that is trained "
            "as a whole"
        )
    devices = {tensor.device for tensor in tensors_of(model).values()}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise UnsupportedModel(f"the weights of {kind} are on {names}; expected one device")
    for name, weight in model.named_parameters():
        if isinstance(weight, DTensor) or weight.is_meta:
            raise UnsupportedModel(f"{name} is sharded or has no values; expected a dense tensor")
        if weight.dtype not in DTYPES:
            raise UnsupportedModel(f"{name} is of {weight.dtype}; expected float32 or bfloat16")
    return model


def target_for(model: nn.Module, settings: Settings) -> Target:
    """A target over a copy of the model, with its present weights and dtype. The model is left as
    it is.

    Raises: UnsupportedModel, InputError for what is no model of transformers.
    """
    policy = copied(model)
    for name in _OWN:
        vars(policy).pop(name, None)
    refuse_hooks(policy, checkpointing=True)
    policy.zero_grad(set_to_none=True)
    if settings.target is not None:
        return settings.target(policy)
    if next(policy.parameters()).device.type == "cpu":
        return target_of(policy, try_exact=False)  # nobody asks, and the first step would wait
    return plain_target_of(policy)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights by name, for `Rollouts.replace_weights`."""
    return dict(model.state_dict())


def marks_of(model: nn.Module) -> list[tuple[int, int]]:
    """Something that differs once weights were written: torch counts what is done to a tensor in
    place. Writing through `.data` is not counted; the trainer's step tells of that."""
    return [(weight.data_ptr(), weight._version) for weight in model.parameters()]
