"""Whole decoder layers in one call of the core, for models of the usual architecture.

Between two products of a layer there are a dozen small operations, each of which waits for Python;
in decode they take as long as the products. The results stay the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from foresay import _core
from foresay.models.attention import current
from foresay.models.cpu.linears import PackedLinear
from foresay.models.cpu.norms import CoreNorm

__all__ = ["CoreDecoderLayer", "fuse_layers", "fusible", "restore"]

# By name, since layers that scale, clip or place norms differently have the same parts.
_KNOWN = frozenset(
    f"{name}DecoderLayer" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Ministral", "Arcee")
)
_LAYERS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}


class CoreDecoderLayer(nn.Module):
    """A decoder layer that the core computes; it has the parts of the layer that it replaces.

    Mutates: the step's texts, as attention does. Raises: UnsupportedModel outside a pass;
    InputError for rows of another width or dtype.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer_idx: int = layer.self_attn.layer_idx
        self.scaling: float = layer.self_attn.scaling
        for name, part in layer.named_children():
            self.add_module(name, part)
        self.core = self._built()

    def refresh(self) -> None:
        """Take over parts that have been replaced, or norms whose weights have.

        Valid until: the next change of a part.
        """
        self.core = self._built()

    def _built(self) -> _core.DecoderLayer:
        attention: Any = self.self_attn
        mlp: Any = self.mlp
        return _core.DecoderLayer(
            attention.q_proj.core,
            attention.k_proj.core,
            attention.v_proj.core,
            attention.o_proj.core,
            mlp.gate_proj.core,
            mlp.up_proj.core,
            mlp.down_proj.core,
            _scale(self.input_layernorm),
            _scale(self.post_attention_layernorm),
            attention.head_dim,
            _scale(attention.q_norm) if hasattr(attention, "q_norm") else None,
            _scale(attention.k_norm) if hasattr(attention, "k_norm") else None,
        )

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], **others: Any
    ) -> Tensor:
        run = current()
        rows = hidden_states.clone(memory_format=torch.contiguous_format)
        if run.step is None:
            return rows
        visible = run.layers[self.layer_idx]
        cos, sin = position_embeddings
        self.core.forward(
            run.step,
            self.layer_idx,
            rows,
            cos.contiguous(),
            sin.contiguous(),
            self.scaling,
            visible.window,
            visible.chunk,
            run.threads,
        )
        return rows


def fusible(model: nn.Module) -> dict[str, nn.Module]:
    """The decoder layers that the core can compute, by path."""
    return {path: module for path, module in model.named_modules() if _fits(module)}


def fuse_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Replace the decoder layers that the core can compute; returns the old ones, by path, for
    `restore`.
    """
    found = fusible(model)
    for path, module in found.items():
        model.set_submodule(path, CoreDecoderLayer(module))
    return found


def restore(model: nn.Module, layers: dict[str, nn.Module]) -> None:
    """Undo `fuse_layers`."""
    for path, module in layers.items():
        model.set_submodule(path, module)


def _fits(layer: nn.Module) -> bool:
    if (
        type(layer).__name__ not in _KNOWN
        or {name for name, _ in layer.named_children()} != _LAYERS
    ):
        return False
    attention = dict(layer.self_attn.named_children())  # type: ignore[union-attr]
    mlp = dict(layer.mlp.named_children())  # type: ignore[union-attr]
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [part for name, part in attention.items() if name in _HEAD_NORMS]
    linears = [part for part in (*attention.values(), *mlp.values()) if type(part) is PackedLinear]
    return (
        set(attention) in (_ATTENTION, _ATTENTION | _HEAD_NORMS)
        and set(mlp) == _MLP
        and isinstance(mlp["act_fn"], (nn.SiLU, SiLUActivation))
        and all(type(norm) is CoreNorm for norm in norms)
        and len(linears) == len(_ATTENTION) + len(_MLP) - 1
        and all(linear.core is not None for linear in linears)
    )


def _scale(norm: Any) -> tuple[Tensor, float]:
    return norm.weight.detach(), norm.eps
