"""Slow twins for paged keys and values: a device's memory that knows which token each slot holds,
and what the kernel `attend` of models/gpu/attention.py reads of a step's numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

import numpy as np

from core.brute import int32s
from foresay._core import PagedStep, PagedText, PagePool
from foresay.arrays import Int32s

__all__ = ["BLOCK", "Memory", "Seen", "Text", "chunk_of", "path_to", "read_as_attend_does"]

BLOCK = 64
_AT_ONCE = 16  # copies that the kernel `copy_slots` reads before it writes


@dataclass(eq=False)
class Text:
    """A text and what it should hold: the ids of its tokens, then those of its last step's rows."""

    pages: PagedText
    ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def keep(self, path: Sequence[int]) -> None:
        self.ids += [self.rows[row] for row in path]
        self.rows = []


class Memory:
    """A pool, and the token of every slot."""

    def __init__(self, pages: int, rng: random.Random) -> None:
        self.pool = PagePool(pages)
        self.held = np.full((pages + 1) * BLOCK, -1, np.int64)
        self._rng, self._next = rng, 0

    def copy(self) -> None:
        """Do what the device has to copy. Groups of a batch may run at the same time: none touches
        what another writes, and so they run in any order."""
        while (batch := self.pool.next_copies()) is not None:
            self.pool.copied()
            source, target, offsets = batch
            groups = [slice(*ends) for ends in pairwise(offsets.tolist())]
            writers: dict[int, int] = {}
            for number, group in enumerate(groups):
                assert group.start < group.stop
                writers |= dict.fromkeys(target[group].tolist(), number)
            assert len(writers) == len(target), "a slot is written twice"
            assert all(target >= BLOCK) and all(source >= BLOCK), "page 0 belongs to nobody"
            for number, group in enumerate(groups):
                for slot in source[group].tolist():
                    assert writers.get(slot, number) == number, "a group reads another's slot"
            self._rng.shuffle(groups)
            for group in groups:
                for at in range(group.start, group.stop, _AT_ONCE):
                    some = slice(at, min(at + _AT_ONCE, group.stop))
                    self.held[target[some]] = self.held[source[some]]

    def step(
        self,
        texts: Sequence[Text],
        parents: Sequence[list[int]],
        tile: int = 8,
        least_items: int = 0,
        chunk: int = 2,
    ) -> PagedStep:
        """A step that is computed: each row's keys are written to its slot.

        Raises: what PagedStep does; then nothing has changed.
        """
        offsets = np.cumsum([0, *map(len, parents)]).astype(np.int32)
        pages = [text.pages for text in texts]
        for text in texts:
            text.rows, text.parents = [], []
        step = PagedStep(tuple(pages), offsets, int32s(chain(*parents)), tile, least_items, chunk)
        self.copy()
        step.end()
        for text, own in zip(texts, parents, strict=True):
            text.rows, text.parents = list(range(self._next, self._next + len(own))), own
            self._next += len(own)
            slots = text.pages.slots()[len(text.ids) :]
            self.held[slots] = text.rows
        return step

    def check(self, texts: Sequence[Text]) -> None:
        """Each text holds its tokens, and each page that is not free is one of theirs."""
        self.copy()
        used: set[int] = set()
        for text in texts:
            text.pages.check_integrity()
            slots, whole = text.pages.slots(), text.ids + text.rows
            assert text.pages.length == len(text.ids)
            assert self.held[slots].tolist() == whole
            assert text.pages.capacity == -(-len(whole) // BLOCK) * BLOCK
            assert (slots % BLOCK == np.arange(len(slots)) % BLOCK).all()
            used |= set((slots // BLOCK).tolist())
        assert 0 not in used and self.pool.free + len(used) == self.pool.pages


def path_to(parents: Sequence[int], row: int) -> list[int]:
    """The rows from the root to this one."""
    path: list[int] = []
    while row >= 0:
        path.insert(0, row)
        row = parents[row]
    return path


Seen = list[tuple[int, int, list[tuple[int, int]]]]
"""Of one row, in order: a result, a block in it, and the keys of it that the row sees: the place in
the block, and the slot."""


def chunk_of(block: int, size: int = 2) -> int:
    """By position alone: 16 blocks in chunks of that size, then 4 chunks of 4, then of 16."""
    if block < 16:
        return block // size
    begin = 16 // size
    return begin + (block - 16) // 4 if block < 32 else begin + 4 + (block - 32) // 16


def read_as_attend_does(
    buffer: Int32s, rows: int, items: int, window: int
) -> tuple[dict[int, Seen], list[tuple[int, int]]]:
    """What each row sees, and the places of results that were written, with the row. A result is
    the how manieth of the row's own."""
    ends = np.cumsum([*[rows] * 7, items * 10, rows, rows])
    _, positions, _, row_paths, firsts, strides, counts, flat, path_slots, path_ends, heap = (
        part.tolist() for part in np.split(buffer, ends)
    )
    seen: dict[int, Seen] = {row: [] for row in range(rows)}
    written: list[tuple[int, int]] = []
    for item in np.reshape(flat, (items, 10)).tolist():
        first, size, pages, stored, path_begin, path_end, begin, end, out, low = item
        mine = [r for r in range(first, first + size) if path_begin <= row_paths[r] < path_end]
        written += [(out + row - first, row) for row in mine]
        if window:
            begin = max(begin, max(low - window + 1, 0) // BLOCK)
        whole = stored // BLOCK
        for row in mine:
            chunk, rest = divmod(out + row - first - firsts[row], strides[row])
            assert rest == 0 and 0 <= chunk < counts[row]
            nearest = positions[row] - (window or 1 << 30)
            for at in range(begin, min(end, whole)):
                keys = range(max(at * BLOCK, nearest + 1), (at + 1) * BLOCK)
                page = heap[pages + at] * BLOCK
                found = [(key % BLOCK, page + key % BLOCK) for key in keys]
                seen[row] += [(chunk, at, found)] if found else []
            for path in range(path_begin, path_end) if end > whole else ():
                last, slots = path_ends[path], path_slots[path] - whole * BLOCK
                for at in range(max(begin, whole), min(end, -(-last // BLOCK))):
                    if row_paths[row] != path:
                        continue
                    keys = range(at * BLOCK, min((at + 1) * BLOCK, last))
                    visible = [key for key in keys if nearest < key <= positions[row]]
                    found = [(key % BLOCK, heap[slots + key]) for key in visible]
                    seen[row] += [(chunk, at, found)] if found else []
    # Items may run in any order; a row's results are added in theirs.
    return {row: sorted(its, key=lambda one: one[0]) for row, its in seen.items()}, written
