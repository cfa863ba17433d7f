"""Tiny models in folders with an MTP module, under the names that are published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import MtpModel

from models import zoo

_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHAPES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {},
    "glm4_moe": {
        **_EXPERTS,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "partial_rotary_factor": 0.5,
    },
    "mellum": {
        **_EXPERTS,
        "num_experts": 4,
        "num_mtp_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": zoo.WINDOW,
    },
}
"""Every family that is supported."""


def make(family: str, **changes: Any) -> PreTrainedModel:
    """A target, the same in every call."""
    return zoo.make(family, **{**SHAPES[family], **changes})


def random_module(model: PreTrainedModel, seed: int = 1) -> dict[str, Tensor]:
    """Weights of an MTP module by transformers' names, wide enough to matter."""
    layer, draw = MtpModel(model, 1).layers[0], torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in sorted(layer.state_dict().items()):
        noise = torch.randn(weight.shape, generator=draw)
        wide = 1.5 * weight.shape[-1] ** -0.5
        weights[name] = noise * wide if weight.ndim > 1 else 1 + 0.2 * noise
    return weights


def published(family: str, weights: dict[str, Tensor], layers: int = 2) -> dict[str, Tensor]:
    """The same under published names: each expert by itself."""
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name.endswith("experts.gate_up_proj"):
            start = name.removesuffix("gate_up_proj")
            for expert, both in enumerate(weight):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    found[f"{start}{expert}.{part}_proj.weight"] = half
        elif name.endswith("experts.down_proj"):
            start = name.removesuffix("down_proj")
            for expert, down in enumerate(weight):
                found[f"{start}{expert}.down_proj.weight"] = down
        else:
            found[name] = weight
    return {_published(family, name, layers): w.contiguous() for name, w in found.items()}


def _published(family: str, name: str, layers: int) -> str:
    if family == "mellum":
        given = {
            "eh_proj.weight": "mtp.fc.weight",
            "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
            "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
            "post_norm.weight": "mtp.norm.weight",
        }
        return given.get(name) or name.replace("mtp_block.", "mtp.layers.0.")
    name = name.replace("mtp_block.", "").replace("post_norm.", "shared_head.norm.")
    return f"model.layers.{layers}.{name}"


def save(folder: Path, model: PreTrainedModel, module: dict[str, Tensor]) -> Path:
    """The model with its module, as one would download it."""
    family = model.config.model_type
    model.save_pretrained(folder)
    change(folder, published(family, module))
    if family != "mellum":  # published models repeat their tables there
        given = load_file(folder / "model.safetensors")
        start = f"model.layers.{model.config.num_hidden_layers}."
        change(
            folder,
            {
                f"{start}embed_tokens.weight": given["model.embed_tokens.weight"].clone(),
                f"{start}shared_head.head.weight": given["lm_head.weight"].clone(),
            },
        )
    return folder


def change(folder: Path, tensors: Mapping[str, Tensor | None]) -> None:
    """Put tensors into a folder's file; None takes one out."""
    file = folder / "model.safetensors"
    every = {**load_file(file), **tensors}
    save_file({n: t for n, t in every.items() if t is not None}, file, {"format": "pt"})


def change_config(folder: Path, **entries: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))
