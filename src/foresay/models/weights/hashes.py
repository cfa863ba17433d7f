"""Reading files: what cannot be read as a sentence, and hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent

__all__ = ["readable", "sha256_of"]


@contextmanager
def readable(path: object) -> Iterator[None]:
    """While the body reads a file, an error of the system says which one.

    Raises: ModelError for an OSError.
    """
    try:
        yield
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror or error}") from error


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
