"""The rows of a step, flat: what every target makes of the parts that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import Int32s
from foresay.errors import InputError
from foresay.models.parts import StepParts, columns, kvs_of, stored_of
from foresay.models.target import SequenceInput

__all__ = ["StepRows"]


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """The rows of a step, part by part: a part's tokens, then the nodes of its draft.

    tokens    int32[T]
    parents   int32[T]      within the part; -1 for its first token, which follows the stored text
    offsets   int32[B + 1]  where each part's rows begin
    needed    int64[R]      the rows that need logits, in the order of `Outputs`
    prefill   bool[T]       which rows are prefill
    """

    tokens: Int32s
    parents: Int32s
    offsets: Int32s
    needed: NDArray[np.int64]
    prefill: NDArray[np.bool_]

    @classmethod
    def of(cls, parts: Sequence[SequenceInput]) -> StepRows:
        """Raises: InputError for no parts, and for a part made before its text's last step."""
        if not parts:
            raise InputError("the step has no parts; expected at least 1")
        stored = stored_of(parts)
        for length, expected in zip([kv.length for kv in kvs_of(parts)], stored, strict=True):
            if length != expected:
                raise InputError(
                    f"a part was made when {expected} tokens were stored, and now there are "
                    f"{length}; make a new one for each step"
                )
        return _packed(parts) if isinstance(parts, StepParts) else _one_by_one(parts)


def _packed(parts: StepParts) -> StepRows:
    """In one call of the core: an engine asks in every step."""
    count, drafts = len(parts), parts.drafts
    if not len(drafts.tokens) and len(parts.tokens) == count and parts.decodes:
        offsets, none, every, needed = columns(count)
        return StepRows(parts.tokens, none - 1, offsets, needed, ~every)
    tokens, parents, offsets, needed, prefill = _core.step_rows(
        parts.tokens,
        parts.offsets,
        drafts.tokens,
        drafts.parents,
        drafts.offsets,
        parts.needs_logits,
        parts.prefill,
        parts.prefill_logits,
    )
    return StepRows(tokens, parents, offsets, needed, prefill.view(np.bool_))


def _one_by_one(parts: Sequence[SequenceInput]) -> StepRows:
    """The readable twin of the core's `step_rows`."""
    tokens: list[Int32s] = []
    parents: list[Int32s] = []
    needed: list[NDArray[np.int64]] = []
    prefilled: list[NDArray[np.int64]] = []
    prefill: list[NDArray[np.bool_]] = []
    offsets = np.zeros(len(parts) + 1, np.int32)
    for at, part in enumerate(parts):
        size, drafted = len(part.tokens), len(part.draft)
        start, end = int(offsets[at]), int(offsets[at]) + size + drafted
        tokens += [part.tokens, part.draft.tokens]
        hanging = part.draft.parents + np.int32(size)
        if drafted:
            hanging[part.draft.parents < 0] = size - 1
        parents += [np.arange(-1, size - 1, dtype=np.int32), hanging]
        offsets[at + 1] = end
        prefill.append(np.arange(end - start) < part.prefill)
        if part.needs_logits:
            needed.append(np.arange(start + size - 1, end))
        if part.prefill_logits:
            first = start + part.prefill - part.prefill_logits
            prefilled.append(np.arange(first, start + part.prefill))
    return StepRows(
        np.concatenate(tokens),
        np.concatenate(parents),
        offsets,
        np.concatenate([np.zeros(0, np.int64), *needed, *prefilled]),
        np.concatenate(prefill),
    )
