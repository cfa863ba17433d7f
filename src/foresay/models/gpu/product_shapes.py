"""How products are divided among programs, by number of rows: chosen on an H200, in a run whose
record is lost."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-untyped]

__all__ = ["OUTPUTS", "Shape", "plain_shape", "shape_of"]

OUTPUTS = 64  # of one program, where there are few rows


class Shape(NamedTuple):
    """The division of a product. It changes the time only: a row's sum has the same order in all.

    outputs  of a program; gates and as many ups, where it is gated
    tiles    rows of a program: of two products that share its weights
    step     inputs of a step of it; stages: how many steps are under way
    kernel   "plain": rows and weights by their addresses; "wide": rows by the copy engine;
             "copied": the weights too, of one matrix or of gate and up; "early": these before the
             kernel waits, on Hopper
    more     outputs of a second tile of weights: of a "wide" one that is gated
    lag      see `hopper_kernels.multiply_early`
    """

    outputs: int
    tiles: tuple[int, int]
    step: int
    warps: int
    stages: int
    kernel: str = "plain"
    more: int = 0
    lag: int = 0

    def groups(self, rows: int) -> int:
        """Of so many rows, those of different programs."""
        return -(-rows // sum(self.tiles))


# Up to so many rows: of a product, and of a gated one. Weights that come early are worth most where
# they are small: a gated product has enough to read for itself.
_SHAPES = {
    16: (Shape(64, (16, 0), 128, 4, 5, "early"), Shape(64, (16, 0), 128, 4, 3)),
    32: (Shape(64, (32, 0), 128, 4, 4, "early"), Shape(64, (32, 0), 64, 4, 5, "copied")),
    64: (Shape(64, (64, 0), 128, 4, 3, "early"), Shape(64, (64, 0), 64, 4, 4, "copied")),
    80: (Shape(64, (64, 16), 64, 4, 6, "early", lag=1), Shape(64, (64, 32), 64, 4, 4, "copied")),
    96: (Shape(64, (64, 32), 64, 4, 5, "early", lag=1), Shape(64, (64, 32), 64, 4, 4, "copied")),
    128: (Shape(64, (128, 0), 64, 4, 4, "early"), Shape(64, (128, 0), 64, 8, 5, "wide", more=32)),
    160: (Shape(64, (128, 32), 64, 4, 8, "early", lag=1), Shape(64, (128, 32), 64, 4, 3, "copied")),
    192: (
        Shape(64, (128, 64), 64, 4, 7, "early", lag=1),
        Shape(64, (128, 64), 64, 8, 4, "wide", more=32),
    ),
    256: (
        Shape(128, (128, 0), 64, 8, 7, "early", lag=1),
        Shape(64, (256, 0), 64, 8, 4, "wide", more=32),
    ),
    384: (
        Shape(64, (256, 128), 64, 4, 4, "early", lag=1),
        Shape(64, (128, 0), 64, 4, 3, "copied"),
    ),
}
_MANY = Shape(128, (128, 0), 64, 4, 3, "copied"), Shape(64, (128, 0), 64, 4, 3, "copied")


def shape_of(rows: int, dtype: torch.dtype, *, gated: bool = False, hopper: bool = True) -> Shape:
    """The usual one."""
    if dtype == torch.float32:
        return plain_shape(rows, dtype, gated=gated)
    found = next((both for most, both in _SHAPES.items() if rows <= most), _MANY)[gated]
    fits = hopper or found.kernel != "early"
    return found if fits else plain_shape(rows, dtype, gated=gated)


def plain_shape(rows: int, dtype: torch.dtype, *, gated: bool = False) -> Shape:
    """For any matrix and any GPU."""
    tiles = _tiles(rows)
    if dtype == torch.float32:
        return Shape(OUTPUTS, tiles, 32, 4, 2)
    if gated:
        few = rows <= 32
        return Shape(OUTPUTS, tiles, 128 if few else 64, 4, 4 if 32 < rows <= 64 else 3)
    if rows <= 64:
        return Shape(OUTPUTS, tiles, 128, 4, 4)
    return Shape(OUTPUTS, tiles, 64, 4, 4) if rows <= 160 else Shape(128, tiles, 64, 4, 3)


def _tiles(rows: int) -> tuple[int, int]:
    if rows > 160:
        return 128, 0
    if 64 < rows <= 96:
        return 64, 32
    first = min(triton.next_power_of_2(max(rows, 16)), 128)
    return first, 32 if first < rows else 0
