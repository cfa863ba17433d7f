"""Bytes of files on a device, piece by piece: one is read while the one before it is copied."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from foresay.errors import ModelError
from foresay.machine import usable_processors
from foresay.models.weights.hashes import readable

__all__ = ["PIECE_BYTES", "Pieces", "reading_pieces"]

PIECE_BYTES = 1 << 26
"""The largest piece."""

_PART_BYTES = 1 << 22  # that one thread reads at a time
_MOST_THREADS = 8


class Pieces:
    """Two buffers of the host in turn. Those for a GPU are pinned, so that the copy from one of
    them goes on while the other is filled. `reading_pieces` makes one.
    """

    def __init__(self, device: torch.device, pool: ThreadPoolExecutor) -> None:
        self._device, self._pool = device, pool
        self._pinned = device.type == "cuda"
        self._buffers: list[Tensor | None] = [None, None]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def read(self, file: Path, start: int, count: int, name: str) -> Tensor:
        """`count` bytes of a file from `start` on, uint8 on the device; at most PIECE_BYTES.

        name    of the tensor that they belong to, for errors

        Valid until: the next call but one, where the device is a processor. Raises: ModelError if
        the file cannot be read, or is shorter.
        """
        turn = self._turn = 1 - self._turn
        copied = self._copied[turn]
        if copied is not None:
            copied.synchronize()
        staged = self._buffer(turn, count)
        self._fill(staged, file, start, name)
        if not self._pinned:
            return staged
        moved = staged.to(self._device, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        self._copied[turn] = event
        return moved

    def _buffer(self, turn: int, count: int) -> Tensor:
        buffer = self._buffers[turn]
        if buffer is None or len(buffer) < count:  # a small model needs small ones
            size = max(count, PIECE_BYTES) if self._pinned else count
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=self._pinned)
            self._buffers[turn] = buffer
        return buffer[:count]

    def _fill(self, staged: Tensor, file: Path, start: int, name: str) -> None:
        """Nothing is mapped: who truncates a file in place would end a process that maps it."""
        view = memoryview(cast(Any, staged.numpy()))
        with readable(file), open(file, "rb", buffering=0) as opened:
            read = partial(_read_part, opened.fileno(), view, start)
            whole = range(0, len(view), _PART_BYTES)
            run = map if len(whole) == 1 else self._pool.map
            complete = all(list(run(read, whole)))  # all have ended before the file is closed
        if not complete:
            raise ModelError(f"'{file}' became shorter: it ends inside the tensor '{name}'")


@contextmanager
def reading_pieces(device: torch.device) -> Iterator[Pieces]:
    """A context with pieces for that device, and threads that read them."""
    with ThreadPoolExecutor(min(usable_processors(), _MOST_THREADS), "foresay-pieces") as pool:
        yield Pieces(device, pool)


def _read_part(file: int, view: memoryview, start: int, at: int) -> bool:
    """Fill the part of the view that begins there; whether the file had as much."""
    end = min(at + _PART_BYTES, len(view))
    while at < end:
        count = os.preadv(file, [view[at:end]], start + at)
        if count == 0:
            return False
        at += count
    return True
