"""What the kernels of a step read: one buffer of int32, which the core fills, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresay._core import PagedStep
from foresay.arrays import Int32s

__all__ = ["Staging", "StepInputs"]


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """Views of the device's buffer for a step of so many rows and items; see csrc/paged/step.hpp.

    tokens, positions, slots, row_paths    of each row
    first_results, strides, counts         of each row: where its chunks' results are
    items, path_slots, path_ends, heap     what the rows attend to
    by_span                                whether items are spans of chunks
    """

    row_capacity: int
    item_capacity: int
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    row_paths: Tensor
    first_results: Tensor
    strides: Tensor
    counts: Tensor
    items: Tensor
    path_slots: Tensor
    path_ends: Tensor
    heap: Tensor
    by_span: bool = False

    @classmethod
    def of(cls, buffer: Tensor, rows: int, items: int, by_span: bool = False) -> StepInputs:
        sizes = [rows] * PagedStep.ROW_FIELDS + [items * PagedStep.ITEM_FIELDS, rows, rows]
        ends = np.cumsum(sizes).tolist()
        parts = [buffer[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        fields: Any = (rows, items, *parts, buffer[ends[-1] :], by_span)
        return cls(*fields)


class Staging:
    """The buffer on the device, and pinned memory from which it is written.

    Pinned memory is written again only when the copy from it is done: there are several, taken in
    turn.
    """

    def __init__(self, size: int, device: torch.device, turns: int = 3) -> None:
        self.buffer: Tensor = torch.zeros(size, dtype=torch.int32, device=device)
        on_gpu = device.type == "cuda"
        self._hosts = [
            torch.empty(size, dtype=torch.int32, pin_memory=on_gpu) for _ in range(turns)
        ]
        self._arrays: Sequence[Any] = [host.numpy() for host in self._hosts]
        self._done: list[Any] = [torch.cuda.Event() if on_gpu else None for _ in range(turns)]
        self._turn = 0

    def send(self, step: PagedStep, tokens: Int32s, rows: int, items: int) -> None:
        """Write a step into the device's buffer, after all that the device was given before.

        Raises: InputError for a step that does not fit.
        """
        self._turn = (self._turn + 1) % len(self._hosts)
        host, done = self._hosts[self._turn], self._done[self._turn]
        if done is not None:
            done.synchronize()
        step.fill(tokens, rows, items, self._arrays[self._turn])
        size = step.size(rows, items)
        self.buffer[:size].copy_(host[:size], non_blocking=True)
        if done is not None:
            done.record()
