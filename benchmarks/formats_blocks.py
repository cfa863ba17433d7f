"""The part of formats.py that makes blocks: a model's weights widened, and quantised anew."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

from foresay._core import BlockLinear
from foresay.models.weights import StoredModel

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

FORMATS = (*("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "Q6_K", "Q5_K", "Q4_K"),)


def widened(model: StoredModel) -> dict[str, Floats]:
    """The tensors of a GGUF file in float32, by the names and in the order of transformers."""
    found: dict[str, Floats] = {}
    for name, stored in model.tensors.items():
        shape = stored.tensor.shape
        rows = model.bytes_of(name).reshape(1 if len(shape) == 1 else shape[0], -1)
        values = gguf.dequantize(np.array(rows), Kind(stored.tensor.kind)).astype(np.float32)
        values = values.reshape(shape)
        if stored.heads:  # of each head (pair, half), where transformers has (half, pair)
            split = values.reshape(stored.heads, -1, 2, shape[1])
            values = split.swapaxes(1, 2).reshape(shape)
        found[name] = np.ascontiguousarray(values) - np.float32(stored.plus)
    return found


class Requantised:
    """`Weights` for `make_decoder`: matrices in another format, where their rows divide into its
    blocks, and else in F32.

    widened    what was given out so far, in float32: what the blocks mean
    """

    def __init__(self, weights: dict[str, Floats], name: str) -> None:
        self._weights, self._name = weights, name
        self.widened: dict[str, Floats] = {}

    def linear(self, path: str, outs: int, ins: int, *, bias: bool = False) -> BlockLinear:
        assert not bias
        values = self._weights[f"{path}.weight"]
        name = self._name if ins % gguf.GGML_QUANT_SIZES[Kind[self._name]][0] == 0 else "F32"
        stored = quantised(values, name)
        meant = gguf.dequantize(stored, Kind[name]).astype(np.float32).reshape(outs, ins)
        self.widened[f"{path}.weight"] = meant
        return BlockLinear(name, stored.reshape(-1), outs, ins)

    def norm(self, path: str, width: int) -> Floats:
        self.widened[f"{path}.weight"] = self._weights[f"{path}.weight"]
        return self.widened[f"{path}.weight"]


def quantised(values: Floats, name: str) -> Bytes:
    """[rows, bytes]. K formats by a plain rule, not llama.cpp's search for the best scales."""
    if name.endswith("_K"):
        rows = values.reshape(len(values), -1, 256)
        return _K_RULES[name](rows).reshape(len(values), -1)
    return np.ascontiguousarray(gguf.quantize(values, Kind[name])).view(np.uint8)


def _half(values: Floats) -> tuple[Bytes, Floats]:
    """[..., 1] in half precision: the bytes, and what they mean."""
    short = values.astype(np.float16)
    return short.view(np.uint8), short.astype(np.float32)


def _ratio(values: Floats, unit: Floats) -> Floats:
    return np.divide(values, unit, out=np.zeros_like(values), where=unit != 0)


def _with_minimum(values: Floats, bits: int) -> tuple[Bytes, Bytes]:
    """Q4_K and Q5_K, [..., 256]: the 16 bytes of scales, and the integers [..., 8, 32]."""
    blocks = values.reshape(*values.shape[:-1], 8, 32)
    least = np.minimum(blocks.min(-1), 0)
    steps = (blocks.max(-1) - least) / (2**bits - 1)
    scale_bytes, scale = _half(steps.max(-1, keepdims=True) / 63)
    minimum_bytes, minimum = _half(-least.min(-1, keepdims=True) / 63)
    scales = np.rint(_ratio(steps, np.broadcast_to(scale, steps.shape))).clip(0, 63)
    minimums = np.rint(_ratio(-least, np.broadcast_to(minimum, least.shape))).clip(0, 63)
    unit = np.broadcast_to((scale * scales)[..., None], blocks.shape)
    shifted = (blocks + (minimum * minimums)[..., None]).astype(np.float32)
    integers = np.rint(_ratio(shifted, unit)).clip(0, 2**bits - 1).astype(np.uint8)
    s, m = scales.astype(np.uint8), minimums.astype(np.uint8)
    six = [
        s[..., :4] | (s[..., 4:] >> 4) << 6,
        m[..., :4] | (m[..., 4:] >> 4) << 6,
        (s[..., 4:] & 15) | (m[..., 4:] & 15) << 4,
    ]
    return np.concatenate([scale_bytes, minimum_bytes, *six], -1), integers


def _nibbles(integers: Bytes) -> Bytes:
    """[..., 8, 32]: two blocks share 32 bytes."""
    low = integers & 15
    return (low[..., ::2, :] | low[..., 1::2, :] << 4).reshape(*integers.shape[:-2], 128)


def _q4_k(values: Floats) -> Bytes:
    scales, integers = _with_minimum(values, 4)
    return np.concatenate([scales, _nibbles(integers)], -1)


def _q5_k(values: Floats) -> Bytes:
    scales, integers = _with_minimum(values, 5)
    places = np.arange(8, dtype=np.uint8)[:, None]
    high = np.bitwise_or.reduce((integers >> 4) << places, axis=-2)
    return np.concatenate([scales, high, _nibbles(integers)], -1)


def _q6_k(values: Floats) -> Bytes:
    blocks = values.reshape(*values.shape[:-1], 16, 16)
    steps = np.abs(blocks).max(-1) / 31
    scale_bytes, scale = _half(steps.max(-1, keepdims=True) / 127)
    scales = np.rint(_ratio(steps, np.broadcast_to(scale, steps.shape))).clip(0, 127)
    unit = np.broadcast_to((scale * scales)[..., None], blocks.shape)
    integers = (np.rint(_ratio(blocks, unit)).clip(-32, 31) + 32).astype(np.uint8)
    halves = integers.reshape(*values.shape[:-1], 2, 4, 32)  # of each half four blocks of 32
    low, high = halves & 15, halves >> 4
    lows = low[..., :2, :] | low[..., 2:, :] << 4
    highs = np.bitwise_or.reduce(high << np.arange(0, 8, 2, dtype=np.uint8)[:, None], axis=-2)
    flat = values.shape[:-1]
    parts = [lows.reshape(*flat, 128), highs.reshape(*flat, 64), scales.astype(np.uint8)]
    return np.concatenate([*parts, scale_bytes], -1)


_K_RULES = {"Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
