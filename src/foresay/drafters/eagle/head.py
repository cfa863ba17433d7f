"""The head: one decoder layer in the manner of EAGLE-3.

A row of its input is a pair: a feature, and the embedding of the token that the target chose from
it. Its output predicts the next token, and is itself the feature of the next row. So the head goes
on by itself where the target's features end.

The names of the weights are those of published heads (`midlayer.self_attn.q_proj.weight`, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention, silu

from foresay.drafters.head.head import Kept
from foresay.models.weights.rope import frequencies

__all__ = ["EagleHead", "HeadShape", "weights_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The sizes of a head.

    features  width of the target's features
    hidden    width of the head, and of the embeddings
    layers    the target's layers whose inputs, side by side, are the features; (): its last hidden
              state
    drafted   tokens that it can draft, at most the vocabulary
    own_output, own_embedding  whether it brings these tables; else they are the target's
    """

    features: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    drafted: int
    eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    layers: tuple[int, ...] = ()
    own_output: bool = False
    own_embedding: bool = False


def weights_of(shape: HeadShape) -> dict[str, tuple[int, ...]]:
    """The weights of a head of these sizes by name, without making one: sizes may be wrong."""
    wide, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, between = shape.hidden, shape.intermediate
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (wide, 2 * hidden),
        "self_attn.k_proj": (keys, 2 * hidden),
        "self_attn.v_proj": (keys, 2 * hidden),
        "self_attn.o_proj": (hidden, wide),
        "mlp.gate_proj": (between, hidden),
        "mlp.up_proj": (between, hidden),
        "mlp.down_proj": (hidden, between),
        "hidden_norm": (hidden,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {
        "fc.weight": (hidden, shape.features),
        **{f"midlayer.{name}.weight": size for name, size in layer.items()},
        "norm.weight": (hidden,),
    }


class _Attention(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        wide, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(2 * shape.hidden, wide, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(wide, shape.hidden, bias=False)


class _Mlp(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.down_proj(silu(self.gate_proj(rows)) * self.up_proj(rows))
        return found


class _Layer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.self_attn = _Attention(shape)
        self.mlp = _Mlp(shape)
        self.hidden_norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)


class EagleHead(nn.Module):
    """A head with the tables of its target.

    tokens     int64[drafted]: the token id of each row of the output
    output     [drafted, hidden]: its own, or these rows of the target's output embedding
    embedding  [vocabulary, hidden]: its own, or the target's
    """

    window = 0
    tokens: Tensor
    output: Tensor
    embedding: Tensor
    frequencies: Tensor

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.features, shape.hidden, bias=False)
        self.midlayer = _Layer(shape)
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        found, self._rope_scale = frequencies(shape.rope_theta, shape.head_dim, shape.rope_scaling)
        # Tables are no parameters: they are not trained, and not saved where they are the target's.
        self.register_buffer("frequencies", torch.from_numpy(found), persistent=False)
        self.register_buffer("tokens", torch.arange(shape.drafted), persistent=False)
        for name, rows in (("output", shape.drafted), ("embedding", shape.vocabulary)):
            self.register_buffer(name, torch.zeros(rows, shape.hidden), persistent=False)

    @property
    def width(self) -> int:
        """Of the target's features."""
        return self.shape.features

    @property
    def vocabulary(self) -> int:
        """Tokens that it can read."""
        return self.shape.vocabulary

    def rows(self, features: Tensor) -> Tensor:
        """Rows [B, R, hidden] of the target's features [B, R, width]."""
        rows: Tensor = self.fc(features.to(self.fc.weight.dtype))
        return rows

    def room(self, texts: int, places: int) -> Kept:
        """For `places` rows of each text."""
        size = (texts, self.shape.kv_heads, places, self.shape.head_dim)
        return Kept(self.fc.weight.new_zeros(size), self.fc.weight.new_zeros(size))

    def read(
        self, rows: Tensor, tokens: Tensor, positions: Tensor, kept: Kept, visible: Tensor
    ) -> Tensor:
        """The output after rows with their tokens and positions, int64[B, R]."""
        query, key, value = self.project(rows, self.embedded(tokens), positions)
        keys, values = kept.update(key, value)
        return self.complete(rows, self.attend(query, keys, values, visible))

    def embedded(self, tokens: Tensor) -> Tensor:
        """The embeddings of token ids."""
        return embedding(tokens, self.embedding).to(self.fc.weight.dtype)

    def project(
        self, rows: Tensor, embeddings: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, heads, R, width] of rows [B, R, hidden], keys and values with their heads."""
        shape, layer = self.shape, self.midlayer
        both = torch.cat([layer.input_layernorm(embeddings), layer.hidden_norm(rows)], -1)
        attention = layer.self_attn
        found = []
        for linear_, heads in (
            (attention.q_proj, shape.heads),
            (attention.k_proj, shape.kv_heads),
            (attention.v_proj, shape.kv_heads),
        ):
            found.append(linear_(both).unflatten(-1, (heads, shape.head_dim)).transpose(1, 2))
        angles = positions[:, None, :, None] * self.frequencies
        cos, sin = angles.cos() * self._rope_scale, angles.sin() * self._rope_scale
        return _turned(found[0], cos, sin), _turned(found[1], cos, sin), found[2]

    def complete(self, rows: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, from its input and what was attended to, [B, heads, R, width]."""
        layer = self.midlayer
        rows = rows + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(-2))
        output: Tensor = rows + layer.mlp(layer.post_attention_layernorm(rows))
        return output

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        """Attention [B, heads, R, width]; `visible` is bool[B, 1, R, T], at least one in a row."""
        return scaled_dot_product_attention(query, keys, values, attn_mask=visible, enable_gqa=True)

    def logits(self, rows: Tensor) -> Tensor:
        """Of the tokens that it can draft, from the layer's output, as float32."""
        return linear(self.norm(rows), self.output).float()


def _turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of rows, whose first half belongs to the second."""
    first, second = rows.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(rows.dtype)
