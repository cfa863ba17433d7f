"""A whole decoder of the core, from a configuration and a source of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay._core import BlockLayer, BlockLinear, Decoder, Kv
from foresay.errors import InputError, ModelError
from foresay.models.decoder_config import DecoderConfig

__all__ = ["LayeredDecoder", "Linear", "Weights", "make_decoder"]


_Kind: TypeAlias = tuple[object, ...]  # the formats of a layer's matrices, its window, its rope


class Linear(NamedTuple):
    """A linear layer that a decoder needs."""

    path: str
    outs: int
    ins: int
    bias: bool = False


class Weights(Protocol):
    """The weights of a model, by the names of transformers.

    Raises: ModelError naming the tensor that is missing, damaged or of another shape.
    """

    def linears(self, wanted: Sequence[Linear]) -> list[BlockLinear]:
        """These linear layers."""
        ...

    def norm(self, path: str, width: int) -> NDArray[np.float32]:
        """What the norm of that path multiplies by."""
        ...


class LayeredDecoder(Decoder):
    """A decoder that knows its layers, so that another can be made of some of them. Both share the
    matrices.

    kinds   of each layer, in which it differs from others: the formats of its matrices, its
            window, its frequencies; their shapes are the same
    """

    def __init__(
        self,
        config: DecoderConfig,
        embedding: BlockLinear,
        layers: Sequence[BlockLayer],
        kinds: Sequence[_Kind],
        norm: NDArray[np.float32],
        head: BlockLinear | None,
    ) -> None:
        super().__init__(
            embedding,
            layers,
            norm,
            head,
            head_dim=config.head_dim,
            eps=config.eps,
            scaling=config.scaling,
            frequencies=[list(each) for each in config.frequencies],
            activation="gelu" if config.kind.gelu else "silu",
            embedding_scale=config.width**0.5 if config.kind.scaled else 1.0,
            rope_scale=config.rope_scale,
            score_cap=config.score_cap,
            logit_cap=config.logit_cap,
        )
        self.kinds = kinds
        self._parts = config, embedding, layers, norm, head

    def only(self, kept: Sequence[int]) -> LayeredDecoder:
        """With these layers alone, in this order."""
        config, embedding, layers, norm, head = self._parts
        kinds = [self.kinds[at] for at in kept]
        return LayeredDecoder(config, embedding, [layers[at] for at in kept], kinds, norm, head)

    def one_of_each_kind(self) -> LayeredDecoder:
        """With the first layer of each kind alone."""
        return self.only([self.kinds.index(kind) for kind in dict.fromkeys(self.kinds)])


def make_decoder(config: DecoderConfig, weights: Weights, where: object) -> LayeredDecoder:
    """The decoder of the model at `where`.

    Raises: ModelError saying which sizes cannot be used; what the weights raise.
    """
    try:
        decoder = _made(config, weights)
        Kv(decoder.shapes, "bfloat16")  # which has limits of its own
    except InputError as error:
        raise ModelError(f"'{where}' has sizes that cannot be used: {error}") from error
    return decoder


def _made(config: DecoderConfig, weights: Weights) -> LayeredDecoder:
    made = [_layer(weights, config, index) for index in range(config.layers)]
    shape = (config.vocabulary, config.width)
    paths = ["model.embed_tokens", *([] if config.tied else ["lm_head"])]
    embedding, *head = weights.linears([Linear(path, *shape) for path in paths])
    return LayeredDecoder(
        config,
        embedding,
        [layer for layer, _ in made],
        [kind for _, kind in made],
        weights.norm("model.norm", config.width),
        head[0] if head else None,
    )


def _layer(weights: Weights, config: DecoderConfig, index: int) -> tuple[BlockLayer, _Kind]:
    kind, width, inner = config.kind, config.width, config.inner
    queries, keys = config.heads * config.head_dim, config.key_heads * config.head_dim
    here = f"model.layers.{index}"
    own, mlp = f"{here}.self_attn", f"{here}.mlp"
    before_mlp = "pre_feedforward_layernorm" if kind.after_norms else "post_attention_layernorm"

    def norm(name: str, width: int, needed: bool) -> NDArray[np.float32] | None:
        return weights.norm(f"{here}.{name}", width) if needed else None

    wanted = [
        Linear(f"{own}.q_proj", queries, width, config.query_bias),
        Linear(f"{own}.k_proj", keys, width, config.query_bias),
        Linear(f"{own}.v_proj", keys, width, config.query_bias),
        Linear(f"{own}.o_proj", width, queries, config.out_bias),
        Linear(f"{mlp}.gate_proj", inner, width, config.mlp_bias),
        Linear(f"{mlp}.up_proj", inner, width, config.mlp_bias),
        Linear(f"{mlp}.down_proj", width, inner, config.mlp_bias),
    ]
    linears = weights.linears(wanted)
    window, rope = config.windows[index], config.ropes[index]
    query, key, value, out, gate, up, down = linears
    layer = BlockLayer(
        query,
        key,
        value,
        out,
        gate,
        up,
        down,
        weights.norm(f"{here}.input_layernorm", width),
        weights.norm(f"{here}.{before_mlp}", width),
        norm("self_attn.q_norm", config.head_dim, kind.head_norms),
        norm("self_attn.k_norm", config.head_dim, kind.head_norms),
        norm("post_attention_layernorm", width, kind.after_norms),
        norm("post_feedforward_layernorm", width, kind.after_norms),
        window=window,
        rope=rope,
    )
    return layer, (*(one.format for one in linears), window, rope)
