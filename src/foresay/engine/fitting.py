"""Tells a drafter of the target that it will draft for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foresay.corpus import tokenizer_hash_of
from foresay.drafter import Drafter
from foresay.models.target import Target

__all__ = ["fit_drafter", "tokenizer_hash_in"]


def fit_drafter(drafter: Drafter[Any], target: Target, tokenizer_hash: bytes | None) -> None:
    """Let a drafter that depends on the target refuse it. It is told once.

    Raises: InputError, TokenizerMismatch.
    """
    fit = getattr(drafter, "fit", None)
    if fit is not None:
        fit(target, tokenizer_hash)


def tokenizer_hash_in(folder: Path) -> bytes | None:
    """Of the tokenizer in a model's folder, if there is one."""
    file = folder / "tokenizer.json"
    return tokenizer_hash_of(file) if file.is_file() else None
