"""A decoder on a GPU: its weights by name, and one pass over the rows of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.decoder_config import DecoderConfig
from foresay.models.gpu import elementwise
from foresay.models.gpu.attention import BLOCK, Heads, attention
from foresay.models.gpu.chained import chained
from foresay.models.gpu.inputs import StepInputs
from foresay.models.gpu.products import Matrix, gated_product, matrix_of, product
from foresay.models.gpu.streaming import StreamedLayers
from foresay.models.gpu.workspace import Workspace
from foresay.models.visibility import Visible

__all__ = ["Decoder", "DecoderLayer", "heads_of", "layer_of"]

_GROUPS = range(1, 17)  # query heads that share a head of keys
_WIDTHS = range(1, 257)  # of a head


@dataclass(frozen=True, slots=True, eq=False)
class DecoderLayer:
    """The weights of one layer, used where they are.

    qkv     queries, keys and values; out, gate, up, down: as the field calls them
    biases  of queries, keys and values; out_bias, of the output
    norms   before attention and before the MLP; after_norms: of their results, head_norms: of
            queries and keys
    """

    qkv: Matrix
    out: Matrix
    gate: Tensor
    up: Tensor
    down: Matrix
    norms: tuple[Tensor, Tensor]
    biases: tuple[Tensor, Tensor, Tensor] | None = None
    out_bias: Tensor | None = None
    head_norms: tuple[Tensor, Tensor] | None = None
    after_norms: tuple[Tensor, Tensor] | None = None


def heads_of(config: DecoderConfig, where: str) -> Heads:
    """The heads of a model.

    Raises: UnsupportedModel for heads that the kernels do not take.
    """
    group, rest = divmod(config.heads, config.key_heads)
    if rest or group not in _GROUPS or config.head_dim not in _WIDTHS:
        raise UnsupportedModel(
            f"{where} has {config.heads} query heads, {config.key_heads} of keys, "
            f"{config.head_dim} wide; expected 1 to 16 query heads for each of keys, at most 256"
        )
    padded = max(triton.next_power_of_2(config.head_dim), 16)
    return Heads(config.heads, config.key_heads, config.head_dim, padded)


def layer_of(tensors: Mapping[str, Tensor], config: DecoderConfig, number: int) -> DecoderLayer:
    """The layer of that number, of tensors by transformers' names.

    Raises: ModelError for a tensor that is missing or has another shape; UnsupportedModel for a
    bias that the kernels do not add.
    """
    kind, width, inner = config.kind, config.width, config.inner
    queries, keys = config.heads * config.head_dim, config.key_heads * config.head_dim
    here = f"model.layers.{number}"
    own, mlp = f"{here}.self_attn", f"{here}.mlp"
    if config.mlp_bias:
        raise UnsupportedModel(f"{mlp} has biases; expected none")

    def take(name: str, *shape: int) -> Tensor:
        return tensor_of(tensors, name, *shape)

    if kind.fused:
        qkv = take(f"{own}.qkv_proj.weight", queries + 2 * keys, width).split([queries, keys, keys])
        gate, up = take(f"{mlp}.gate_up_proj.weight", 2 * inner, width).split([inner, inner])
    else:
        sizes = (("q", queries), ("k", keys), ("v", keys))
        qkv = tuple(take(f"{own}.{name}_proj.weight", size, width) for name, size in sizes)
        gate = take(f"{mlp}.gate_proj.weight", inner, width)
        up = take(f"{mlp}.up_proj.weight", inner, width)
    before_mlp = "pre_feedforward_layernorm" if kind.after_norms else "post_attention_layernorm"
    biases = head_norms = after_norms = None
    if config.query_bias:
        biases = (
            take(f"{own}.q_proj.bias", queries),
            take(f"{own}.k_proj.bias", keys),
            take(f"{own}.v_proj.bias", keys),
        )
    if kind.head_norms:
        head_norms = (
            take(f"{own}.q_norm.weight", config.head_dim),
            take(f"{own}.k_norm.weight", config.head_dim),
        )
    if kind.after_norms:
        after_norms = (
            take(f"{here}.post_attention_layernorm.weight", width),
            take(f"{here}.post_feedforward_layernorm.weight", width),
        )
    return DecoderLayer(
        matrix_of(*qkv),
        matrix_of(take(f"{own}.o_proj.weight", width, queries)),
        gate,
        up,
        matrix_of(take(f"{mlp}.down_proj.weight", width, inner)),
        (
            take(f"{here}.input_layernorm.weight", width),
            take(f"{here}.{before_mlp}.weight", width),
        ),
        biases,
        take(f"{own}.o_proj.bias", width) if config.out_bias else None,
        head_norms,
        after_norms,
    )


def tensor_of(tensors: Mapping[str, Tensor], name: str, *shape: int) -> Tensor:
    """The tensor of that name.

    Raises: ModelError for one that is missing, has another shape, or does not lie row by row.
    """
    tensor = tensors.get(name)
    if tensor is None:
        raise ModelError(f"the model has no tensor '{name}'")
    if tuple(tensor.shape) != shape or not tensor.is_contiguous():
        raise ModelError(
            f"the tensor '{name}' has shape {list(tensor.shape)}; expected {list(shape)}, row by "
            "row in memory"
        )
    return tensor


class Decoder:
    """The pass of a decoder over the rows of a step.

    layers     of the model
    visible    what each of them attends to
    embedding, norm, head    before the layers and behind them
    streamed   where layers come from that are not on the device; None: all are
    """

    def __init__(
        self,
        config: DecoderConfig,
        heads: Heads,
        layers: Sequence[DecoderLayer],
        visible: Sequence[Visible],
        embedding: Tensor,
        norm: Tensor,
        head: Tensor,
        streamed: StreamedLayers | None = None,
    ) -> None:
        self.config = config
        self.heads = heads
        self.layers = layers
        self.streamed = streamed
        self.visible = visible
        self.embedding = embedding
        self.norm = norm
        self.head = matrix_of(head, whole=True)
        positions = torch.arange(config.context, dtype=torch.float32, device=norm.device)
        angles = [
            positions[:, None] * torch.tensor(each, device=norm.device)[None]
            for each in config.frequencies
        ]
        self._turns = [(a.cos() * config.rope_scale, a.sin() * config.rope_scale) for a in angles]

    def largest_parts(self) -> int:
        """Numbers of a row's products that are added later, at most."""
        return max(
            matrix.parts * matrix.outputs
            for layer in self.layers
            for matrix in (layer.qkv, layer.out, layer.down)
        )

    def run(
        self,
        inputs: StepInputs,
        space: Workspace,
        pool: Tensor,
        kept: Sequence[int],
        hidden: Sequence[int] = (),
    ) -> None:
        """Compute the rows of a step: their last hidden states, normed, are in `space.normed`; what
        goes into the layers `hidden` is in `space.hidden`.

        pool  [layers, 2, pages, key heads, BLOCK, padded]: keys and values of all texts
        kept  the numbers of the layers that run

        It writes into the workspace, and into the pool at the rows' slots.
        """
        config, rows, eps = self.config, inputs.row_capacity, self.config.eps
        padded = triton.next_power_of_2(config.width)
        warps = 16  # always: a sum's order depends on it
        above, how = config.kind.above_one, chained(pool.device)
        first = self.layers[kept[0]]
        elementwise.embed[(rows,)](
            inputs.tokens, self.embedding, space.residual, first.norms[0], space.normed,
            config.width, eps, config.width**0.5 if config.kind.scaled else 1.0,
            padded=padded, above_one=above, num_warps=warps, **{**how, "launch_pdl": False},
        )  # fmt: skip

        def add(matrix: Matrix, bias: Tensor | None, after: Tensor | None, norm: Tensor) -> None:
            parts = space.products(matrix)
            elementwise.add_and_norm[(rows,)](
                parts, rows * matrix.outputs, norm if bias is None else bias,
                norm if after is None else after, space.residual, norm, space.normed,
                config.width, eps, parts=matrix.parts, padded=padded, biased=bias is not None,
                after=after is not None, above_one=above, num_warps=warps, **how,
            )  # fmt: skip

        for place, number in enumerate(kept):
            layer = self.layers[number]
            if self.streamed is not None:
                self.streamed.layer(number)
            for at, wanted in enumerate(hidden):
                if wanted == number:
                    space.hidden[at].copy_(space.residual)
            product(space.normed, layer.qkv, space.products(layer.qkv))
            self._rotate(layer, inputs, space, pool[number], config.ropes[number])
            attention(
                space.query, pool[number, 0], pool[number, 1], inputs, space.results, space.states,
                space.attended, self.heads, scaling=config.scaling,
                window=self.visible[number].window, cap=config.score_cap,
            )  # fmt: skip
            product(space.attended, layer.out, space.products(layer.out))
            after = layer.after_norms
            add(layer.out, layer.out_bias, after and after[0], layer.norms[1])
            gated_product(space.normed, layer.gate, layer.up, space.gated, gelu=config.kind.gelu)
            product(space.gated, layer.down, space.products(layer.down))
            last = place + 1 == len(kept)
            norm = self.norm if last else self.layers[kept[place + 1]].norms[0]
            add(layer.down, None, after and after[1], norm)
        if self.streamed is not None:
            self.streamed.release()

    def _rotate(
        self,
        layer: DecoderLayer,
        inputs: StepInputs,
        space: Workspace,
        pool: Tensor,
        rope: int,
    ) -> None:
        heads, (cosines, sines) = self.heads, self._turns[rope]
        parts = space.products(layer.qkv)
        biases: Any = layer.biases or (parts, parts, parts)
        norms: Any = layer.head_norms or (parts, parts)
        across = heads.queries + 2 * heads.keys
        elementwise.rotate_and_store[(inputs.row_capacity, across)](
            parts, inputs.row_capacity * layer.qkv.outputs, *biases, *norms,
            cosines, sines, inputs.positions, inputs.slots, space.query, pool[0], pool[1],
            self.config.eps, parts=layer.qkv.parts,
            queries=heads.queries, key_heads=heads.keys, width=heads.width,
            turned=2 * cosines.shape[1], padded=heads.padded, block=BLOCK,
            biased=layer.biases is not None, normed=layer.head_norms is not None,
            above_one=self.config.kind.above_one, num_warps=1, **chained(pool.device),
        )  # fmt: skip

    def logits(self, states: Tensor) -> Tensor:
        """float32 [rows, vocabulary] of last hidden states, normed."""
        found: Tensor = states.new_empty(len(states), self.head.outputs, dtype=torch.float32)
        if len(states):
            self.write_logits(states, found)
        return found

    def write_logits(self, states: Tensor, out: Tensor) -> None:
        """The same into `out`."""
        product(states, self.head, out[None])
        cap = self.config.logit_cap
        if cap:
            out.div_(cap).tanh_().mul_(cap)
