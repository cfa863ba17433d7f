"""The documents of files: trace files, or token arrays with offsets.

name.jsonl, name.jsonl.gz     a document per line (see foresay.traces)
name.npy, name.offsets.npy    int32[N] tokens and [D + 1] integers that rise from 0 to N:
                              document d is tokens[offsets[d]:offsets[d + 1]]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.errors import InputError, TraceError
from foresay.traces import Field, read_texts

__all__ = ["Documents"]


class Documents:
    """The documents of several files, in their order; each iteration reads the files again.

    Raises: InputError without a file; while iterating, InputError for another field, and TraceError
    naming the file and where in it.
    """

    def __init__(self, paths: Sequence[str | PathLike[str]], field: Field = "both") -> None:
        if not len(paths):
            raise InputError("0 files were given; expected at least 1")
        self._paths = [Path(path) for path in paths]
        self._field = field

    def __iter__(self) -> Iterator[Int32s]:
        for path in self._paths:
            yield from _slices(path) if path.suffix == ".npy" else read_texts(path, self._field)


def _slices(path: Path) -> Iterator[Int32s]:
    """Each is read when it is asked for, and not mapped: the file may be cut meanwhile."""
    beside = path.with_suffix(".offsets.npy")
    tokens, offsets = _mapped(path), _mapped(beside).copy()
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        raise TraceError(f"{path} is {tokens.dtype}{list(tokens.shape)}; expected int32[tokens]")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or not len(offsets):
        raise TraceError(
            f"{beside} is {offsets.dtype}{list(offsets.shape)}; expected integers[documents + 1]"
        )
    bounds = [int(offset) for offset in offsets]
    if bounds[0] != 0 or bounds[-1] != len(tokens) or bounds != sorted(bounds):
        raise TraceError(
            f"{beside} holds wrong offsets; expected them to rise from 0 to {len(tokens)}, the "
            f"number of tokens in {path}"
        )
    with path.open("rb") as file:
        file.seek(tokens.offset)
        for begin, end in pairwise(bounds):
            document = np.fromfile(file, np.int32, end - begin)
            if len(document) < end - begin:
                raise TraceError(
                    f"{path} ended at token {begin + len(document)}; expected {len(tokens)} "
                    "tokens, which it had when it was opened"
                )
            yield document


def _mapped(path: Path) -> np.memmap[Any, Any]:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, SyntaxError) as error:
        raise TraceError(f"{path} is not an array of numbers in a .npy file: {error}") from error
