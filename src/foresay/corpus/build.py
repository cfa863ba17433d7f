"""Building a corpus file. Documents stream through; nothing here holds more than one of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import TypeAlias

from foresay._core import FrozenBuilder
from foresay.arrays import (
    Int32s,
    IntsLike,
    as_items,
    as_path,
    as_tokens,
    check_callable,
    check_hash,
    check_whole,
)
from foresay.corpus.sources import Documents
from foresay.corpus.tokenizer import UNBOUND
from foresay.errors import InputError
from foresay.traces import Field

__all__ = ["build", "build_from"]

Progress: TypeAlias = Callable[[str, float], None]
"""Called with a stage ("scan", "read", "sort", "origins", "nodes", "count", "write") and the
fraction of it that is done."""

_REPORT_EVERY = 256  # documents


def build(
    paths: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    field: Field = "both",
    tokenizer_hash: bytes | None = None,
    vocabulary: int | None = None,
    max_context: int = 32,
    memory_bytes: int = 1 << 30,
    threads: int = 2,
    progress: Progress | None = None,
) -> None:
    """Write a corpus file over the documents of trace files, or of .npy files with offsets.

    paths           .jsonl and .jsonl.gz: a document per line, its prompt and output, or its
                    "tokens"; name.npy: int32 tokens, cut into documents by name.offsets.npy
    field           "both", or "output" to leave the prompts out
    others          as in `build_from`; without `vocabulary` the files are read twice

    Mutates: replaces `out`, by renaming a finished file (mode 0600) over it; whatever is raised,
    `out` is left as it was and no other file stays. Raises: TraceError naming a file and where in
    it, InputError, OSError, and what `progress` raises.
    """
    paths = [
        as_path(path, "a file to read") for path in as_items(paths, "paths", "a list of paths")
    ]
    out = as_path(out, "out")
    for path in paths:
        if os.path.exists(out) and os.path.exists(path) and os.path.samefile(path, out):
            raise InputError(f"'{out}' is one of the files to read; expected another output")
    build_from(
        Documents(paths, field),
        out,
        tokenizer_hash=tokenizer_hash,
        vocabulary=vocabulary,
        max_context=max_context,
        memory_bytes=memory_bytes,
        threads=threads,
        progress=progress,
    )


def build_from(
    documents: Iterable[IntsLike],
    out: str | PathLike[str],
    *,
    tokenizer_hash: bytes | None = None,
    vocabulary: int | None = None,
    max_context: int = 32,
    memory_bytes: int = 1 << 30,
    threads: int = 2,
    progress: Progress | None = None,
) -> None:
    """Write a corpus file over `documents`, each an int32 array or a list of token ids.

    tokenizer_hash  of `tokenizer_hash_of`; None: the file is not bound to a tokenizer
    vocabulary      tokens are below it; None: the largest token plus one, found by a first pass
                    over the documents, which must not be an iterator then
    max_context     the longest match in tokens, 1 to 254
    memory_bytes    for sorting; the rest is mapped files
    threads         that build the index; the bytes of the file do not depend on them

    The same documents, hash, vocabulary and max_context give the same bytes. An empty document adds
    nothing.

    Mutates: replaces `out`, by renaming a finished file (mode 0600) over it; whatever is raised,
    `out` is left as it was and no other file stays. Raises: InputError for a token outside the
    vocabulary, an option out of range or no token at all, OSError, and what `documents` or
    `progress` raise.
    """
    out = as_path(out, "out")
    check_hash(tokenizer_hash, "tokenizer_hash")
    check_callable(progress, "progress")
    given: object = documents
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise InputError(f"documents are {documents!r}; expected lists or arrays of token ids")
    if os.path.exists(out) and not os.path.isfile(out):
        raise InputError(f"'{out}' exists and is not a regular file; expected another output")
    folder = os.path.dirname(os.path.realpath(out))
    if not os.path.isdir(folder):
        raise InputError(f"'{folder}' is not a folder; expected a file in an existing folder")
    if os.path.islink(out):
        out = os.path.realpath(out)  # so that the link stays
    total = None
    if vocabulary is None:
        vocabulary, total = _scan(documents, progress)
    for name, value, most in (
        ("vocabulary", vocabulary, 1 << 24),
        ("max_context", max_context, 254),
        ("memory_bytes", memory_bytes, 1 << 50),
        ("threads", threads, 1024),
    ):
        check_whole(value, name, 1, most)
    builder = FrozenBuilder(
        out,
        vocabulary=vocabulary,
        tokenizer_hash=UNBOUND if tokenizer_hash is None else tokenizer_hash,
        max_context=max_context,
        memory_bytes=memory_bytes,
        threads=threads,
    )
    try:
        for document in _each(documents, "read", total, progress):
            builder.add_document(document)
        builder.finish(progress)
    finally:
        builder.abandon()


def _scan(documents: Iterable[IntsLike], progress: Progress | None) -> tuple[int, int]:
    """The smallest vocabulary for the documents, and their number."""
    if iter(documents) is documents:
        raise InputError(
            "vocabulary is None and the documents are an iterator, which can be read only once; "
            "expected the vocabulary, or the documents as a list"
        )
    largest, count = 0, 0
    for document in _each(documents, "scan", None, progress):
        count += 1
        if len(document):
            largest = max(largest, int(document.max()))
    return largest + 1, count


def _each(
    documents: Iterable[IntsLike], stage: str, total: int | None, progress: Progress | None
) -> Iterator[Int32s]:
    for number, document in enumerate(documents):
        if progress is not None and number % _REPORT_EVERY == 0:
            progress(stage, min(1.0, number / total) if total else 0.0)
        yield as_tokens(document, f"documents[{number}]")
