"""What gpu_tune_products.py tries: the matrices of two models, shapes of their products, and the
kernels that these are."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import product as product_of
from typing import NamedTuple

import torch
from torch import Tensor

from foresay.models.gpu.product_shapes import Shape, plain_shape
from foresay.models.gpu.products import Matrix, gated_product, matrix_of, product

MEMORY = 225 * 1024  # of the tiles of all programs that an SM has at once
_ROWS = (16, 32, 64, 80, 96, 128, 160, 192, 256, 384, 512)
_OF_LOGITS = (16, 32, 64, 96, 128, 192, 256)


class Kind(NamedTuple):
    """A matrix of a model, or its gate and up.

    outputs  of each of its weights
    parts    numbers of parts that are tried beside the usual one; None: it is whole
    """

    name: str
    inputs: int
    outputs: tuple[int, ...]
    parts: tuple[int, ...] | None
    gated: bool = False
    rows: tuple[int, ...] = _ROWS

    def weights(self, together: Tensor) -> tuple[Tensor, ...]:
        """Of weights [all outputs, inputs]."""
        return tuple(together.split(self.outputs))

    def parts_of(self, weights: tuple[Tensor, ...]) -> list[int]:
        """Inputs of a part: the usual number, then the others."""
        if self.parts is None:
            return [self.inputs]
        others = (-(-self.inputs // (128 * count)) * 128 for count in self.parts)
        return list(dict.fromkeys((matrix_of(*weights).part, *others)))

    def made(
        self, rows: Tensor, weights: tuple[Tensor, ...], part: int, out: Tensor | None = None
    ) -> Callable[[Shape | None], Tensor]:
        """The product of these, by shape: it gives its result."""
        matrix = Matrix(weights, part)
        if out is None and self.gated:
            out = rows.new_empty(len(rows), self.outputs[0])
        elif out is None:
            size = matrix.parts, len(rows), matrix.outputs
            out = rows.new_empty(size, dtype=torch.float32)
        to = out

        def run(shape: Shape | None) -> Tensor:
            if self.gated:
                gated_product(rows, weights[0], weights[1], to, gelu=False, shape=shape)
            else:
                product(rows, matrix, to, shape)
            return to

        return run


KINDS = (
    Kind("8B gate, up", 4096, (12288, 12288), None, gated=True),
    Kind("8B down", 12288, (4096,), (2, 4, 6)),
    Kind("8B qkv", 4096, (4096, 1024, 1024), (2, 4)),
    Kind("8B out", 4096, (4096,), (2, 4)),
    Kind("1.5B gate, up", 1536, (8960, 8960), None, gated=True),
    Kind("1.5B down", 8960, (1536,), (5, 10)),
    Kind("1.5B qkv", 1536, (1536, 256, 256), (2, 6)),
    Kind("1.5B out", 1536, (1536,), (3, 6)),
    Kind("8B head", 4096, (151936,), None, rows=_OF_LOGITS),
    Kind("1.5B head", 1536, (151936,), None, rows=_OF_LOGITS),
)
"""Those of the bars first, if the time is over before all have been tried."""
TINY = (
    Kind("qkv", 256, (48, 16, 16), (1,), rows=(16, 40)),
    Kind("gate, up", 64, (48, 48), None, gated=True, rows=(40,)),
)


def tiles(rows: int) -> list[tuple[int, int]]:
    """How so many rows are divided."""
    one, many = [(256, 0), (128, 0)], [(128, 64), (128, 0), (256, 128)]
    some = {40: [(32, 16)], 80: [(64, 16)], 96: [(64, 32)]}
    some |= {160: [(128, 32)], 192: [(128, 64)]}
    return (some | {256: one, 384: many, 512: one}).get(rows, [(rows, 0)])


def candidates(kind: Kind, rows: int, part: int, dtype: torch.dtype) -> list[Shape]:
    """The one for any GPU first."""
    found = [plain_shape(rows, dtype, gated=kind.gated)]
    for tile in tiles(rows):
        found += _few(kind, tile) if rows <= 64 else []
        found += _wide(kind, tile)
        found += _early(kind, tile) if dtype != torch.float32 else []
    fitting = (one for one in found[1:] if part % one.step == 0 and _memory(kind, one) <= MEMORY)
    return list(dict.fromkeys([found[0], *fitting]))


def _few(kind: Kind, tile: tuple[int, int]) -> list[Shape]:
    """Steps of many inputs, which only few rows have room for."""
    of = partial(Shape, tiles=tile)
    if kind.gated:
        return [
            *(of(32, step=128, warps=4, stages=stages, kernel="wide") for stages in (4, 5)),
            of(64, step=128, warps=8, stages=3, kernel="wide"),
        ]
    found = [Shape(64, tile, 128, 4, 5), Shape(64, tile, 256, 4, 3)]
    for kernel in ("wide", "copied") if len(kind.outputs) == 1 else ("wide",):
        found += [of(64, step=128, warps=4, stages=stages, kernel=kernel) for stages in (4, 5)]
    return found


def _wide(kind: Kind, tile: tuple[int, int]) -> list[Shape]:
    """By height of its tiles of weights, warps, and how many programs an SM has at once: where one
    waits another goes on, but each reads the rows again."""
    heights = [(64, 4, 3), (64, 4, 2), (128, 4, 2), (128, 8, 2), (128, 8, 1)]
    heights += [(192, 8, 1)] * kind.gated + [(256, 8, 1)] * (sum(tile) > 64)
    found = [_filled(kind, tile, *each) for each in heights]
    if kind.gated or len(kind.outputs) == 1:
        least = 128 if kind.gated else 64  # a copied tile has gates or ups only
        some = [each for each in heights if each[0] in (least, 128, 256) and each[2] < 3]
        found += [_filled(kind, tile, *each, kernel="copied") for each in some]
    return [shape for shape in found if shape is not None]


def _filled(
    kind: Kind, tile: tuple[int, int], height: int, warps: int, at_once: int, kernel: str = "wide"
) -> Shape | None:
    """With as many steps under way as there is memory for; None: too few, or too few registers."""
    outputs, more = height // (1 + kind.gated), 0
    if height == 192:
        outputs, more = 64, 32
    if height * sum(tile) > 200 * 32 * warps:
        return None
    for step in (64, 32):
        one = Shape(outputs, tile, step, warps, 1, kernel, more)
        stages = min(MEMORY // at_once // _memory(kind, one), 6)
        if stages >= 3:
            return one._replace(stages=stages)
    return None


def _early(kind: Kind, tile: tuple[int, int]) -> list[Shape]:
    """With one program or two at once on each SM."""
    found, limit = list[Shape](), 200 * 32  # numbers that a warp has registers for
    for (outputs, warps), at_once, step in product_of(((64, 4), (128, 8)), (2, 1), (64, 128)):
        one = Shape(outputs, tile, step, warps, 1, "early")
        stages = min((MEMORY // at_once - 1024) // _memory(kind, one), 12)
        few = sum(tile) <= 64
        if outputs * (1 + kind.gated) * sum(tile) < limit * warps and (few or step == 64):
            lags = (0,) if sum(tile) <= 32 else (0, 1)
            found += [one._replace(stages=stages, lag=lag) for lag in lags if stages > 1 + lag]
    return found


def _memory(kind: Kind, shape: Shape) -> int:
    """Bytes of a program's tiles."""
    weights = (shape.outputs + shape.more) * (1 + kind.gated)
    return 2 * (weights + sum(shape.tiles)) * shape.step * shape.stages


def tell(shape: Shape) -> str:
    """Outputs x rows x inputs of a step, warps, stages, and what it is."""
    outputs = f"{shape.outputs}+{shape.more}" if shape.more else f"{shape.outputs}"
    rows = "+".join(str(tile) for tile in shape.tiles if tile)
    words = [shape.kernel] * (shape.kernel != "plain") + ["lag"] * shape.lag
    return " ".join([f"{outputs} x {rows} x {shape.step} w{shape.warps} s{shape.stages}", *words])


# Compiling


class Kernel(NamedTuple):
    """What Triton compiles once: of one weight, of several, or of a gate and its up."""

    weights: int
    gated: bool
    shape: Shape
    once: bool  # there is one group of rows


def kernel_of(kind: Kind, rows: int, shape: Shape) -> Kernel:
    return Kernel(len(kind.outputs), kind.gated, shape, shape.groups(rows) == 1)


def kernels_of(kinds: Sequence[Kind]) -> list[Kernel]:
    found: dict[Kernel, None] = {}
    for kind in kinds:
        nothing = torch.empty(sum(kind.outputs), kind.inputs, device="meta")
        for rows in kind.rows:
            for part in kind.parts_of(kind.weights(nothing)):
                shapes = candidates(kind, rows, part, torch.bfloat16)
                found |= dict.fromkeys(kernel_of(kind, rows, shape) for shape in shapes)
    return list(found)


def compile_kernel(kernel: Kernel) -> None:
    """Start it on little, in a process of its own, which fills Triton's cache."""
    kind = Kind("", 512, (64,) * kernel.weights, None, kernel.gated)
    zeros = partial(torch.zeros, device="cuda", dtype=torch.bfloat16)
    rows = zeros(sum(kernel.shape.tiles) * (1 if kernel.once else 2), 512)
    kind.made(rows, kind.weights(zeros(sum(kind.outputs), 512)), 512)(kernel.shape)


def compile_all(wanted: Sequence[Kernel], seconds: float) -> dict[Kernel, str]:
    """Those that were not compiled, and why."""
    found = dict.fromkeys(wanted, "no time was left to compile it")
    cores = len(os.sched_getaffinity(0))
    pool = ProcessPoolExecutor(cores, multiprocessing.get_context("spawn"))
    futures = {pool.submit(compile_kernel, kernel): kernel for kernel in wanted}
    with suppress(TimeoutError):
        for future in as_completed(futures, seconds):
            error = future.exception()
            # Where processes end by themselves, kernels are compiled when they are needed.
            fine = error is None or isinstance(error, BrokenProcessPool)
            found[futures[future]] = "" if fine else said(error)
    pool.shutdown(wait=False, cancel_futures=True)
    return {kernel: why for kernel, why in found.items() if why}


def said(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"[:300]
