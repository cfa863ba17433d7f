"""The memory that the kernels of a step write into: made for the largest step, shared by all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foresay.models.gpu.attention import Heads
from foresay.models.gpu.products import Matrix

__all__ = ["Sizes", "Workspace", "WorkspaceMemory"]

_ROWS, _RESULTS = 512, 4096  # at first: few steps are larger


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of one row.

    width    of the residual; inner, between gate and down
    parts    of a product whose parts are added later, at most
    vocabulary  of the logits
    """

    width: int
    inner: int
    parts: int
    vocabulary: int
    heads: Heads


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Views for a step of so many rows.

    residual  float32 [rows, width]; normed, of the model's dtype
    query     [rows, query heads, padded]; attended [rows, query heads * width]
    gated     [rows, inner]
    results   float32 [.., query heads, padded] and states [2 * .. * query heads]: of chunks
    hidden    float32 [rows, width] for each layer that is asked for
    """

    rows: int
    residual: Tensor
    normed: Tensor
    query: Tensor
    attended: Tensor
    gated: Tensor
    parts: Tensor
    results: Tensor
    states: Tensor
    hidden: Sequence[Tensor]

    def products(self, matrix: Matrix) -> Tensor:
        """Of a matrix: float32 [parts, rows, outputs]; they all have the same memory."""
        size = matrix.parts * self.rows * matrix.outputs
        return self.parts[:size].view(matrix.parts, self.rows, matrix.outputs)


class WorkspaceMemory:
    """The memory behind the views; it grows, and then the views that were are no longer used:
    `grown` counts that."""

    def __init__(self, sizes: Sizes, dtype: torch.dtype, device: torch.device) -> None:
        self.grown = 0
        self._sizes, self._dtype, self._device = sizes, dtype, device
        self._rows = self._results = self._hidden = 0
        self._logits: Tensor | None = None

    def reserve(self, rows: int, results: int, hidden: int) -> None:
        """Memory for a step of so many rows, with so many rows of chunks' results, that gives so
        many hidden states.

        Raises: torch's OutOfMemoryError.
        """
        if rows > self._rows or results > self._results or hidden > self._hidden:
            self._make(
                max(rows, self._rows, _ROWS),
                max(1 << (results - 1).bit_length(), self._results, _RESULTS),
                max(hidden, self._hidden),
            )

    def views(self, rows: int, hidden: int) -> Workspace:
        """Of what was reserved, until `grown` changes."""
        return Workspace(
            rows,
            self._residual[:rows],
            self._normed[:rows],
            self._query[:rows],
            self._attended[:rows],
            self._gated[:rows],
            self._parts[: rows * self._sizes.parts],
            self._chunks,
            self._states,
            [self._kept[at, :rows] for at in range(hidden)],
        )

    def logits(self, rows: int) -> Tensor:
        """float32 [rows, vocabulary].

        Raises: torch's OutOfMemoryError.
        """
        if self._logits is None or len(self._logits) < rows:
            size = max(rows, 2 * (0 if self._logits is None else len(self._logits)))
            self._logits = torch.empty(
                size, self._sizes.vocabulary, dtype=torch.float32, device=self._device
            )
        return self._logits[:rows]

    def _make(self, rows: int, results: int, hidden: int) -> None:
        s, heads = self._sizes, self._sizes.heads
        # What was is given back first: there may be no memory for both.
        self._residual = self._normed = self._query = self._attended = torch.empty(0)
        self._gated = self._parts = self._chunks = self._states = self._kept = torch.empty(0)
        self._rows = self._results = self._hidden = 0
        self.grown += 1

        def wide(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=self._device)

        def narrow(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=self._dtype, device=self._device)

        self._residual, self._normed = wide(rows, s.width), narrow(rows, s.width)
        self._query = narrow(rows, heads.queries, heads.padded)
        self._attended = narrow(rows, heads.queries * heads.width)
        self._gated, self._parts = narrow(rows, s.inner), wide(rows * s.parts)
        self._chunks = wide(results * heads.queries * heads.padded)
        self._states = wide(results * heads.queries * 2)
        self._kept = wide(hidden, rows, s.width)
        self._rows, self._results, self._hidden = rows, results, hidden
