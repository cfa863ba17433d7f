"""Products of rows and weights, in Triton: a row's bits do not depend on how many rows there are.

The weights are the left side of each product and the rows the right one, 16 to 256 at a time: so
few rows cost what one costs, and the sum over the inputs has the same order whatever their number.
Where a matrix has too few outputs to keep a GPU busy, its inputs are divided into parts, a number
that the matrix alone decides; whoever reads the result adds them in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

from foresay.models.gpu.chained import chained
from foresay.models.gpu.product_kernels import (
    multiply,
    multiply_gated,
    multiply_gated_wide,
    multiply_wide,
)

__all__ = ["Matrix", "Shape", "gated_product", "matrix_of", "product", "shape_of"]

_OUTPUTS = 64  # of one program, where there are few rows
_PROGRAMS = 160  # that keep a GPU busy
_GRAIN = 128  # inputs of a part are a multiple
_LEAST = 384  # inputs of a part
_FETCHED = 128  # inputs of a program that are fetched while it waits
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


class Shape(NamedTuple):
    """How a product is divided among programs. It changes the time only: a row's sum has the same
    order in all.

    outputs  of a program; gates and as many ups, where it is gated
    tiles    rows of a program: of two products that share its weights
    step     inputs of a step of it; stages: how many steps are under way
    wide     by the kernels for many rows, where all steps are whole
    copied   the weights too by the copy engine: where it is wide; of one weight, or gated
    more     outputs of a second tile of weights: where it is wide and gated, and not copied
    """

    outputs: int
    tiles: tuple[int, int]
    step: int
    warps: int
    stages: int
    wide: bool = False
    copied: bool = False
    more: int = 0

    def groups(self, rows: int) -> int:
        """Of so many rows, those of different programs."""
        return -(-rows // sum(self.tiles))


def shape_of(rows: int, dtype: torch.dtype, *, gated: bool = False) -> Shape:
    """The fastest that was found on an H200."""
    tiles = _tiles(rows)
    if dtype == torch.float32:
        return Shape(_OUTPUTS, tiles, 32, 4, 2)
    if gated:
        if rows <= 32:
            return Shape(_OUTPUTS, tiles, 128, 4, 3)
        return Shape(_OUTPUTS, tiles, 64, 4, 4 if rows <= 64 else 3)
    if rows <= 64:
        return Shape(_OUTPUTS, tiles, 128, 4, 4)
    return Shape(_OUTPUTS, tiles, 64, 4, 4) if rows <= _ROWS else Shape(128, tiles, 64, 4, 3)


def _tiles(rows: int) -> tuple[int, int]:
    if rows > _ROWS:
        return 128, 0
    if 64 < rows <= 96:
        return 64, 32
    first = min(triton.next_power_of_2(max(rows, 16)), 128)
    return first, 32 if first < rows else 0


def product(rows: Tensor, matrix: Matrix, out: Tensor, shape: Shape | None = None) -> None:
    """Write the product into `out` float32 [parts, rows, outputs].

    rows   [rows, inputs], contiguous, of the weights' dtype
    shape  None: the usual one
    """
    first, *others = matrix.weights
    offsets = [(other.data_ptr() - first.data_ptr()) // first.element_size() for other in others]
    sizes = [int(weight.shape[0]) for weight in matrix.weights]
    count, inputs = rows.shape
    shape = shape or shape_of(count, rows.dtype)
    many, groups = sum(triton.cdiv(size, shape.outputs) for size in sizes), shape.groups(count)
    even = inputs % shape.step == 0 and matrix.part % shape.step == 0
    numbers = (
        out, count, inputs, matrix.part, matrix.outputs, *_three(sizes), *_three(offsets, 2)
    )  # fmt: skip
    how = dict(outputs=shape.outputs, **_options(shape, rows))
    if shape.wide and even:
        copied = shape.copied and not others
        weights = _described(first, shape.outputs, shape.step) if copied else first
        multiply_wide[(groups, many, matrix.parts)](
            *_tiles_of(rows, shape), weights, *numbers, copied=copied, **how
        )
    else:
        multiply[(many, matrix.parts, groups)](rows, first, *numbers, even=even, **how)


def gated_product(
    rows: Tensor, gate: Tensor, up: Tensor, out: Tensor, *, gelu: bool, shape: Shape | None = None
) -> None:
    """Write activation(rows gate) * (rows up) into `out` [rows, outputs]."""
    outputs, inputs = gate.shape
    count, between = len(rows), (up.data_ptr() - gate.data_ptr()) // gate.element_size()
    shape = shape or shape_of(count, rows.dtype, gated=True)
    width, groups, even = shape.outputs, shape.groups(count), inputs % shape.step == 0
    numbers, how = (out, count, inputs, outputs), dict(gelu=gelu, **_options(shape, rows))
    if shape.wide and even:
        both: Any = gate, between
        more = shape.more
        if shape.copied:
            both, more = [_described(each, width, shape.step) for each in (gate, up)], 0
        multiply_gated_wide[(groups, triton.cdiv(outputs, width + more))](
            *_tiles_of(rows, shape), *both, *numbers, width=width, width2=more,
            copied=shape.copied, **how,
        )  # fmt: skip
    else:
        multiply_gated[(triton.cdiv(outputs, width), groups)](
            rows, gate, between, *numbers, width=width, even=even, **how
        )


def _options(shape: Shape, rows: Tensor) -> dict[str, Any]:
    """Of a launch: those that all kernels have."""
    tile, tile2 = shape.tiles
    # What other programs read again, right after it was read, is to stay in the cache.
    once = not shape.wide or shape.groups(len(rows)) == 1
    return dict(
        tile=tile, tile2=tile2, step=shape.step, fetched=_FETCHED,
        policy="evict_first" if once else "", num_warps=shape.warps, num_stages=shape.stages,
        **chained(rows.device),
    )  # fmt: skip


def _three(values: Sequence[int], count: int = 3) -> list[int]:
    return [*values, *[0] * (count - len(values))]


def _tiles_of(rows: Tensor, shape: Shape) -> list[TensorDescriptor]:
    """The rows for the copy engine, in tiles of both sizes."""
    return [_described(rows, tile or shape.tiles[0], shape.step) for tile in shape.tiles]


def _described(values: Tensor, outer: int, inner: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(values, [outer, inner])
