"""Hashes of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from foresay.models.progress import Progress, silent

__all__ = ["sha256_of"]


def sha256_of(path: Path, progress: Progress = silent) -> str:
    """The sha256 of a file.

    Raises: OSError.
    """
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    progress("check", 0, total)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            progress("check", done, total)
    return digest.hexdigest()
