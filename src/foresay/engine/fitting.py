"""Tells a drafter of the target that it will draft for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foresay.corpus import tokenizer_hash_of
from foresay.drafter import Drafter
from foresay.models.target import Target

__all__ = ["fit_drafter"]


def fit_drafter(drafter: Drafter[Any] | None, target: Target, folder: Path | None = None) -> None:
    """Let a drafter that depends on the target refuse it; `folder`: where its tokenizer is.

    Raises: InputError, TokenizerMismatch.
    """
    fit = getattr(drafter, "fit", None)
    if fit is None:
        return
    file = None if folder is None else folder / "tokenizer.json"
    fit(target, None if file is None or not file.is_file() else tokenizer_hash_of(file))
