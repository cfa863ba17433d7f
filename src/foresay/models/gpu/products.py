"""Products of rows and weights, in Triton: a row's bits do not depend on how many rows there are.

The weights are the left side of each product, 64 outputs at a time, and the rows the right side,
16 to 256 of them: so few rows cost what one costs, and the sum over the inputs has the same order
whatever their number. Where a matrix has too few outputs to keep a GPU busy, its inputs are
divided into parts, a number that the matrix alone decides; whoever reads the result adds them
in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

__all__ = ["Matrix", "gated_product", "matrix_of", "product", "row_tile"]

_OUTPUTS = 64  # of one program
_PROGRAMS = 256  # that keep a GPU busy
_LEAST = 256  # inputs of a part


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """One to three weights with the same inputs, whose outputs stand side by side.

    weights  [outputs, inputs] each, row by row, of one dtype; used where they are
    parts    in how many parts the inputs are added
    """

    weights: Sequence[Tensor]
    parts: int

    @property
    def inputs(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def outputs(self) -> int:
        return sum(int(weight.shape[0]) for weight in self.weights)


def matrix_of(*weights: Tensor, whole: bool = False) -> Matrix:
    """`whole`: its inputs are not divided."""
    inputs = int(weights[0].shape[1])
    tiles = sum(triton.cdiv(weight.shape[0], _OUTPUTS) for weight in weights)
    most = max(inputs // _LEAST, 1)
    parts = 1 if whole else max(min(round(_PROGRAMS / tiles), most), 1)
    return Matrix(weights, parts)


def row_tile(rows: int) -> int:
    """Rows of one program: they read the weights once."""
    return min(max(triton.next_power_of_2(rows), 16), 128)


def _shape(inputs: int, tile: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Inputs of a step of a program, its warps, and how many steps are under way."""
    if dtype == torch.float32:
        return 32, 4, 2
    step = 128 if inputs % 128 == 0 and tile <= 64 else 64
    return step, 8 if tile > 64 else 4, 4


def product(rows: Tensor, matrix: Matrix, out: Tensor) -> None:
    """Write the product into `out` float32 [parts, rows, outputs].

    rows  [rows, inputs], contiguous, of the weights' dtype

    Mutates: out.
    """
    first, *others = matrix.weights
    offsets = [(other.data_ptr() - first.data_ptr()) // first.element_size() for other in others]
    sizes = [int(weight.shape[0]) for weight in matrix.weights]
    count, inputs, tile = len(rows), matrix.inputs, row_tile(len(rows))
    step, warps, stages = _shape(inputs, tile, rows.dtype)
    part = triton.cdiv(triton.cdiv(inputs, matrix.parts), 128) * 128
    tiles = [triton.cdiv(size, _OUTPUTS) for size in sizes]
    multiply[(sum(tiles), matrix.parts, triton.cdiv(count, tile))](
        rows, first, out, count, inputs, part, matrix.outputs,
        *_three(sizes), *_three(offsets, 2),
        outputs=_OUTPUTS, tile=tile, step=step, even=inputs % step == 0 and part % step == 0,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def _three(values: Sequence[int], count: int = 3) -> list[int]:
    return [*values, *[0] * (count - len(values))]


def gated_product(rows: Tensor, gate: Tensor, up: Tensor, out: Tensor, *, gelu: bool) -> None:
    """Write activation(rows gate) * (rows up) into `out` [rows, outputs].

    Mutates: out.
    """
    outputs, inputs = gate.shape
    count, tile = len(rows), row_tile(len(rows))
    step, warps, stages = _shape(inputs, tile, rows.dtype)
    step = min(step, 64)  # two weights are under way
    between = (up.data_ptr() - gate.data_ptr()) // gate.element_size()
    multiply_gated[(triton.cdiv(outputs, _OUTPUTS), triton.cdiv(count, tile))](
        rows, gate, between, out, count, inputs, outputs,
        width=_OUTPUTS, tile=tile, step=step, even=inputs % step == 0, gelu=gelu,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    rows_at, weights_at, out_at, count, inputs, part, all_outputs, size0, size1, size2,
    offset1, offset2, outputs: tl.constexpr, tile: tl.constexpr, step: tl.constexpr,
    even: tl.constexpr,
):  # fmt: skip
    """64 outputs of one part of the inputs, for a tile of rows."""
    number, split, row_tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tiles0, tiles1 = tl.cdiv(size0, outputs), tl.cdiv(size1, outputs)
    second, third = number >= tiles0, number >= tiles0 + tiles1
    own = number - tl.where(third, tiles0 + tiles1, tl.where(second, tiles0, 0))
    size = tl.where(third, size2, tl.where(second, size1, size0))
    column = tl.where(third, size0 + size1, tl.where(second, size0, 0))
    matrix = tl.where(third, offset2, tl.where(second, offset1, 0))
    output = own * outputs + tl.arange(0, outputs)
    row = row_tile * tile + tl.arange(0, tile)
    each = tl.arange(0, step)
    safe = tl.minimum(output, size - 1).to(tl.int64)
    weights_at += tl.multiple_of(matrix.to(tl.int64), 8) + safe[:, None] * inputs + each[None, :]
    rows_at += row[:, None] * inputs + each[None, :]
    there = (row < count)[:, None]
    sums = tl.zeros([outputs, tile], tl.float32)
    for at in range(split * part, tl.minimum(split * part + part, inputs), step):
        if even:
            weights = tl.load(weights_at + at)
            some = tl.load(rows_at + at, there, 0.0)
        else:
            inside = (at + each < inputs)[None, :]
            weights = tl.load(weights_at + at, inside, 0.0)
            some = tl.load(rows_at + at, there & inside, 0.0)
        sums = tl.dot(weights, tl.trans(some), sums, input_precision="ieee")
    to = (split * count + row).to(tl.int64)[None, :] * all_outputs + (column + output)[:, None]
    tl.store(out_at + to, sums, (output < size)[:, None] & (row < count)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def multiply_gated(  # type: ignore[no-untyped-def]
    rows_at, gate_at, between, out_at, count, inputs, outputs, width: tl.constexpr,
    tile: tl.constexpr, step: tl.constexpr, even: tl.constexpr, gelu: tl.constexpr,
):  # fmt: skip
    """64 outputs of both, and what becomes of them."""
    output = tl.program_id(0) * width + tl.arange(0, width)
    row = tl.program_id(1) * tile + tl.arange(0, tile)
    each = tl.arange(0, step)
    safe = tl.minimum(output, outputs - 1).to(tl.int64)
    gate_at += safe[:, None] * inputs + each[None, :]
    up_at = gate_at + tl.multiple_of(between, 8)
    rows_at += row[:, None] * inputs + each[None, :]
    there = (row < count)[:, None]
    gates, ups = tl.zeros([width, tile], tl.float32), tl.zeros([width, tile], tl.float32)
    for at in range(0, inputs, step):
        if even:
            some = tl.trans(tl.load(rows_at + at, there, 0.0))
            gate, up = tl.load(gate_at + at), tl.load(up_at + at)
        else:
            inside = (at + each < inputs)[None, :]
            some = tl.trans(tl.load(rows_at + at, there & inside, 0.0))
            gate, up = tl.load(gate_at + at, inside, 0.0), tl.load(up_at + at, inside, 0.0)
        gates = tl.dot(gate, some, gates, input_precision="ieee")
        ups = tl.dot(up, some, ups, input_precision="ieee")
    if gelu:
        inner = 0.7978845608028654 * (gates + 0.044715 * gates * gates * gates)
        active = gates / (1.0 + tl.exp(-2.0 * inner))
    else:
        active = gates / (1.0 + tl.exp(-gates))
    found = (active * ups).to(out_at.dtype.element_ty)
    to = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out_at + to, found, (output < outputs)[:, None] & (row < count)[None, :])
