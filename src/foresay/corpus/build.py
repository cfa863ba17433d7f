"""Building a corpus file from documents: token arrays, trace files, or .npy arrays.

Documents stream through; nothing here holds more than one of them.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from foresay._core import FrozenBuilder
from foresay.errors import InputError, TraceError

Tokens = NDArray[np.int32]
Fields = Literal["prompt+output", "output"]
StrPath = str | os.PathLike[str]

DEFAULT_MEMORY_BYTES = 1 << 30


def build(
    path: StrPath,
    documents: Iterable[Tokens],
    *,
    vocabulary: int,
    tokenizer_hash: bytes,
    max_context: int = 32,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    threads: int = 2,
    progress: Callable[[str, float], None] | None = None,
) -> None:
    """Writes a corpus file. The same documents and `max_context` give the same bytes.

    Mutates: replaces `path`, by renaming a finished file (mode 0600) over it. Whatever is raised,
    also by `documents` or `progress`, `path` is left as it was and no temporary file stays.
    Memory: `memory_bytes` for sorting, at least one token's worth; the rest is mapped files.
    Raises: InputError for a token outside the vocabulary, an option out of range or an empty
    corpus; TypeError for an array that is not int32, one-dimensional and contiguous; OSError.
    GIL: released while a document is added and while the index is built, held for `progress`,
    which is called with a stage ("sort", "origins", "nodes", "count", "write") and a fraction.
    """
    builder = FrozenBuilder(
        os.fspath(path),
        vocabulary=vocabulary,
        tokenizer_hash=tokenizer_hash,
        max_context=max_context,
        memory_bytes=memory_bytes,
        threads=threads,
    )
    try:
        for document in documents:
            builder.add_document(document)
        builder.finish(progress)
    finally:
        builder.abandon()


def trace_documents(path: StrPath, fields: Fields = "prompt+output") -> Iterator[Tokens]:
    """One document per line of a .jsonl or .jsonl.gz file: prompt and output, or output only.

    A line with "tokens" instead is a document of just those. The file is read as the iterator is
    advanced. Raises: TraceError, which names the file and the line; InputError for other fields.
    GIL: held.
    """
    if fields not in ("prompt+output", "output"):
        raise InputError(f"fields is {fields!r}; 'prompt+output' or 'output' is valid.")
    return _trace_lines(Path(path), fields)


def _trace_lines(path: Path, fields: Fields) -> Iterator[Tokens]:
    number = 0
    try:
        with _open_text(path) as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield _document(json.loads(line), fields)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise TraceError(
            f"'{path}' cannot be read as a trace file at line {number}: {error}."
        ) from error


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def _document(record: dict[str, Any], fields: Fields) -> Tokens:
    if not isinstance(record, dict):
        raise TypeError(f"a line is an object, not {type(record).__name__}")
    if "tokens" in record:
        tokens = record["tokens"]
    elif fields == "output":
        tokens = record["output"]
    else:
        tokens = record["prompt"] + record["output"]
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise TypeError("tokens are a list of integers")
    try:
        return np.array(tokens, dtype=np.int32)
    except OverflowError as error:
        raise ValueError(f"a token does not fit in 32 bits ({error})") from error


def array_documents(tokens: StrPath, offsets: StrPath) -> Iterator[Tokens]:
    """The documents tokens[offsets[i]:offsets[i + 1]] of two .npy files, int32 and integer.

    The files are mapped, not read; the arrays it gives are views of the mapping. Raises: InputError
    for another dtype or shape, or offsets that do not rise from 0 to the number of tokens; OSError
    and ValueError for a file that is no .npy file. GIL: held.
    """
    text = np.load(tokens, mmap_mode="r", allow_pickle=False)
    bounds = np.load(offsets, mmap_mode="r", allow_pickle=False)
    if text.dtype != np.int32 or text.ndim != 1:
        raise InputError(
            f"'{tokens}' is {text.dtype} with {text.ndim} dimensions; int32 with 1 is valid."
        )
    if bounds.dtype.kind not in "iu" or bounds.ndim != 1 or len(bounds) == 0:
        raise InputError(
            f"'{offsets}' is {bounds.dtype} of shape {bounds.shape};"
            " [documents + 1] integers are valid."
        )
    if bounds[0] != 0 or bounds[-1] != len(text) or (bounds[1:] < bounds[:-1]).any():
        raise InputError(
            f"'{offsets}' does not rise from 0 to {len(text)}, the number of tokens in '{tokens}'."
        )
    return (text[begin:end] for begin, end in pairwise(bounds))
