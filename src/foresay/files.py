"""Files that appear under their names only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside `path` to write to. It takes the name `path` in the end, and is removed if the
    writing fails. No two have the same name, so processes that write one file at the same time do
    not mix: the last one stays. What a killed process leaves is `.NAME.….part`.

    Raises: OSError.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.{token_hex(4)}.part")
    try:
        yield part
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
