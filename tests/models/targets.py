"""Targets of the zoo, and the steps and comparisons that their tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.models.cpu.target import CpuTarget
from foresay.models.load_transformers import target_of
from foresay.models.target import SequenceInput, Target, TextKv
from models import zoo

CLOSE = 1e-4
NAMES = list(zoo.SUPPORTED)
NOTHING = Draft.empty()


def zoo_target(name: str, dtype: torch.dtype = torch.float32) -> CpuTarget:
    """Made once, whether its dtype is said or not."""
    return _made(name, dtype)


@cache
def _made(name: str, dtype: torch.dtype) -> CpuTarget:
    return cpu_target(zoo.make(name, dtype=dtype))


def cpu_target(model: PreTrainedModel, **options: Any) -> CpuTarget:
    """The target of a model that is on the CPU."""
    made = target_of(model, **options)
    assert isinstance(made, CpuTarget)
    return made


@cache
def plain_of(name: str) -> PreTrainedModel:
    """The same weights with the model's own attention."""
    model = zoo.make(name)
    model.set_attn_implementation("eager")
    return model


def stored(target: Target, text: Int32s, *ends: int, prefill: bool = True) -> TextKv:
    """The keys and values of a text, stored in pieces that end at these places."""
    kv = target.open()
    for piece in np.split(text, ends):
        if len(piece):
            prefilled = len(piece) if prefill else 0
            part = SequenceInput.of(target, kv, piece, needs_logits=False, prefill=prefilled)
            target.forward([part])
            part.keep()
    kv.check_integrity()
    return kv


def after(target: CpuTarget, text: Int32s, draft: Draft = NOTHING, read: int = 0) -> Tensor:
    """Logits after a text and a draft, with nothing stored before."""
    return target.forward(
        [SequenceInput.of(target, target.open(), text, draft, prefill=read)]
    ).logits


def assert_close(given: Tensor, wanted: Tensor) -> None:
    assert given.shape == wanted.shape
    assert float((given - wanted).abs().max()) < CLOSE
    assert torch.equal(given.argmax(-1), wanted.argmax(-1))


def ragged_step(
    target: Target, plain: PreTrainedModel, seed: int, prefill: bool = False
) -> tuple[Tensor, Tensor]:
    """A step of a prompt's piece, a lone token and trees, beyond windows and chunks; and the truth.

    Each text is stored up to some place, in pieces; the step brings the rest and a tree.
    """
    parts = []
    asked, wanted = _asked(plain, seed)
    for text, begun, draft in asked:
        kv = stored(target, text[:begun], begun // 3, begun // 2, prefill=prefill)
        parts.append(SequenceInput.of(target, kv, text[begun:], draft))
    return target.forward(parts).logits, wanted


@cache
def _asked(plain: PreTrainedModel, seed: int) -> tuple[list[tuple[Int32s, int, Draft]], Tensor]:
    """Texts, how much of each is stored, and trees; and what the model itself says of them: it is
    the same for all targets."""
    random, asked = np.random.default_rng(seed), []
    for size, begun, nodes in [(5, 0, 7), (37, 20, 9), (64, 63, 12), (41, 40, 0), (18, 15, 1)]:
        text = zoo.tokens(random, size)
        asked.append((text, begun, zoo.tree(random, nodes)))
    return asked, torch.cat([zoo.expected(plain, text, draft) for text, _, draft in asked])
