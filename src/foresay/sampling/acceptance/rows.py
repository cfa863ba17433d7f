"""The rows of a step: logits after every request's text so far, and after every drafted node.

Request i with n nodes has n + 1 rows in a row: the first after its text, the next after node 0, and
so on. Everything here is small and in numpy; loops go over depths, never over requests or nodes.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import sizes_of
from foresay.draft import DraftBatch

__all__ = ["Longs", "Rows"]

Longs: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Rows:
    """R rows of B requests, as columns."""

    starts: Longs
    """[B + 1]: request i has the rows from starts[i] to starts[i + 1]."""
    request: Longs
    parent: Longs
    """The row before: of the parent node, or of the text; -1 for the text itself."""
    token: Longs
    """The node's token; -1 for the text itself."""
    node: Longs
    """The node's number in all drafts; -1 for the text itself."""

    @classmethod
    def of(cls, drafts: DraftBatch) -> Rows:
        if not len(drafts.tokens):  # one row each
            starts, none = np.arange(len(drafts) + 1), np.full(len(drafts), -1, np.int64)
            return cls(starts, starts[:-1], none, none, none)
        sizes = sizes_of(drafts.offsets).astype(np.int64)
        starts = np.concatenate([[0], np.cumsum(sizes + 1)])
        request = np.repeat(np.arange(len(sizes)), sizes + 1)
        is_node = np.ones(len(request), bool)
        is_node[starts[:-1]] = False
        columns = np.full((3, len(request)), -1, np.int64)
        columns[0, is_node] = drafts.parents + 1 + starts[:-1][request[is_node]]
        columns[1, is_node] = drafts.tokens
        columns[2, is_node] = np.arange(len(drafts.tokens))
        return cls(starts, request, *columns)

    def __len__(self) -> int:
        return len(self.request)

    @cached_property
    def depth(self) -> Longs:
        """How many drafted tokens lie before the row."""
        depth, above = np.zeros(len(self), np.int64), self.parent
        while (above >= 0).any():
            depth += above >= 0
            above = np.where(above >= 0, self.parent[above], -1)
        return depth

    @cached_property
    def first_child(self) -> Longs:
        """The first row below, -1 if none."""
        first = np.full(len(self), -1, np.int64)
        below = np.flatnonzero(self.parent >= 0)[::-1]
        first[self.parent[below]] = below  # of several writes the last one stays
        return first

    @cached_property
    def next_sibling(self) -> Longs:
        """The next row with the same parent, -1 if none."""
        following = np.full(len(self), -1, np.int64)
        below = np.flatnonzero(self.parent >= 0)
        below = below[np.argsort(self.parent[below], kind="stable")]
        same = self.parent[below[:-1]] == self.parent[below[1:]]
        following[below[:-1][same]] = below[1:][same]
        return following

    def paths(self, last: Longs) -> Longs:
        """[B, depth + 1]: the rows from each request's text down to its `last` row, then -1."""
        table = np.full((len(last), int(self.depth[last].max(initial=0)) + 1), -1, np.int64)
        owner, row = np.arange(len(last)), last
        while len(row):
            table[owner, self.depth[row]] = row
            above = self.parent[row]
            owner, row = owner[above >= 0], above[above >= 0]
        return table
