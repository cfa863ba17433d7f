"""The multi-token-prediction (MTP) module that some models have in their own files.

It is one more decoder layer, over the last hidden state of a token and the embedding of the next
one, and predicts the token after that. transformers leaves these weights out when it loads a model,
but has the module: `MtpLayer`, around the family's own decoder layer. Here its weights are read by
their published names.

    deepseek_v3, glm4_moe  the layer behind the last one: `model.layers.<layers>.…`, with `enorm`,
                           `hnorm`, `eh_proj` and `shared_head.norm` beside the layer's own weights
    mellum                 `mtp.layers.0.…`, with `mtp.fc`, `mtp.norm` and `mtp.pre_fc_norm_…`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.load_transformers import LOADING
from foresay.models.weights.folder import ExpectedTensors, config_of, tensors_of
from foresay.models.weights.settings import Settings
from foresay.models.weights.stored import StoredModel

__all__ = ["FAMILIES", "MtpModule", "read_mtp"]

_BEHIND = {"mtp_block.": "", "post_norm.": "shared_head.norm."}
_BESIDE = {
    "mtp_block.": "layers.0.",
    "post_norm.": "norm.",
    "eh_proj.": "fc.",
    "enorm.": "pre_fc_norm_embedding.",
    "hnorm.": "pre_fc_norm_hidden.",
}
FAMILIES: dict[str, tuple[str, Mapping[str, str]]] = {
    "deepseek_v3": ("model.layers.{layers}.", _BEHIND),
    "glm4_moe": ("model.layers.{layers}.", _BEHIND),
    "mellum": ("mtp.", _BESIDE),
}
"""By model type: how the names of the weights begin, and what beginnings of transformers' names
are called there."""

_SHARED = ("embed_tokens.weight", "shared_head.head.weight")  # copies of the model's own tables
_UP, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"  # of all experts in one tensor

_MOST_LAYERS = 1000  # each is made, without weights


@dataclass(frozen=True, slots=True, eq=False)
class MtpModule:
    """A module with its weights.

    layer   transformers' MtpLayer: (embeddings, hidden states, …) -> the next hidden states, which
            the model's output embedding makes logits of
    rotary  position embeddings, called with (rows, position_ids=…, **rope)
    window  how many rows a row sees, itself included; 0: all before it
    """

    layer: Any
    rotary: nn.Module
    rope: Mapping[str, str]
    window: int


def read_mtp(
    model: StoredModel, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> MtpModule:
    """The MTP module in a model's folder.

    Raises: UnsupportedModel for a family whose module is not known, or more modules than one;
    ModelError naming the tensor that is missing, damaged, too much or of another shape.
    """
    family, prefix = _family(model)
    folder = model.folder
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors_of(folder).items()
        if name.startswith(prefix)
    }
    if not found:
        raise ModelError(
            f"the {family} model in '{folder}' has no tensor '{prefix}…', so it came without its "
            "MTP head; expected one with it, as it was published"
        )
    made, rotary = _skeleton(folder, family)
    layer, config = made.layers[0], made.config
    tensors = ExpectedTensors(folder, found, "an MTP head", prefix)
    weights = _weights(tensors, layer, FAMILIES[family][1])
    kept = {name: value.to(_type_of(name, dtype)) for name, value in weights.items()}
    layer.load_state_dict(kept, assign=True)
    kind = (getattr(config, "layer_types", None) or ["full_attention"])[0]
    return MtpModule(
        layer.to(device).train(False).requires_grad_(False),
        rotary.to(device),
        {"layer_type": kind} if made.has_per_layer_rope else {},
        int(config.sliding_window) if kind == "sliding_attention" else 0,
    )


def _family(model: StoredModel) -> tuple[str, str]:
    """The model's type, and how the names of its module's weights begin."""
    known = ", ".join(FAMILIES)
    if model.gguf is not None:
        raise UnsupportedModel(
            f"'{model.gguf}' is a GGUF file, whose MTP head cannot be read; expected a folder of "
            f"safetensors of {known}"
        )
    config = config_of(model.folder)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UnsupportedModel(
            f"the model in '{model.folder}' is of type {family!r:.60}, for which no MTP head is "
            f"known; expected {known}"
        )
    settings = Settings(config, f"'{model.folder}'", "'{}' of config.json")
    layers = settings.whole("num_hidden_layers", most=_MOST_LAYERS)
    return family, FAMILIES[family][0].format(layers=layers)


def _skeleton(folder: Path, family: str) -> tuple[Any, nn.Module]:
    """transformers' MtpModel without weights, and the position embeddings."""
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError as error:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no MtpModel; expected one with it: 5.22"
        ) from error
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        count = getattr(config, "num_mtp_layers", None)
        if count != 1:
            raise UnsupportedModel(
                f"config.json of the {family} model in '{folder}' names {count} MTP modules "
                "(num_nextn_predict_layers); expected 1"
            )
        with LOADING, torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config)
            made: Any = MtpModel(whole, count)
        # The layers have this very config. Padded batches of trees need a mask of our own, which
        # sdpa takes as it is.
        made.config._attn_implementation = "sdpa"
        made.config._experts_implementation = "eager"
        rotary: nn.Module = type(made.rotary_emb)(config=made.config)
    except ModelError:
        raise
    except Exception as error:  # what transformers makes of a strange config is no closed list
        said = " ".join(str(error).split()) or repr(error)
        raise ModelError(
            f"no MTP module can be made for the {family} model in '{folder}': {said:.200}"
        ) from error
    return made, rotary


def _weights(
    tensors: ExpectedTensors, layer: nn.Module, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """The values of the layer's weights by its own names."""

    def read(name: str, shape: Sequence[int]) -> Tensor:
        return torch.from_numpy(tensors.take(name, shape).rows(0, shape[0]))

    def of_experts(start: str, parts: Sequence[str], weight: Tensor) -> Tensor:
        """Of all experts in one tensor; parts of one expert below each other."""
        size = (weight.shape[1] // len(parts), weight.shape[2])
        experts = (f"{start}mlp.experts.{expert}" for expert in range(len(weight)))
        return torch.stack(
            [
                torch.cat([read(f"{expert}.{part}_proj.weight", size) for part in parts])
                for expert in experts
            ]
        )

    weights: dict[str, Tensor] = {}
    for own, weight in layer.state_dict().items():
        name = own
        for before, after in names.items():
            if own.startswith(before):
                name = after + own.removeprefix(before)
        if name.endswith(_UP):
            weights[own] = of_experts(name.removesuffix(_UP), ("gate", "up"), weight)
        elif name.endswith(_DOWN):
            weights[own] = of_experts(name.removesuffix(_DOWN), ("down",), weight)
        else:
            weights[own] = read(name, weight.shape)
    block = type(getattr(layer, "mtp_block", layer)).__name__
    tensors.refuse_others(_SHARED, f"those of {block}")
    return weights


def _type_of(name: str, dtype: torch.dtype) -> torch.dtype:
    """Routers choose by this sum, which must not be rounded."""
    return torch.float32 if name.endswith("e_score_correction_bias") else dtype
