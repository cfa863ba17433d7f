"""A forward pass of a transformers model over the rows of a step, with any attention."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from foresay.arrays import Int32s
from foresay.errors import InputError, UnsupportedModel
from foresay.models.attention import AttentionPass, running
from foresay.models.target import Outputs, Part

__all__ = ["StepRows", "forward_pass"]


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
    def of(cls, parts: Sequence[Part]) -> StepRows:
        """Raises: InputError for no parts, and for a part made before its text's last step."""
        if not parts:
            raise InputError("the step has no parts; expected at least 1")
        tokens: list[Int32s] = []
        parents: list[Int32s] = []
        needed: list[NDArray[np.int64]] = []
        prefilled: list[NDArray[np.int64]] = []
        prefill: list[NDArray[np.bool_]] = []
        offsets = np.zeros(len(parts) + 1, np.int32)
        for at, part in enumerate(parts):
            if part.kv.length != part.stored:
                raise InputError(
                    f"a part was made when {part.stored} tokens were stored, and now there are "
                    f"{part.kv.length}; make a new one for each step"
                )
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
        return cls(
            np.concatenate(tokens),
            np.concatenate(parents),
            offsets,
            np.concatenate([np.zeros(0, np.int64), *needed, *prefilled]),
            np.concatenate(prefill),
        )


def forward_pass(
    model: PreTrainedModel,
    rows: StepRows,
    attention: AttentionPass,
    positions: Tensor,
    *,
    hidden: bool,
) -> Outputs:
    """Call the model, whose attention works for `attention`.

    Raises: UnsupportedModel if hidden states are asked of a model without an output embedding.
    """
    device = positions.device
    ids = torch.from_numpy(rows.tokens.astype(np.int64)).to(device)
    # The head is slow, so it gets the needed rows only; some models need at least one row. It
    # must not get as many rows as the step has if some of these are prefill: a linear layer would
    # mistake its rows for the step's.
    needed = rows.needed
    spare = not len(needed) or (len(needed) == len(rows.tokens) and rows.prefill.any())
    picked = torch.from_numpy(np.append(needed, 0) if spare else needed).to(device)
    kind: Any = type(model)
    picks = _picks_rows(kind)
    options: dict[str, Any] = {"logits_to_keep": picked} if picks else {}
    head = _HeadInput(model) if hidden else None
    with torch.inference_mode(), running(attention), head or nullcontext():
        out = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options)
    logits: Tensor = out.logits[0] if picks else out.logits[0][picked]
    if head is None:
        return Outputs(logits[: len(needed)])
    states = head.rows if picks else head.rows[picked]
    return Outputs(logits[: len(needed)], states[: len(needed)])


class _HeadInput:
    """While the body runs, what this thread gives to the model's output embedding is in `rows`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if self._head is None:
            raise UnsupportedModel(
                f"{model.config.model_type} does not name its output embedding, so its last hidden "
                "states are not known"
            )
        self._thread = threading.get_ident()
        self.rows = torch.empty(0)

    def __enter__(self) -> None:
        self._hook = self._head.register_forward_pre_hook(self._note)

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def _note(self, head: object, given: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == self._thread:
            self.rows = given[0].reshape(-1, given[0].shape[-1])


@cache
def _picks_rows(kind: Any) -> bool:
    """Whether such a model can compute logits of chosen rows only."""
    return "logits_to_keep" in signature(kind.forward).parameters
