"""A forward pass of a transformers model over the rows of a step, with any attention."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from functools import cache, partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay.errors import InputError, UnsupportedModel
from foresay.models.attention import AttentionPass, running
from foresay.models.rows import StepRows
from foresay.models.target import Hidden, Outputs

__all__ = ["forward_pass"]


def forward_pass(
    model: PreTrainedModel,
    rows: StepRows,
    attention: AttentionPass,
    positions: Tensor,
    *,
    hidden: Hidden,
) -> Outputs:
    """Call the model, whose attention works for `attention`.

    Raises: UnsupportedModel if hidden states are asked of a model that does not name its output
    embedding or its layers, InputError for layers that it has not.
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
    layers = _LayerInputs(model, hidden) if isinstance(hidden, tuple) else None
    head = _HeadInput(model) if hidden is True else None
    with torch.inference_mode(), running(attention), head or layers or nullcontext():
        out = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options)
    logits: Tensor = out.logits[0] if picks else out.logits[0][picked]
    if layers is not None:
        return Outputs(logits[: len(needed)], layers.rows(picked[: len(needed)]))
    if head is None:
        return Outputs(logits[: len(needed)])
    states = head.rows if picks else head.rows[picked]
    return Outputs(logits[: len(needed)], states[: len(needed)])


class _HeadInput:
    """While the body runs, what this thread gives to the model's output embedding is in `rows`."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._head = model.get_output_embeddings()
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


def named_layers(model: PreTrainedModel) -> int:
    """How many decoder layers the model names, whose inputs can be reported; 0: it names none."""
    return len(getattr(model.get_decoder(), "layers", ()))


class _LayerInputs:
    """While the body runs, what this thread gives to some decoder layers is kept."""

    def __init__(self, model: PreTrainedModel, numbers: tuple[int, ...]) -> None:
        layers = getattr(model.get_decoder(), "layers", None)
        if layers is None:
            raise UnsupportedModel(
                f"{model.config.model_type} does not name its decoder layers, so what goes into "
                "them is not known"
            )
        if not all(0 <= number < len(layers) for number in numbers):
            raise InputError(
                f"hidden states of layers {list(numbers)} are asked for; expected 0 to "
                f"{len(layers) - 1}"
            )
        self._layers, self._numbers = layers, numbers
        self._thread = threading.get_ident()
        self._found: dict[int, Tensor] = {}

    def __enter__(self) -> None:
        self._hooks = [
            self._layers[number].register_forward_pre_hook(partial(self._note, number))
            for number in self._numbers
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, number: int, layer: object, given: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == self._thread:
            self._found[number] = given[0].reshape(-1, given[0].shape[-1])

    def rows(self, picked: Tensor) -> Tensor:
        return torch.cat([self._found[number][picked] for number in self._numbers], 1)


@cache
def _picks_rows(kind: Any) -> bool:
    """Whether such a model can compute logits of chosen rows only."""
    return "logits_to_keep" in signature(kind.forward).parameters
