"""Corpus files to test with: how to make one, and where its parts are."""

from __future__ import annotations

import struct
from pathlib import Path

from core.brute import int32s
from core.checksum_twin import xxh64
from core.frozen_twin import Documents
from foresay._core import FrozenBuilder, FrozenIndex

HASH = bytes(range(32))
HEADER_BYTES = 512
SECTION_TABLE = 88
SECTIONS = [
    "text",
    "starts",
    "positions",
    "next",
    "shared",
    "origins",
    "landmarks",
    "directory",
    "nodes",
    "tallies",
]


def build(
    path: Path,
    documents: Documents,
    *,
    vocabulary: int = 300,
    max_context: int = 32,
    memory_bytes: int = 1 << 30,
    threads: int = 2,
) -> FrozenIndex:
    """A verified index over the documents."""
    builder = FrozenBuilder(
        str(path),
        vocabulary=vocabulary,
        tokenizer_hash=HASH,
        max_context=max_context,
        memory_bytes=memory_bytes,
        threads=threads,
    )
    for document in documents:
        builder.add_document(int32s(document))
    builder.finish()
    index = FrozenIndex.open(str(path), HASH)
    index.verify()
    return index


def section_ranges(data: bytes | bytearray) -> dict[str, tuple[int, int]]:
    """Offset and length of each section, as the header says."""
    entries = struct.iter_unpack("<QQQ", data[SECTION_TABLE : SECTION_TABLE + 24 * len(SECTIONS)])
    return {
        name: (offset, length) for name, (offset, length, _) in zip(SECTIONS, entries, strict=True)
    }


def forged(content: bytearray) -> bytearray:
    """The same content with checksums that fit: damage that only the structural checks can see."""
    for i, (offset, length) in enumerate(section_ranges(content).values()):
        checksum = xxh64(bytes(content[offset : offset + length]))
        struct.pack_into("<Q", content, SECTION_TABLE + 24 * i + 16, checksum)
    struct.pack_into("<Q", content, HEADER_BYTES - 8, xxh64(bytes(content[: HEADER_BYTES - 8])))
    return content


def corpus_of(path: Path, *documents: list[int]) -> Path:
    """A corpus file for a drafter, bound to no tokenizer, with tokens below 4000."""
    builder = FrozenBuilder(str(path), vocabulary=4000, tokenizer_hash=bytes(32))
    for document in documents:
        builder.add_document(int32s(document))
    builder.finish()
    return path
