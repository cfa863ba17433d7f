"""A forward pass of a transformers model over the rows of a step, with any attention."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import cache
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay.errors import UnsupportedModel
from foresay.models.attention import AttentionPass, running
from foresay.models.rows import StepRows
from foresay.models.target import Outputs

__all__ = ["forward_pass"]


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
