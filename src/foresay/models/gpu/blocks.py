"""Weights from the blocks of a GGUF file, widened on the device that they are on.

Plain operations of torch, one multiplication or addition in each, so that no device fuses two of
them: the float32 values are bit for bit those of the package gguf, and are rounded once, to nearest
and ties to even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from foresay.errors import InputError
from foresay.models.weights.gguf_header import GgmlType
from foresay.models.weights.gguf_values import dequantised

__all__ = ["ON_DEVICE", "WORKING_BYTES", "widen", "widened"]

_VALUES_AT_A_TIME = 1 << 23
WORKING_BYTES = 24 * _VALUES_AT_A_TIME
"""The most that `widen` holds on the device beside its arguments."""

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FLOATS = {
    GgmlType.F32: torch.float32,
    GgmlType.F16: torch.float16,
    GgmlType.BF16: torch.bfloat16,
}


def widened(blocks: Tensor, kind: GgmlType, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The weights in blocks of that kind, on their device: dtype[shape].

    blocks    uint8, 1-D, contiguous

    Raises: as `widen`.
    """
    out = torch.empty(tuple(shape), dtype=dtype, device=blocks.device)
    widen(blocks, kind, out)
    return out


def widen(blocks: Tensor, kind: GgmlType, out: Tensor) -> None:
    """As `widened`, into `out`, which is contiguous. Kinds that are rare are widened on the host,
    for which the device is waited for.

    Mutates: out. Raises: InputError for blocks of another size, UnsupportedModel for a kind that
    cannot be widened, ModelError without the package gguf where a rare kind needs it.
    """
    flat, rows = out.view(-1), blocks.numel() // kind.block_bytes
    if blocks.numel() % kind.block_bytes or rows * kind.block != flat.numel():
        raise InputError(
            f"{blocks.numel()} bytes are given for {flat.numel()} weights of {kind.name}; expected "
            f"{kind.block_bytes} for each {kind.block}"
        )
    if kind in _FLOATS:
        flat.copy_(_viewed(blocks, _FLOATS[kind]))
        return
    packed, step = blocks.view(rows, kind.block_bytes), max(1, _VALUES_AT_A_TIME // kind.block)
    values_of = _KINDS.get(kind)
    for at in range(0, rows, step):
        part = packed[at : at + step]
        values = _on_the_host(part, kind) if values_of is None else values_of(part)
        flat[at * kind.block : (at + len(part)) * kind.block].copy_(values.reshape(-1))


def _on_the_host(rows: Tensor, kind: GgmlType) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(dequantised(rows.cpu().numpy(), kind)))


def _viewed(stored: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers, copied where they are not aligned."""
    size = dtype.itemsize
    if stored.storage_offset() % size or stored.data_ptr() % size:
        stored = stored.clone()
    return stored.view(dtype)


def _cut(rows: Tensor, begin: int, count: int) -> Tensor:
    """Bytes of each block, a copy: uint8[blocks, count]."""
    return rows[:, begin : begin + count].clone(memory_format=torch.contiguous_format)


def _half(rows: Tensor, at: int) -> Tensor:
    """The float16 at that byte of each block: float32[blocks, 1]."""
    return _cut(rows, at, 2).view(torch.float16).float()


def _signed(rows: Tensor, begin: int, count: int) -> Tensor:
    """Bytes of each block as numbers with a sign: float32[blocks, count]."""
    return _cut(rows, begin, count).view(torch.int8).float()


def _bits(packed: Tensor, bits: int, run: int) -> Tensor:
    """Numbers of so many bits. Of `run` bytes the lowest bits come first, then those above them:
    uint8[blocks, numbers].
    """
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    parts = packed.reshape(len(packed), -1, 1, run) >> shifts.view(1, 1, -1, 1)
    return (parts & ((1 << bits) - 1)).reshape(len(packed), -1)


def _scaled(scale: Tensor, values: Tensor, minimum: Tensor | None = None) -> Tensor:
    """Values with a scale, and a minimum to subtract, for each run of them."""
    runs = values.float().view(len(values), scale.shape[1], -1)
    found = scale.unsqueeze(2) * runs
    return found if minimum is None else found - minimum.unsqueeze(2)


def _q4_0(rows: Tensor) -> Tensor:
    return _half(rows, 0) * (_bits(rows[:, 2:], 4, 16).float() - 8)


def _q4_1(rows: Tensor) -> Tensor:
    return _half(rows, 0) * _bits(rows[:, 4:], 4, 16).float() + _half(rows, 2)


def _fives(rows: Tensor, begin: int) -> Tensor:
    """Numbers of 5 bits, the highest of each before the others."""
    high = _bits(rows[:, begin : begin + 4], 1, 1)
    return (_bits(rows[:, begin + 4 :], 4, 16) | (high << 4)).float()


def _q5_0(rows: Tensor) -> Tensor:
    return _half(rows, 0) * (_fives(rows, 2) - 16)


def _q5_1(rows: Tensor) -> Tensor:
    return _half(rows, 0) * _fives(rows, 4) + _half(rows, 2)


def _q8_0(rows: Tensor) -> Tensor:
    return _half(rows, 0) * _signed(rows, 2, 32)


def _q2_k(rows: Tensor) -> Tensor:
    scales = rows[:, :16]
    scale, minimum = (scales & 15).float(), (scales >> 4).float()
    return _scaled(_half(rows, 80) * scale, _bits(rows[:, 16:80], 2, 32), _half(rows, 82) * minimum)


def _q3_k(rows: Tensor) -> Tensor:
    low, high = _bits(rows[:, 96:104], 4, 8), _bits(rows[:, 104:108], 2, 4)
    scale = (low | (high << 4)).float() - 32
    missing = (_bits(rows[:, :32], 1, 32) ^ 1) << 2  # 4 is taken away where the bit is not set
    return _scaled(_half(rows, 108) * scale, _bits(rows[:, 32:96], 2, 32).float() - missing.float())


def _scales_of_k(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and minimums of Q4_K and Q5_K, 6 bits each: float32[blocks, 8]."""
    first, second, rest = rows[:, 4:8], rows[:, 8:12], rows[:, 12:16]
    scale = torch.cat([first & 63, (rest & 15) | ((first >> 2) & 48)], 1)
    minimum = torch.cat([second & 63, (rest >> 4) | ((second >> 2) & 48)], 1)
    return _half(rows, 0) * scale.float(), _half(rows, 2) * minimum.float()


def _q4_k(rows: Tensor) -> Tensor:
    scale, minimum = _scales_of_k(rows)
    return _scaled(scale, _bits(rows[:, 16:], 4, 32), minimum)


def _q5_k(rows: Tensor) -> Tensor:
    scale, minimum = _scales_of_k(rows)
    high = _bits(rows[:, 16:48], 1, 32)
    return _scaled(scale, _bits(rows[:, 48:], 4, 32) | (high << 4), minimum)


def _q6_k(rows: Tensor) -> Tensor:
    low, high = _bits(rows[:, :128], 4, 64), _bits(rows[:, 128:192], 2, 32)
    scale = _half(rows, 208) * _signed(rows, 192, 16)
    return _scaled(scale, (low | (high << 4)).float() - 32)


def _iq4_values(packed: Tensor) -> Tensor:
    table = torch.tensor(_IQ4, dtype=torch.float32, device=packed.device)
    return table[_bits(packed, 4, 16).int()]


def _iq4_nl(rows: Tensor) -> Tensor:
    return _half(rows, 0) * _iq4_values(rows[:, 2:])


def _iq4_xs(rows: Tensor) -> Tensor:
    low, high = _bits(rows[:, 4:8], 4, 1), _bits(rows[:, 2:4], 2, 1)
    scale = (low | (high << 4)).float() - 32
    return _scaled(_half(rows, 0) * scale, _iq4_values(rows[:, 8:]))


_KINDS: dict[GgmlType, Callable[[Tensor], Tensor]] = {
    GgmlType.Q4_0: _q4_0,
    GgmlType.Q4_1: _q4_1,
    GgmlType.Q5_0: _q5_0,
    GgmlType.Q5_1: _q5_1,
    GgmlType.Q8_0: _q8_0,
    GgmlType.Q2_K: _q2_k,
    GgmlType.Q3_K: _q3_k,
    GgmlType.Q4_K: _q4_k,
    GgmlType.Q5_K: _q5_k,
    GgmlType.Q6_K: _q6_k,
    GgmlType.IQ4_NL: _iq4_nl,
    GgmlType.IQ4_XS: _iq4_xs,
}
"""What makes float32 values of whole blocks: uint8[blocks, bytes] to any shape of that order."""

ON_DEVICE = frozenset((*_FLOATS, *_KINDS))
"""The kinds that are not rare."""
