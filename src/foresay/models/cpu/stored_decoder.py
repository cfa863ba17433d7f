"""A whole decoder of the core, made from the tensors of a GGUF file as they are stored.

By architecture, since models that scale, cap or place norms differently have the same tensors. What
is not among them runs through transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay._core import BlockLayer, BlockLinear, Decoder
from foresay.errors import InputError, ModelError
from foresay.models.cpu.rope import frequencies
from foresay.models.weights import StoredModel

__all__ = ["FORMATS", "decoder_of", "runs_as_stored"]

FORMATS = frozenset(
    ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
)
"""The formats of weights that the core multiplies as they are."""

_FLOATS = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


@dataclass(frozen=True)
class _Kind:
    """How an architecture differs from Llama's.

    gelu          its activation, instead of silu
    scaled        the embedding is multiplied by the square root of its width
    after_norms   results are normed before they are added
    """

    gelu: bool = False
    scaled: bool = False
    after_norms: bool = False


_KINDS = {
    "llama": _Kind(),
    "qwen2": _Kind(),
    "qwen3": _Kind(),
    "gemma": _Kind(gelu=True, scaled=True),
    "gemma2": _Kind(gelu=True, scaled=True, after_norms=True),
    "gemma3_text": _Kind(gelu=True, scaled=True, after_norms=True),
}


def runs_as_stored(model: StoredModel) -> bool:
    """Whether `decoder_of` takes it: a GGUF file of an architecture and of formats that the core
    knows.
    """
    if model.plan is None or model.plan.config["model_type"] not in _KINDS:
        return False
    return all(
        stored.tensor.kind.name in (FORMATS if len(stored.tensor.shape) == 2 else _FLOATS)
        for stored in model.tensors.values()
    )


def decoder_of(model: StoredModel) -> Decoder:
    """The decoder. It holds its own copy of the weights.

    Raises: ModelError naming the tensor that is damaged.
    """
    assert model.plan is not None
    config, read = model.plan.config, _Reader(model)
    kind = _KINDS[config["model_type"]]
    layers = [_layer(read, config, kind, index) for index in range(config["num_hidden_layers"])]
    embedding = read.linear("model.embed_tokens")
    head = read.linear("lm_head") if "lm_head.weight" in model.tensors else None
    dims = config["head_dim"]
    turned, scale = frequencies(config["rope_theta"], dims, config["rope_scaling"])
    lists = [turned.tolist()]
    if "rope_local_base_freq" in config:
        lists.append(frequencies(config["rope_local_base_freq"], dims, None)[0].tolist())
    return Decoder(
        embedding,
        layers,
        read.numbers("model.norm.weight"),
        head,
        head_dim=dims,
        eps=config["rms_norm_eps"],
        scaling=config.get("query_pre_attn_scalar", dims) ** -0.5,
        frequencies=lists,
        activation="gelu" if kind.gelu else "silu",
        embedding_scale=config["hidden_size"] ** 0.5 if kind.scaled else 1.0,
        rope_scale=scale,
        score_cap=config.get("attn_logit_softcapping") or 0.0,
        logit_cap=config.get("final_logit_softcapping") or 0.0,
    )


def _layer(read: _Reader, config: dict[str, Any], kind: _Kind, index: int) -> BlockLayer:
    here = f"model.layers.{index}"
    own, mlp = f"{here}.self_attn", f"{here}.mlp"
    types = config.get("layer_types")
    sliding = types is not None and types[index] == "sliding_attention"
    before_mlp = "pre_feedforward_layernorm" if kind.after_norms else "post_attention_layernorm"
    after = ("post_attention_layernorm", "post_feedforward_layernorm")
    return BlockLayer(
        *(read.linear(f"{own}.{name}_proj") for name in "qkvo"),
        *(read.linear(f"{mlp}.{name}_proj") for name in ("gate", "up", "down")),
        read.numbers(f"{here}.input_layernorm.weight"),
        read.numbers(f"{here}.{before_mlp}.weight"),
        read.optional(f"{own}.q_norm.weight"),
        read.optional(f"{own}.k_norm.weight"),
        *(read.numbers(f"{here}.{name}.weight") if kind.after_norms else None for name in after),
        window=config["sliding_window"] if sliding else 0,
        rope=1 if sliding and "rope_local_base_freq" in config else 0,
    )


class _Reader:
    """The tensors of a file, in the form that the core wants."""

    def __init__(self, model: StoredModel) -> None:
        self._model = model

    def linear(self, path: str) -> BlockLinear:
        name = f"{path}.weight"
        stored = self._model.tensors[name]
        outs, ins = stored.tensor.shape
        try:
            return BlockLinear(
                stored.tensor.kind.name,
                self._model.bytes_of(name),
                outs,
                ins,
                _order(outs, stored.heads) if stored.heads else None,
                self.optional(f"{path}.bias"),
            )
        except InputError as error:
            raise ModelError(
                f"'{self._model.gguf}': the tensor '{stored.tensor.name}' cannot be used: {error}"
            ) from error

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A norm's weight as the layer multiplies by it, or a bias."""
        stored = self._model.tensors[name]
        kind = stored.tensor.kind.name
        found = self._model.bytes_of(name).view(_FLOATS[kind]).astype(np.float32)
        if not np.isfinite(found).all():
            raise ModelError(
                f"'{self._model.gguf}': the tensor '{stored.tensor.name}' holds what is no number"
            )
        return found

    def optional(self, name: str) -> NDArray[np.float32] | None:
        return self.numbers(name) if name in self._model.tensors else None


def _order(rows: int, heads: int) -> NDArray[np.int32]:
    """Which stored row each row is: those of a head were stored as (pair, half)."""
    order = np.arange(rows, dtype=np.int32).reshape(heads, rows // heads // 2, 2)
    return np.ascontiguousarray(order.swapaxes(1, 2).reshape(-1))
