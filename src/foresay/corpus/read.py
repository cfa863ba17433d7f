"""Opening, inspecting and verifying corpus files."""

from __future__ import annotations

import os
from dataclasses import dataclass

from foresay._core import FrozenIndex

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class CorpusSummary:
    """What a corpus file's header says."""

    path: str
    version: int
    file_bytes: int
    tokens: int
    documents: int
    vocabulary: int
    max_context: int
    tokenizer_hash: bytes
    section_bytes: dict[str, int]

    @property
    def bytes_per_token(self) -> float:
        return self.file_bytes / self.tokens


def open_corpus(path: StrPath, *, tokenizer_hash: bytes | None = None) -> FrozenIndex:
    """Maps a corpus file, in time that does not depend on its size; checks only the header.

    Mutates: nothing. Valid until: as long as it is referenced, also after the file is replaced or
    deleted; but nobody may truncate or write the file in place while it is open. Raises:
    CorpusError if it is missing, damaged, truncated, foreign or of another version;
    TokenizerMismatch if a hash is given and the file has another. GIL: released.
    """
    return FrozenIndex.open(os.fspath(path), tokenizer_hash)


def inspect(path: StrPath) -> CorpusSummary:
    """What the header says. Mutates: nothing. Raises: CorpusError. GIL: released."""
    return CorpusSummary(**open_corpus(path).summary())


def verify(path: StrPath, *, tokenizer_hash: bytes | None = None) -> CorpusSummary:
    """Checks every byte of a corpus file, and that it is the index of its own text.

    Mutates: nothing. Takes about a second per 3M tokens and a bit of memory per token. Raises:
    CorpusError with the first thing that is wrong, TokenizerMismatch. GIL: released.
    """
    index = open_corpus(path, tokenizer_hash=tokenizer_hash)
    index.verify()
    return CorpusSummary(**index.summary())
