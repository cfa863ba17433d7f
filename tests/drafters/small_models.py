"""Tiny targets, and draft models that are near them or far."""

from __future__ import annotations

from typing import Any

from foresay.models.target import Outputs, SequenceInput, Target
from models.quick import quick_target


def draft_model(kind: str, **changes: Any) -> Target:
    """For `quick_target()`: "same" weights; "near", some of whose tokens are others; "strange"
    ones."""
    noise = 0.03 if kind == "near" else 0.0
    return quick_target(1 if kind == "strange" else 0, noise, **changes)


class Watched:
    """A target that notes the rows of each of its passes, and can be told to fail."""

    def __init__(self, inner: Target) -> None:
        self._inner: Any = inner
        self.passes: list[list[int]] = []  # rows of each part
        self.fails_after: int | None = None  # passes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def forward(self, parts: list[SequenceInput], *, hidden: bool = False) -> Outputs:
        self.passes.append([len(part.tokens) + len(part.draft) for part in parts])
        found: Outputs = self._inner.forward(parts, hidden=hidden)
        if self.fails_after is not None and len(self.passes) > self.fails_after:
            raise KeyboardInterrupt
        return found
