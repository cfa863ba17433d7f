"""The attention function that transformers models call, and the step it works for.

It is registered under a name for which transformers builds no attention masks: visibility follows
from the text, its draft tree, and the layer's window or chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from foresay.errors import UnsupportedModel
from foresay.models.visibility import Visible

__all__ = ["NAME", "AttentionPass", "LayerCall", "current", "running"]

NAME = "foresay"


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What a layer's attention was called with, for the checks."""

    layer: int | None
    rows: int
    keys: int
    shape: tuple[int, int, int]
    """Heads of keys and values, width of a key, width of a value."""
    masked: bool
    unknown: tuple[str, ...]
    """Arguments that change the result and that the function does not know."""


@dataclass(slots=True)
class AttentionPass:
    """The attention of one forward pass: the step, the visibility of each layer, recorded calls."""

    step: Any
    """Its `attend` stores the rows' keys and values in their texts, and attends: the core's
    AttentionStep, or a PlainStep. None: a trial pass, whose attention gives zeros."""
    layers: Sequence[Visible]
    threads: int
    calls: list[LayerCall] | None = None
    """None: calls are not recorded."""


_PASS: ContextVar[AttentionPass] = ContextVar("foresay_pass")


@contextmanager
def running(run: AttentionPass) -> Iterator[None]:
    """While the body runs, attention works for `run`."""
    token = _PASS.set(run)
    try:
        yield
    finally:
        _PASS.reset(token)


def current() -> AttentionPass:
    """The pass that is running.

    Raises: UnsupportedModel outside of one.
    """
    run = _PASS.get(None)
    if run is None:
        raise UnsupportedModel(
            "the model was called directly while it belongs to a target; call Target.forward"
        )
    return run


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Write a layer's new keys and values, and attend to the visible tokens of each row.

    query [1, Hq, T, Dk], key [1, Hkv, T, Dk], value [1, Hkv, T, Dv] -> [1, T, Hq, Dv]

    Mutates: the step's texts, which get the keys and values of their new rows. Raises:
    UnsupportedModel outside a pass; InputError for tensors that do not fit the step.
    """
    run = current()
    _, heads, rows, width = query.shape
    out = torch.empty((1, rows, heads, value.shape[3]), dtype=query.dtype, device=query.device)
    if run.calls is not None:
        unknown = [
            name for name in ("position_bias", "block_indices") if others.get(name) is not None
        ]
        shape = (key.shape[1], key.shape[3], value.shape[3])
        run.calls.append(
            LayerCall(
                getattr(module, "layer_idx", None),
                rows,
                key.shape[2],
                shape,
                attention_mask is not None,
                tuple(unknown),
            )
        )
    if run.step is None:
        return out.zero_(), None
    layer: int = module.layer_idx
    visible = run.layers[layer]
    run.step.attend(
        layer,
        query,
        key,
        value,
        out,
        scaling=width**-0.5 if scaling is None else scaling,
        window=visible.window,
        chunk=visible.chunk,
        softcap=softcap or 0.0,
        sinks=None if s_aux is None else s_aux.detach().float().cpu().numpy(),
        threads=run.threads,
    )
    return out, None


AttentionInterface.register(NAME, attend)
