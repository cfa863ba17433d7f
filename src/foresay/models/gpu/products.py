"""Products of rows and weights, in Triton: a row's bits do not depend on how many rows there are.

The weights are the left side of each product and the rows the right one, 16 to 256 at a time: so
few rows cost what one costs, and the sum over the inputs has the same order whatever their number.
Where a matrix has too few outputs to keep a GPU busy, its inputs are divided into parts, a number
that the matrix alone decides; whoever reads the result adds them in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from foresay.models.gpu.chained import begin_early, chained, fetch, wait_for_kernel_before

__all__ = ["Matrix", "gated_product", "matrix_of", "product", "tiles_of"]

_OUTPUTS = 64  # of one program, where there are few rows
_PROGRAMS = 160  # that keep a GPU busy
_GRAIN = 128  # inputs of a part are a multiple
_LEAST = 384  # inputs of a part
_FETCHED = 128  # inputs of a program that are fetched while it waits
_POLICY = "evict_first"
_ROWS = 160  # up to so many are of one program, which reads its weights once for all of them


@dataclass(frozen=True, slots=True, eq=False)
class Matrix:
    """One to three weights with the same inputs, whose outputs stand side by side.

    weights  [outputs, inputs] each, row by row, of one dtype; used where they are
    part     inputs that are added together; parts: how many of these there are
    """

    weights: Sequence[Tensor]
    part: int

    @property
    def inputs(self) -> int:
        return int(self.weights[0].shape[1])

    @property
    def outputs(self) -> int:
        return sum(int(weight.shape[0]) for weight in self.weights)

    @property
    def parts(self) -> int:
        return -(-self.inputs // self.part)


def matrix_of(*weights: Tensor, whole: bool = False) -> Matrix:
    """`whole`: its inputs are not divided."""
    inputs = int(weights[0].shape[1])
    if whole:
        return Matrix(weights, inputs)
    tiles = sum(triton.cdiv(weight.shape[0], _OUTPUTS) for weight in weights)
    wanted = inputs * tiles / _PROGRAMS
    return Matrix(weights, min(max(round(wanted / _GRAIN) * _GRAIN, _LEAST), inputs))


def tiles_of(rows: int) -> tuple[int, int]:
    """How the rows of one program are divided: those of the two products that share its weights."""
    if rows > _ROWS:
        return 128, 0
    if 64 < rows <= 96:
        return 64, 32
    first = min(triton.next_power_of_2(max(rows, 16)), 128)
    return first, 32 if first < rows else 0


class _Shape(NamedTuple):
    """outputs of a program, inputs of a step of it, its warps, and how many steps are under way."""

    outputs: int
    step: int
    warps: int
    stages: int


def _shape(rows: int, dtype: torch.dtype) -> _Shape:
    """The fastest on an H200. They change the time only: a row's sum has the same order in all."""
    if dtype == torch.float32:
        return _Shape(_OUTPUTS, 32, 4, 2)
    if rows <= 64:
        return _Shape(_OUTPUTS, 128, 4, 4)
    return _Shape(_OUTPUTS, 64, 4, 4) if rows <= _ROWS else _Shape(128, 64, 4, 3)


def _gated_shape(rows: int, dtype: torch.dtype) -> _Shape:
    """The same for two weights at once."""
    if dtype == torch.float32:
        return _Shape(_OUTPUTS, 32, 4, 2)
    if rows <= 32:
        return _Shape(_OUTPUTS, 128, 4, 3)
    if rows <= 64:
        return _Shape(_OUTPUTS, 64, 4, 4)
    return _Shape(_OUTPUTS, 64, 4, 3)


def product(rows: Tensor, matrix: Matrix, out: Tensor) -> None:
    """Write the product into `out` float32 [parts, rows, outputs].

    rows  [rows, inputs], contiguous, of the weights' dtype
    """
    first, *others = matrix.weights
    offsets = [(other.data_ptr() - first.data_ptr()) // first.element_size() for other in others]
    sizes = [int(weight.shape[0]) for weight in matrix.weights]
    count, inputs, tiles = len(rows), matrix.inputs, tiles_of(len(rows))
    outputs, step, warps, stages = _shape(count, rows.dtype)
    many = [triton.cdiv(size, outputs) for size in sizes]
    even = inputs % step == 0 and matrix.part % step == 0
    multiply[(sum(many), matrix.parts, triton.cdiv(count, sum(tiles)))](
        rows, first, out, count, inputs, matrix.part, matrix.outputs,
        *_three(sizes), *_three(offsets, 2), outputs=outputs, tile=tiles[0], tile2=tiles[1],
        step=step, even=even, fetched=_FETCHED, policy=_POLICY, num_warps=warps, num_stages=stages,
        **chained(rows.device),
    )  # fmt: skip


def _three(values: Sequence[int], count: int = 3) -> list[int]:
    return [*values, *[0] * (count - len(values))]


def gated_product(rows: Tensor, gate: Tensor, up: Tensor, out: Tensor, *, gelu: bool) -> None:
    """Write activation(rows gate) * (rows up) into `out` [rows, outputs]."""
    outputs, inputs = gate.shape
    count, tiles = len(rows), tiles_of(len(rows))
    width, step, warps, stages = _gated_shape(count, rows.dtype)
    between = (up.data_ptr() - gate.data_ptr()) // gate.element_size()
    multiply_gated[(triton.cdiv(outputs, width), triton.cdiv(count, sum(tiles)))](
        rows, gate, between, out, count, inputs, outputs, width=width, tile=tiles[0],
        tile2=tiles[1], step=step, even=inputs % step == 0, gelu=gelu,
        fetched=_FETCHED, policy=_POLICY, num_warps=warps, num_stages=stages,
        **chained(rows.device),
    )  # fmt: skip


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    rows_at, weights_at, out_at, count, inputs, part, all_outputs, size0, size1, size2,
    offset1, offset2, outputs: tl.constexpr, tile: tl.constexpr, tile2: tl.constexpr,
    step: tl.constexpr, even: tl.constexpr, fetched: tl.constexpr, policy: tl.constexpr,
    chained: tl.constexpr,
):  # fmt: skip
    """Some outputs of one part of the inputs, for one or two tiles of rows."""
    number, split = tl.program_id(0), tl.program_id(1)
    tiles0, tiles1 = tl.cdiv(size0, outputs), tl.cdiv(size1, outputs)
    second, third = number >= tiles0, number >= tiles0 + tiles1
    own = number - tl.where(third, tiles0 + tiles1, tl.where(second, tiles0, 0))
    size = tl.where(third, size2, tl.where(second, size1, size0))
    column = tl.where(third, size0 + size1, tl.where(second, size0, 0))
    matrix = tl.where(third, offset2, tl.where(second, offset1, 0))
    output = own * outputs + tl.arange(0, outputs)
    each = tl.arange(0, step)
    safe = tl.minimum(output, size - 1).to(tl.int64)
    weights_at += tl.multiple_of(matrix.to(tl.int64), 8)
    begin, end = split * part, tl.minimum(split * part + part, inputs)
    if fetched:
        lines = begin + tl.arange(0, fetched // 64) * 64
        fetch(weights_at + safe[:, None] * inputs + tl.minimum(lines, end - 1)[None, :], chained)
    weights_at += safe[:, None] * inputs + each[None, :]
    row = tl.program_id(2) * (tile + tile2) + tl.arange(0, tile)
    some_at = rows_at + row[:, None] * inputs + each[None, :]
    there = (row < count)[:, None]
    sums = tl.zeros([outputs, tile], tl.float32)
    more: tl.constexpr = tile2 > 0
    if more:
        row2 = tl.program_id(2) * (tile + tile2) + tile + tl.arange(0, tile2)
        some2_at = rows_at + row2[:, None] * inputs + each[None, :]
        there2 = (row2 < count)[:, None]
        sums2 = tl.zeros([outputs, tile2], tl.float32)
    wait_for_kernel_before(chained)
    for at in range(begin, end, step):
        if even:
            weights = tl.load(weights_at + at, eviction_policy=policy)
            some = tl.load(some_at + at, there, 0.0)
        else:
            inside = (at + each < end)[None, :]
            weights = tl.load(weights_at + at, inside, 0.0, eviction_policy=policy)
            some = tl.load(some_at + at, there & inside, 0.0)
        sums = tl.dot(weights, tl.trans(some), sums, input_precision="ieee")
        if more:
            if even:
                some2 = tl.load(some2_at + at, there2, 0.0)
            else:
                some2 = tl.load(some2_at + at, there2 & (at + each < end)[None, :], 0.0)
            sums2 = tl.dot(weights, tl.trans(some2), sums2, input_precision="ieee")
    begin_early(chained)  # not sooner: the next kernel would take memory's speed from this one
    valid, place = (output < size)[:, None], (column + output)[:, None]
    to = (split * count + row).to(tl.int64)[None, :] * all_outputs + place
    tl.store(out_at + to, sums, valid & (row < count)[None, :])
    if more:
        to2 = (split * count + row2).to(tl.int64)[None, :] * all_outputs + place
        tl.store(out_at + to2, sums2, valid & (row2 < count)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def activated(gates, ups, gelu: tl.constexpr):  # type: ignore[no-untyped-def]
    """What becomes of a gate and its up."""
    if gelu:
        inner = 0.7978845608028654 * (gates + 0.044715 * gates * gates * gates)
        return gates / (1.0 + tl.exp(-2.0 * inner)) * ups
    return gates / (1.0 + tl.exp(-gates)) * ups


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply_gated(  # type: ignore[no-untyped-def]
    rows_at, gate_at, between, out_at, count, inputs, outputs, width: tl.constexpr,
    tile: tl.constexpr, tile2: tl.constexpr, step: tl.constexpr, even: tl.constexpr,
    gelu: tl.constexpr, fetched: tl.constexpr, policy: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """Some outputs of both, and what becomes of them."""
    output = tl.program_id(0) * width + tl.arange(0, width)
    each = tl.arange(0, step)
    safe = tl.minimum(output, outputs - 1).to(tl.int64)
    between = tl.multiple_of(between, 8)
    if fetched:
        lines = tl.minimum(tl.arange(0, fetched // 64) * 64, inputs - 1)
        ahead = gate_at + safe[:, None] * inputs + lines[None, :]
        fetch(ahead, chained)
        fetch(ahead + between, chained)
    gate_at += safe[:, None] * inputs + each[None, :]
    up_at = gate_at + between
    row = tl.program_id(1) * (tile + tile2) + tl.arange(0, tile)
    some_at = rows_at + row[:, None] * inputs + each[None, :]
    there = (row < count)[:, None]
    gates, ups = tl.zeros([width, tile], tl.float32), tl.zeros([width, tile], tl.float32)
    more: tl.constexpr = tile2 > 0
    if more:
        row2 = tl.program_id(1) * (tile + tile2) + tile + tl.arange(0, tile2)
        some2_at = rows_at + row2[:, None] * inputs + each[None, :]
        there2 = (row2 < count)[:, None]
        gates2, ups2 = tl.zeros([width, tile2], tl.float32), tl.zeros([width, tile2], tl.float32)
    wait_for_kernel_before(chained)
    for at in range(0, inputs, step):
        if even:
            some = tl.trans(tl.load(some_at + at, there, 0.0))
            gate = tl.load(gate_at + at, eviction_policy=policy)
            up = tl.load(up_at + at, eviction_policy=policy)
        else:
            inside = (at + each < inputs)[None, :]
            some = tl.trans(tl.load(some_at + at, there & inside, 0.0))
            gate = tl.load(gate_at + at, inside, 0.0, eviction_policy=policy)
            up = tl.load(up_at + at, inside, 0.0, eviction_policy=policy)
        gates = tl.dot(gate, some, gates, input_precision="ieee")
        ups = tl.dot(up, some, ups, input_precision="ieee")
        if more:
            if even:
                some2 = tl.trans(tl.load(some2_at + at, there2, 0.0))
            else:
                mask = there2 & (at + each < inputs)[None, :]
                some2 = tl.trans(tl.load(some2_at + at, mask, 0.0))
            gates2 = tl.dot(gate, some2, gates2, input_precision="ieee")
            ups2 = tl.dot(up, some2, ups2, input_precision="ieee")
    begin_early(chained)  # not sooner: the next kernel would take memory's speed from this one
    valid = (output < outputs)[:, None]
    found = activated(gates, ups, gelu).to(out_at.dtype.element_ty)
    to = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out_at + to, found, valid & (row < count)[None, :])
    if more:
        found2 = activated(gates2, ups2, gelu).to(out_at.dtype.element_ty)
        to2 = row2.to(tl.int64)[None, :] * outputs + output[:, None]
        tl.store(out_at + to2, found2, valid & (row2 < count)[None, :])
