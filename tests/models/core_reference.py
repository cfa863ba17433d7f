"""What transformers computes in float32 if it rounds where the core's decoder rounds: queries,
keys, values and the results of attention to bfloat16, and the inputs of quantised layers to blocks
of integers. What is left between the two is the order of sums, so a mistake cannot hide in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from foresay.arrays import Int32s
from foresay.models.target import SequenceInput, Target
from models import zoo


@contextmanager
def rounding(model: Any, *, quantised: bool, narrow: bool) -> Iterator[None]:
    """While the body runs, the model (of eager attention) rounds as the core does."""
    theirs = sys.modules[type(model).__module__]
    eager: Any = getattr(theirs, "eager_attention_forward")  # noqa: B009 (not known to mypy)

    def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **more: Any) -> Any:
        if not narrow:
            return eager(module, q, k, v, *rest, **more)
        out, weights = eager(module, *(_narrow(x) for x in (q, k, v)), *rest, **more)
        return _narrow(out), weights

    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    hooks = [each.register_forward_pre_hook(_in_blocks) for each in linears if quantised]
    with patch.object(theirs, "eager_attention_forward", attention):
        yield
    for hook in hooks:
        hook.remove()


def _narrow(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def _in_blocks(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    blocks = inputs[0].reshape(*inputs[0].shape[:-1], -1, 32)
    largest = blocks.abs().amax(-1, keepdim=True)
    # Halves are frequent among the results of attention: to round them as the core does, its very
    # numbers are needed.
    inverse = torch.where(largest > 0, 127 / largest, torch.zeros(()))
    whole = (blocks * inverse).round()
    return ((whole * (largest * torch.tensor(1 / 127))).flatten(-2),)


def wanted(model: Any, text: Int32s, *, quantised: bool = False, narrow: bool = True) -> Tensor:
    """The logits after each token of a text; `narrow`: with attention in bfloat16."""
    with rounding(model, quantised=quantised, narrow=narrow):
        return zoo.plain_logits(model, text)


def found(target: Target, text: Int32s) -> Tensor:
    """The same of a target: as prefill, in one piece."""
    size = len(text)
    part = SequenceInput.of(
        target, target.open(), text, needs_logits=False, prefill=size, prefill_logits=size
    )
    return target.forward([part]).logits


def difference(given: Tensor, wanted: Tensor) -> float:
    """Of two arrays of logits: the usual one, against how much the logits vary."""
    assert given.shape == wanted.shape
    spread = (wanted - wanted.mean(-1, keepdim=True)).square().mean().sqrt()
    return float((given - wanted).square().mean().sqrt() / spread)


def least_difference(target: Target, model: Any, *, quantised: bool, narrow: bool = True) -> float:
    """Of the better quarter of many short texts. One number in some thousands is rounded to the
    other side, because the sums before it had another order, and everything after it shows that; a
    mistake shows in every text.
    """
    texts = [text_of(target.vocabulary, 3, seed) for seed in range(24)]
    pairs = [
        (found(target, text), wanted(model, text, quantised=quantised, narrow=narrow))
        for text in texts
    ]
    return sorted(difference(*pair) for pair in pairs)[5]


def text_of(vocabulary: int, size: int = 48, seed: int = 0) -> Int32s:
    return np.random.default_rng(seed).integers(3, vocabulary, size).astype(np.int32)
