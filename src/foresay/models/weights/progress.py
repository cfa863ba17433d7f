"""How far something has come: the one signature that everything here reports with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

__all__ = ["Progress", "sha256_of"]

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with what is done ("download", "check", "convert"), the bytes of it that are done, and all
of its bytes where they are known."""


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The sha256 of a file.

    Mutates: nothing. Valid until: the file changes. Raises: OSError. GIL: held between reads.
    """
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress("check", done, total)
    return digest.hexdigest()
