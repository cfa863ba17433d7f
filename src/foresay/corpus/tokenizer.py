"""Which tokenizer a corpus file belongs to."""

from __future__ import annotations

import hashlib
from os import PathLike
from pathlib import Path

from foresay.arrays import as_path

__all__ = ["UNBOUND", "tokenizer_hash_in", "tokenizer_hash_of"]

UNBOUND = bytes(32)
"""The hash in a corpus file that is not bound to a tokenizer."""


def tokenizer_hash_of(tokenizer: str | PathLike[str] | bytes) -> bytes:
    """The SHA-256 of a tokenizer file (such as tokenizer.json), given by its path or its content.

    Raises: OSError, InputError for other types.
    """
    if isinstance(tokenizer, bytes):
        content = tokenizer
    else:
        content = Path(as_path(tokenizer, "the tokenizer file")).read_bytes()
    return hashlib.sha256(content).digest()


def tokenizer_hash_in(folder: Path) -> bytes | None:
    """Of the tokenizer in a model's folder, if there is one."""
    file = folder / "tokenizer.json"
    return tokenizer_hash_of(file) if file.is_file() else None
