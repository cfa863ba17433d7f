"""Steps as CUDA graphs: one for each size of step, so that the host starts a pass by one call.

Sizes are few: a step is filled up to the next. When a size is needed for the first time its kernels
are compiled and started one by one, and then captured for the next time. A step of many rows takes
longer than starting its kernels, and is not captured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

__all__ = ["ROW_SIZES", "Graphs", "item_size", "row_size"]

_MOST = 256  # graphs that are kept
_ROWS = 512  # of a step that is captured, at most


def row_size(rows: int) -> int:
    """Rows that a step of so many is filled up to: 16, 32, 64, 80, then multiples of 32 up to 256,
    of which products are made at once; behind that by a quarter of a power of 2."""
    if rows <= 80:
        return next(size for size in (16, 32, 64, 80) if size >= rows)
    grain = max(32, 1 << ((rows - 1).bit_length() - 3))
    return -(-rows // grain) * grain


ROW_SIZES = sorted({row_size(rows) for rows in range(1, 1025)})
"""Of steps that are not a long prefill."""


def item_size(items: int) -> int:
    """Items of attention that a step of so many is filled up to: powers of 2 from 16."""
    return max(16, 1 << (items - 1).bit_length())


class Graphs:
    """Captured steps by what they depend on, the least recently used of which are dropped.

    enabled  False: steps are always started kernel by kernel
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._graphs: OrderedDict[Hashable, Any] = OrderedDict()
        self._memory: Any = None  # that graphs share

    def run(self, key: Hashable, rows: int, step: Callable[[], None]) -> None:
        """Do `step`, of so many rows, which starts the same kernels at each call with this key,
        with the same arguments."""
        graph = self._graphs.get(key)
        if graph is not None:
            self._graphs.move_to_end(key)
            graph.replay()
            return
        step()
        if not self.enabled or rows > _ROWS:
            return
        made = torch.cuda.CUDAGraph()
        if self._memory is None:
            self._memory = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(made, pool=self._memory, capture_error_mode="thread_local"):
            step()
        self._graphs[key] = made
        while len(self._graphs) > _MOST:
            self._graphs.popitem(last=False)

    def drop(self) -> None:
        """Forget all: the memory that they use is another now."""
        self._graphs.clear()
