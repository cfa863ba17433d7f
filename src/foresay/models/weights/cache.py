"""The folder where fetched and converted models are kept, and how something gets into it.

What is in place is complete: it was built in a temporary folder beside it, synced to the disk, and
renamed. One process builds at a time; the others wait.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent

__all__ = ["FORMAT", "cache_folder", "place"]

FORMAT = 2
"""Changes when the same file would be converted to other bits; part of the names in the cache."""

_LOOK = 0.05  # seconds between checks whether another process is done
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """`cache`, or else $FORESAY_CACHE, $XDG_CACHE_HOME/foresay, ~/.cache/foresay."""
    if cache is not None:
        return Path(cache).expanduser()
    if own := os.environ.get("FORESAY_CACHE"):
        return Path(own).expanduser()
    if home := os.environ.get("XDG_CACHE_HOME"):
        return Path(home) / "foresay"
    return Path("~/.cache/foresay").expanduser()


def place(
    final: Path, build: Callable[[Path], None], *, needed: int, progress: Progress = silent
) -> Path:
    """`final`, built by `build` in a temporary folder if it is not there yet.

    needed    bytes that `build` will write; too little free space is found before it starts
    progress  called while another process builds it

    Mutates: makes `final`, all of it or none of it, and a lock file beside it; removes what a
    killed process left. Raises: ModelError when it cannot be written, and what `build` raises.
    """
    if final.is_dir():
        return final
    with _writing(final.parent, needed):
        final.parent.mkdir(parents=True, exist_ok=True)
        with _locked(final.with_name(f".{final.name}.lock"), progress):
            if final.is_dir():  # another process was faster
                return final
            temporary = final.with_name(f".{final.name}.tmp")
            if temporary.exists():
                shutil.rmtree(temporary)
            free = shutil.disk_usage(final.parent).free
            if free < needed:
                raise OSError(errno.ENOSPC, f"{free} bytes are free")
            temporary.mkdir()
            try:
                build(temporary)
                for path in temporary.iterdir():
                    _sync(path)
                _sync(temporary)
                temporary.rename(final)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            _sync(final.parent)
    return final


@contextmanager
def _writing(folder: Path, needed: int) -> Iterator[None]:
    """Turns a failure to write in `folder` into a ModelError."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ModelError(
                f"the disk that holds '{folder}' is full: {needed} bytes are needed there "
                f"({error.strerror}); free some, or set FORESAY_CACHE to a folder on another disk"
            ) from error
        raise ModelError(
            f"'{folder}' cannot be written: {error.strerror or error}; set FORESAY_CACHE to a "
            "writable folder"
        ) from error


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    # The file stays: removing it would let a third process lock a new one while a second still
    # waits for the old.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while not _lock(descriptor):
            progress("wait", 0, None)  # which may end the wait; a blocking lock could not be ended
            time.sleep(_LOOK)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
