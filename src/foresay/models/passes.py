"""A forward pass of a transformers model over the rows of a step, with any attention."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache, partial
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from foresay.errors import InputError, UnsupportedModel
from foresay.models.attention import AttentionPass, running
from foresay.models.rows import StepRows
from foresay.models.target import Hidden, Outputs

__all__ = ["forward_pass", "named_layers"]


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
    noted = _Inputs(_noted(model, hidden))
    with torch.inference_mode(), running(attention), noted:
        out = model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **options)
    logits: Tensor = out.logits[0] if picks else out.logits[0][picked]
    logits = logits[: len(needed)]
    if hidden is False:
        return Outputs(logits)
    states = torch.cat(noted.rows, 1)
    if hidden is not True or not picks:  # else the head was given no others
        states = states[picked]
    return Outputs(logits, states[: len(needed)])


def named_layers(model: PreTrainedModel) -> int:
    """How many decoder layers the model names, whose inputs can be reported; 0: it names none."""
    return len(getattr(model.get_decoder(), "layers", ()))


def _noted(model: PreTrainedModel, hidden: Hidden) -> list[nn.Module]:
    """The modules whose inputs these hidden states are."""
    if hidden is True:
        head = model.get_output_embeddings()
        if head is None:
            raise UnsupportedModel(
                f"{model.config.model_type} does not name its output embedding, so its last hidden "
                "states are not known"
            )
        return [head]
    if hidden is False:
        return []
    layers = getattr(model.get_decoder(), "layers", None)
    if layers is None:
        raise UnsupportedModel(
            f"{model.config.model_type} does not name its decoder layers, so what goes into them "
            "is not known"
        )
    if not all(0 <= number < len(layers) for number in hidden):
        raise InputError(
            f"hidden states of layers {list(hidden)} are asked for; expected 0 to {len(layers) - 1}"
        )
    return [layers[number] for number in hidden]


class _Inputs:
    """While the body runs, what this thread gives to these modules is kept in `rows`."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules, self._thread = modules, threading.get_ident()
        self.rows = [torch.empty(0)] * len(modules)

    def __enter__(self) -> None:
        self._hooks = [
            module.register_forward_pre_hook(partial(self._note, at))
            for at, module in enumerate(self._modules)
        ]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note(self, at: int, module: object, given: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == self._thread:
            self.rows[at] = given[0].reshape(-1, given[0].shape[-1])


@cache
def _picks_rows(kind: Any) -> bool:
    """Whether such a model can compute logits of chosen rows only."""
    return "logits_to_keep" in signature(kind.forward).parameters
