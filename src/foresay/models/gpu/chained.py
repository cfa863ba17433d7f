"""Kernels that begin before the one before them has ended (programmatic dependent launch).

A kernel that has said `begin_early` lets the next one start as soon as there are free processors;
that one may read what no kernel of the step writes (the step's inputs), fetch the first of its
weights, and then has to wait. All kernels of a step do both, so that who waits for the one before
it waits for all.

Kernels that have little to read leave the memory idle. Their first programs may do nothing but
fetch weights of the kernels behind them (`Ahead`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from triton.language.extra import cuda  # type: ignore[import-untyped]

__all__ = [
    "NOTHING",
    "Ahead",
    "begin_early",
    "chained",
    "fetch",
    "fetch_ahead",
    "fetch_bytes",
    "wait_for_kernel_before",
]

_FETCHERS = 132  # programs that fetch ahead: one for each processor of an H200
_PIECE = tl.constexpr(8192)  # bytes that are asked for at once


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Weights that a kernel brings into the L2 cache for the kernels behind it; None: nothing."""

    weights: Tensor | None = None

    @classmethod
    def of(cls, weights: Tensor, begin: int, size: int) -> Ahead:
        """So many bytes of these weights from there on, as far as there are."""
        if not size:
            return NOTHING
        each = weights.element_size()
        part = weights.view(-1)[begin // each : (begin + size) // each]
        return cls(part) if part.nbytes >= 16 and chained(weights.device)["chained"] else NOTHING

    def programs(self, across: int = 1) -> int:
        """Along the first axis of a grid that has `across` of them along the second."""
        return 0 if self.weights is None else -(-_FETCHERS // across)

    def arguments(self, across: int = 1) -> dict[str, Any]:
        """Of a kernel that fetches them."""
        return {
            "ahead_at": self.weights,
            "ahead_bytes": 0 if self.weights is None else self.weights.nbytes // 16 * 16,
            "fetchers": self.programs(across),
        }


NOTHING = Ahead()


def chained(device: torch.device) -> dict[str, Any]:
    """The options of a kernel's launch."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"chained": True, "launch_pdl": True} if can else {"chained": False}


@triton.jit  # type: ignore[untyped-decorator]
def begin_early(chained: tl.constexpr):  # type: ignore[no-untyped-def]
    """The next kernel may start."""
    if chained:
        cuda.gdc_launch_dependents()


@triton.jit  # type: ignore[untyped-decorator]
def wait_for_kernel_before(chained: tl.constexpr):  # type: ignore[no-untyped-def]
    """From here on, what earlier kernels have written can be read, and what they read written."""
    if chained:
        cuda.gdc_wait()


@triton.jit  # type: ignore[untyped-decorator]
def fetch(pointers, chained: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bring the lines of memory at these places into the L2 cache."""
    if chained:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointers.to(tl.int64)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def fetch_bytes(address, size):  # type: ignore[no-untyped-def]
    """Bring so many bytes into the L2 cache: 16 or a multiple, at a multiple of 16. One thread
    asks, and nobody waits for them."""
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred first;
            .reg .u32 thread;
            mov.u32 thread, %tid.x;
            setp.eq.u32 first, thread, 0;
            @first cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,r", [address, size], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def fetch_ahead(ahead_at, ahead_bytes, program, programs):  # type: ignore[no-untyped-def]
    """One of so many programs: its pieces of these bytes, in turn with the others."""
    begin = ahead_at.to(tl.int64) & -16
    for at in range(program * _PIECE, ahead_bytes, programs * _PIECE):
        fetch_bytes(begin + at, tl.minimum(ahead_bytes - at, _PIECE))
