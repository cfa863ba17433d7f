"""Tiny targets, and draft models that are near them or far."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from foresay.models.load_transformers import target_of
from foresay.models.target import Outputs, Part, Target
from models import zoo


@cache
def draft_model(kind: str, **changes: Any) -> Target:
    """For `zoo.make("llama")`: "same" weights; "near", some of whose tokens are others; "strange"
    ones."""
    model = zoo.make("llama", seed=1 if kind == "strange" else 0, **changes)
    if kind == "near":
        draw = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for _, weight in sorted(model.named_parameters()):
                weight.add_(torch.randn(weight.shape, generator=draw) * 0.03 * weight.std())
    return target_of(model)


class Watched:
    """A target that notes the rows of each of its passes, and can be told to fail."""

    def __init__(self, inner: Target) -> None:
        self._inner: Any = inner
        self.passes: list[list[int]] = []  # rows of each part
        self.fails_after: int | None = None  # passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, parts: list[Part], *, hidden: bool = False) -> Outputs:
        self.passes.append([len(part.tokens) + len(part.draft) for part in parts])
        found: Outputs = self._inner.forward(parts, hidden=hidden)
        if self.fails_after is not None and len(self.passes) > self.fails_after:
            raise KeyboardInterrupt
        return found
