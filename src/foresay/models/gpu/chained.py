"""Kernels that begin before the one before them has ended (programmatic dependent launch).

A kernel that has said `begin_early` lets the next one start as soon as there are free processors;
that one may read what no kernel of the step writes (the step's inputs), fetch the first of its
weights, and then has to wait. All kernels of a step do both, so that who waits for the one before
it waits for all.
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from triton.language.extra import cuda  # type: ignore[import-untyped]

__all__ = [
    "begin_early",
    "chained",
    "fetch",
    "fetch_bytes",
    "is_hopper",
    "wait_for_kernel_before",
]


def chained(device: torch.device) -> dict[str, Any]:
    """The options of a kernel's launch. Kernels that have to give the same bits are compiled alike:
    a product and a sum may be one operation, whatever is usual in this version of Triton."""
    can = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    how = {"chained": True, "launch_pdl": True} if can else {"chained": False}
    return {**how, "enable_fp_fusion": True}


def is_hopper(device: torch.device) -> bool:
    """Whether it has the instructions of compute capability 9.0, which later GPUs have not."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


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
