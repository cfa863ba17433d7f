"""A target on the CPU in place of one on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.asking import ASKED
from foresay.models.target import Outputs, SequenceInput, Target

PLAIN = [params for params in ASKED if not params.penalised]


class OnDevice:
    """The target, which counts the steps that were started ahead."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.ahead = 0
        self.spoiled: set[int] = set()  # texts of these lengths get logits that are no law

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def forward_next(self, parts: Any, tokens: Tensor, /) -> Outputs:
        assert not parts.tokens.any() and not len(parts.drafts.tokens)  # nothing that is known
        assert tokens.dtype == torch.int64 and len(tokens) == len(parts)
        parts.tokens[:] = tokens.clamp(min=0).numpy()
        self.ahead += 1
        return self.forward(parts)

    def forward(self, parts: Sequence[SequenceInput], **given: Any) -> Outputs:
        lengths = [part.kv.length + len(part.tokens) for part in parts]
        found = self.target.forward(parts, **given)
        if self.spoiled.isdisjoint(lengths):
            return found
        logits = found.logits.clone()
        logits[[length in self.spoiled for length in lengths]] = torch.nan
        return replace(found, logits=logits)
