"""The parts of a step, packed: what an engine gives a target in every step, without a value for
each text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.errors import InputError
from foresay.models.target import KeepsTogether, SequenceInput, Target, TextKv
from foresay.verdict import VerdictBatch

__all__ = ["StepParts", "columns", "keep_first_rows", "kvs_of", "stored_of"]

_FIRST = np.zeros(1, np.int32)
_FIRST.flags.writeable = False  # every text's row, where no draft was accepted


class StepParts(Sequence[SequenceInput]):
    """Parts packed flat; the sequence of those parts. Their arrays are `SequenceInput`'s fields.

    kvs      what is stored of each text
    tokens   int32[T]      offsets int32[B + 1]: part i has tokens[offsets[i]:offsets[i + 1]]
    drafts   a draft for each part, an empty one where there is none
    needs_logits, prefill, prefill_logits, stored   bool[B] and int32[B]
    decodes  whether all parts need logits and none has prefill

    Valid until: the kvs' next step. Tokens and drafts are not checked again: an engine has checked
    prompts and drafts, and made the other tokens. Raises: InputError when constructed, for a text
    or draft beyond the context.
    """

    __slots__ = (
        "decodes",
        "drafts",
        "kvs",
        "needs_logits",
        "offsets",
        "prefill",
        "prefill_logits",
        "stored",
        "tokens",
    )

    def __init__(
        self,
        target: Target,
        kvs: Sequence[TextKv],
        tokens: Int32s,
        offsets: Int32s,
        drafts: DraftBatch,
        *,
        needs_logits: NDArray[np.bool_],
        prefill: Int32s,
        prefill_logits: Int32s,
        stored: Int32s,
    ) -> None:
        self.kvs = kvs
        self.tokens = tokens
        self.offsets = offsets
        self.drafts = drafts
        self.needs_logits = needs_logits
        self.prefill = prefill
        self.prefill_logits = prefill_logits
        self.stored = stored
        self.decodes = bool(needs_logits.all()) and not prefill.any()
        self._check_context(target.context)

    @classmethod
    def decoding(
        cls, target: Target, kvs: Sequence[TextKv], last: Int32s, drafts: DraftBatch, stored: Int32s
    ) -> StepParts:
        """Parts of texts that decode: of each its last token and its draft.

        Raises: as the constructor.
        """
        self, count = object.__new__(cls), len(kvs)
        self.kvs, self.tokens, self.drafts, self.stored = kvs, last, drafts, stored
        self.offsets, self.prefill, self.needs_logits, _ = columns(count)
        self.prefill_logits, self.decodes = self.prefill, True
        self._check_context(target.context)
        return self

    def _check_context(self, context: int) -> None:
        texts = self.stored + sizes_of(self.offsets)
        deepest = self.drafts.largest if len(self.drafts.tokens) else 0
        if not len(texts) or int(texts.max()) + deepest <= context:
            return
        for text, draft in zip(texts.tolist(), self.drafts, strict=True):
            reached = text + max(draft.depths, default=0)
            if reached > context:
                raise InputError(
                    f"a text and its draft have {reached} tokens; expected at most {context}, the "
                    "context"
                )

    def __len__(self) -> int:
        return len(self.kvs)

    @overload
    def __getitem__(self, index: int) -> SequenceInput: ...
    @overload
    def __getitem__(self, index: slice) -> list[SequenceInput]: ...
    def __getitem__(self, index: int | slice) -> SequenceInput | list[SequenceInput]:
        if isinstance(index, slice):
            return [self[at] for at in range(len(self))[index]]
        at = range(len(self))[index]
        return SequenceInput(
            self.kvs[at],
            self.tokens[self.offsets[at] : self.offsets[at + 1]],
            self.drafts[at],
            bool(self.needs_logits[at]),
            int(self.prefill[at]),
            int(self.prefill_logits[at]),
            int(self.stored[at]),
        )

    def keep(self, verdicts: VerdictBatch, together: KeepsTogether | None = None) -> None:
        """Store each part's tokens and the accepted nodes, after `forward`.

        verdicts  on the drafts, one for each part
        together  a target that stores the rows of all texts in one call

        Raises: InputError for a path that does not lead from a draft's root from parent to child.
        """
        path = verdicts.path
        if not len(path) and len(self.tokens) == len(self.kvs):
            keep_first_rows(self.kvs, together)
            return
        rows, bounds = self._rows_of(path, verdicts.path_offsets)
        if together is not None:
            together.keep_together(self.kvs, rows, bounds)
            return
        for kv, (begin, end) in zip(self.kvs, pairwise(bounds.tolist()), strict=True):
            kv.keep(rows[begin:end])

    def _rows_of(self, path: Int32s, path_offsets: Int32s) -> tuple[Int32s, Int32s]:
        """The rows to store: each part's tokens, then the nodes of its path."""
        drafts = self.drafts
        rows = _core.kept_rows(self.offsets, path, path_offsets, drafts.parents, drafts.offsets)
        return rows, self.offsets + path_offsets


def keep_first_rows(kvs: Sequence[TextKv], together: KeepsTogether | None = None) -> None:
    """Store the one row that each of these texts had in the last step."""
    if together is None:
        for kv in kvs:
            kv.keep(_FIRST)
    else:
        offsets, none, _, _ = columns(len(kvs))
        together.keep_together(kvs, none, offsets)


@lru_cache(maxsize=512)
def columns(count: int) -> tuple[Int32s, Int32s, NDArray[np.bool_], NDArray[np.int64]]:
    """Of so many parts, with one token each: offsets, 0 of each, True of each, their numbers. Made
    once, since a step asks for them: do not write into them."""
    whole = np.arange(count + 1, dtype=np.int32)
    return whole, np.zeros(count, np.int32), np.ones(count, bool), np.arange(count)


def kvs_of(parts: Sequence[SequenceInput]) -> list[Any]:
    """What is stored of each part's text."""
    return list(parts.kvs) if isinstance(parts, StepParts) else [part.kv for part in parts]


def stored_of(parts: Sequence[SequenceInput]) -> list[int]:
    """How many tokens of each part's text were stored when it was made."""
    if isinstance(parts, StepParts):
        stored: list[int] = parts.stored.tolist()
        return stored
    return [part.stored for part in parts]
