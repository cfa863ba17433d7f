"""Repetition, presence and frequency penalties in a Triton kernel, for CUDA.

With TRITON_INTERPRET=1 it runs on the CPU, slowly.

Valid until: for ever. Raises: nothing. GIL: held while the work is handed to the device.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from foresay.sampling.acceptance import planned

__all__ = ["penalise", "split"]

_BLOCK, _WARPS = 1024, 4
_PROGRAMS = 2048  # a few for each of a GPU's multiprocessors
_IN_TEXT = tl.constexpr(planned.IN_TEXT)


def penalise(part: Tensor, table: Tensor, tables: Tensor, penalties: Tensor) -> None:
    """Subtract and divide as the texts' tables of counts say. Mutates: `part`, float32 [R, V]."""
    rows, vocabulary = part.shape
    splits, size = split(rows, vocabulary, _BLOCK)
    here: Any = torch.cuda.device_of
    with here(part):
        subtract[(rows, splits)](
            part, table, tables, penalties, vocabulary, size, block=_BLOCK, num_warps=_WARPS,
            enable_fp_fusion=False,
        )  # fmt: skip


def split(rows: int, vocabulary: int, block: int) -> tuple[int, int]:
    """How many programs share a row, and how many tokens each has."""
    splits = max(1, min(_PROGRAMS // rows, triton.cdiv(vocabulary, block), 64))
    part = triton.cdiv(triton.cdiv(vocabulary, splits), block) * block
    return triton.cdiv(vocabulary, part), part


@triton.jit  # type: ignore[untyped-decorator]
def subtract(  # type: ignore[no-untyped-def]
    part_at, table_at, tables_at, penalties_at, vocabulary, size, block: tl.constexpr
):
    """Repetition, presence and frequency penalties on one part of a row."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    table, rows = tl.load(tables_at + row).to(tl.int64), tl.num_programs(0)
    if table >= 0:
        repetition = tl.load(penalties_at + row)
        presence = tl.load(penalties_at + rows + row)
        frequency = tl.load(penalties_at + 2 * rows + row)
        begin, end = split * size, tl.minimum(split * size + size, vocabulary)
        for start in range(begin, end, block):
            ids = start + tl.arange(0, block)
            x = tl.load(part_at + row * vocabulary + ids, ids < end, 0.0)
            seen = tl.load(table_at + table * vocabulary + ids, ids < end, 0)
            count = seen & (_IN_TEXT - 1)
            repeated = tl.where(x < 0, x * repetition, tl.div_rn(x, repetition))
            x = tl.where(seen > 0, repeated, x)
            x = tl.where(count > 0, x - presence, x)
            x = x - frequency * count.to(tl.float32)
            tl.store(part_at + row * vocabulary + ids, x, ids < end)
