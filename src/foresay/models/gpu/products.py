"""Products of rows and weights, in Triton: a row's bits do not depend on how many rows there are.

The weights are the left side of each product and the rows the right one, 16 to 256 at a time: so
few rows cost what one costs, and the sum over the inputs has the same order whatever their number.
Where a matrix has too few outputs to keep a GPU busy, its inputs are divided into parts, a number
that the matrix alone decides; whoever reads the result adds them in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

from foresay.models.gpu.chained import chained, is_hopper
from foresay.models.gpu.product_kernels import (
    multiply,
    multiply_gated,
    multiply_gated_wide,
    multiply_wide,
)
from foresay.models.gpu.product_shapes import OUTPUTS, Shape, plain_shape, shape_of

try:
    from triton.experimental.gluon import language as gl  # type: ignore[import-untyped]
    from triton.experimental.gluon.nvidia.hopper import (  # type: ignore[import-untyped]
        TensorDescriptor as GluonDescriptor,
    )

    from foresay.models.gpu.hopper_kernels import multiply_early
except ImportError:  # a Triton without Gluon, or with another one
    multiply_early = None

__all__ = ["Matrix", "gated_product", "matrix_of", "product"]

_PROGRAMS = 120  # that keep a GPU busy, at least
_GRAIN = 128  # inputs of a part are a multiple
_LEAST, _MOST = 384, 3072  # inputs of a part
_FETCHED = 128  # inputs of a program that are fetched while it waits


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
    tiles = sum(triton.cdiv(weight.shape[0], OUTPUTS) for weight in weights)
    parts = max(triton.cdiv(_PROGRAMS, tiles), triton.cdiv(inputs, _MOST))
    part = triton.cdiv(triton.cdiv(inputs, parts), _GRAIN) * _GRAIN
    return Matrix(weights, min(max(part, _LEAST), inputs))


def product(rows: Tensor, matrix: Matrix, out: Tensor, shape: Shape | None = None) -> None:
    """Write the product into `out` float32 [parts, rows, outputs].

    rows   [rows, inputs], contiguous, of the weights' dtype
    shape  None: the usual one
    """
    first, *others = matrix.weights
    offsets = [(other.data_ptr() - first.data_ptr()) // first.element_size() for other in others]
    sizes = [int(weight.shape[0]) for weight in matrix.weights]
    count, inputs = rows.shape
    shape, even = _that_fits(shape, rows, matrix.part, gated=False)
    many, groups = sum(triton.cdiv(size, shape.outputs) for size in sizes), shape.groups(count)
    if shape.kernel == "early":
        _early(
            shape, rows, [*matrix.weights, first, first][:3], (groups, many, matrix.parts), out,
            inputs, matrix.part, matrix.outputs, *_three(sizes), many=len(sizes), gated=False,
            gelu=False,
        )  # fmt: skip
        return
    numbers = (
        out, count, inputs, matrix.part, matrix.outputs, *_three(sizes), *_three(offsets, 2)
    )  # fmt: skip
    how = dict(outputs=shape.outputs, **_options(shape, rows))
    if shape.kernel == "plain":
        multiply[(many, matrix.parts, groups)](rows, first, *numbers, even=even, **how)
        return
    copied = shape.kernel == "copied" and not others
    weights = _described(first, shape.outputs, shape.step) if copied else first
    multiply_wide[(groups, many, matrix.parts)](
        *_tiles_of(rows, shape), weights, *numbers, copied=copied, **how
    )


def gated_product(
    rows: Tensor, gate: Tensor, up: Tensor, out: Tensor, *, gelu: bool, shape: Shape | None = None
) -> None:
    """Write activation(rows gate) * (rows up) into `out` [rows, outputs]."""
    outputs, inputs = gate.shape
    count, between = len(rows), (up.data_ptr() - gate.data_ptr()) // gate.element_size()
    shape, even = _that_fits(shape, rows, inputs, gated=True)
    width, groups = shape.outputs, shape.groups(count)
    if shape.kernel == "early":
        _early(
            shape, rows, [gate, up, up], (groups, triton.cdiv(outputs, width), 1), out, inputs,
            inputs, outputs, outputs, 0, 0, many=1, gated=True, gelu=gelu,
        )  # fmt: skip
        return
    numbers, how = (out, count, inputs, outputs), dict(gelu=gelu, **_options(shape, rows))
    if shape.kernel == "plain":
        multiply_gated[(triton.cdiv(outputs, width), groups)](
            rows, gate, between, *numbers, width=width, even=even, **how
        )
        return
    both: Any = gate, between
    copied = shape.kernel == "copied"
    if copied:
        both = [_described(each, width, shape.step) for each in (gate, up)]
    multiply_gated_wide[(groups, triton.cdiv(outputs, width + shape.more))](
        *_tiles_of(rows, shape), *both, *numbers, width=width, width2=shape.more, copied=copied,
        **how,
    )  # fmt: skip


def _that_fits(shape: Shape | None, rows: Tensor, part: int, *, gated: bool) -> tuple[Shape, bool]:
    """The shape that is used, and whether all of its steps are whole: else it is a plain one."""
    inputs = rows.shape[1]
    if shape is None:
        on_hopper = is_hopper(rows.device) and multiply_early is not None
        shape = shape_of(len(rows), rows.dtype, gated=gated, hopper=on_hopper)
    even = inputs % shape.step == 0 and part % shape.step == 0
    if shape.kernel != "plain" and not even:
        shape = plain_shape(len(rows), rows.dtype, gated=gated)
        even = inputs % shape.step == 0 and part % shape.step == 0
    return shape, even


def _early(
    shape: Shape,
    rows: Tensor,
    weights: Sequence[Tensor],
    grid: tuple[int, int, int],
    *numbers: Any,
    many: int,
    gated: bool,
    gelu: bool,
) -> None:
    """By the kernel for Hopper; `numbers`: `out`, and what follows the number of rows."""
    kind = gl.bfloat16 if rows.dtype == torch.bfloat16 else gl.float16

    def described(values: Tensor, outer: int) -> Any:
        block = [outer, shape.step]
        layout = gl.NVMMASharedLayout.get_default_for(block, kind)
        return GluonDescriptor.from_tensor(values, block, layout)

    (tile, tile2), (out, *others) = shape.tiles, numbers
    multiply_early[grid](
        *(described(each, shape.outputs) for each in weights), described(rows, tile),
        described(rows, tile2 or tile), out, len(rows), *others, stages=shape.stages, many=many,
        gated=gated, more=tile2 > 0, lag=shape.lag, gelu=gelu, num_warps=shape.warps,
        launch_pdl=True, enable_fp_fusion=True,
    )  # fmt: skip


def _options(shape: Shape, rows: Tensor) -> dict[str, Any]:
    """Of a launch: those that Triton's kernels have."""
    tile, tile2 = shape.tiles
    # What other programs read again, right after it was read, is to stay in the cache.
    once = shape.kernel == "plain" or shape.groups(len(rows)) == 1
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
