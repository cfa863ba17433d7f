"""What a `RecycleDrafter` knows, as a file: for a warm start.

    foresay laws 2
    sha256 of all that follows
    {"k": …, "rows": …, "vocabulary": …, "tokenizer": …}
    keys, tokens and levels, one after the other

Token ids mean nothing without their tokenizer, so the file names it. Files of version 1 did not:
they are refused.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import Int32s
from foresay.errors import InputError
from foresay.files import whole_file

__all__ = ["Tokens", "TopKTable", "read_table", "write_table"]

_MAGIC = b"foresay laws 2\n"
_OLD = b"foresay laws 1\n"
_DTYPES = ("<u8", "<i4", "u1")  # of keys, tokens and levels


class Tokens(NamedTuple):
    """What token ids mean: how many there are, and the hash of the tokenizer's file, if known."""

    vocabulary: int
    tokenizer: bytes | None

    def __str__(self) -> str:
        hashed = "unknown" if self.tokenizer is None else f"{self.tokenizer.hex()[:16]}…"
        return f"{self.vocabulary} tokens and the tokenizer {hashed}"


class TopKTable(NamedTuple):
    """The content of a file. `of`: None if its drafter was never told of a target."""

    keys: NDArray[np.uint64]
    tokens: Int32s
    levels: NDArray[np.uint8]
    of: Tokens | None


def write_table(path: Path, table: TopKTable, k: int) -> None:
    """Write a file. Raises: OSError."""
    arrays: tuple[NDArray[Any], ...] = table[:3]
    vocabulary, tokenizer = (None, None) if table.of is None else table.of
    hashed = None if tokenizer is None else tokenizer.hex()
    head = {"k": k, "rows": len(table.keys), "vocabulary": vocabulary, "tokenizer": hashed}
    content = json.dumps(head).encode() + b"\n"
    for array, dtype in zip(arrays, _DTYPES, strict=True):
        content += array.astype(dtype).tobytes()
    with whole_file(path) as part:
        part.write_bytes(_MAGIC + sha256(content).hexdigest().encode() + b"\n" + content)


def read_table(path: Path, k: int) -> TopKTable:
    """The content of a file, checked.

    Raises: InputError that names the file.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device may never end
            raise ValueError("it is no plain file")
        whole = path.read_bytes()
        if whole.startswith(_OLD):
            raise ValueError("it is of version 1, which names no tokenizer; save it again")
        if not whole.startswith(_MAGIC):
            raise ValueError(f"it does not begin with {_MAGIC.decode().strip()!r}")
        checksum, _, rest = whole[len(_MAGIC) :].partition(b"\n")
        if sha256(rest).hexdigest().encode() != checksum:
            raise ValueError("its content is not what was written")
        line, _, content = rest.partition(b"\n")
        head = json.loads(line)
        found, rows = head["k"], head["rows"]
        vocabulary, tokenizer = head["vocabulary"], head["tokenizer"]
        whole_numbers = type(rows) is int and type(found) is int
        if not whole_numbers or len(content) != rows * (8 + 5 * found):
            raise ValueError(f"{len(content)} bytes do not fit {rows} rows of {found} tokens")
        of = None
        if vocabulary is not None:
            hashed = None if tokenizer is None else bytes.fromhex(tokenizer)
            if type(vocabulary) is not int or vocabulary < 1 or len(hashed or bytes(32)) != 32:
                raise ValueError(f"a vocabulary of {vocabulary}, a tokenizer {tokenizer}")
            of = Tokens(vocabulary, hashed)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} is no file of RecycleDrafter.save: {error}") from error
    if found != k:
        raise InputError(f"{path} has the {found} likeliest tokens; expected k = {k}")
    ends = 8 * rows, (8 + 4 * k) * rows
    pieces = content[: ends[0]], content[ends[0] : ends[1]], content[ends[1] :]
    keys, tokens, levels = (
        np.frombuffer(piece, dtype) for piece, dtype in zip(pieces, _DTYPES, strict=True)
    )
    if of is not None and tokens.max(initial=-1) >= of.vocabulary:
        raise InputError(
            f"{path} is no file of RecycleDrafter.save: token {tokens.max()} of a vocabulary of "
            f"{of.vocabulary}"
        )
    return TopKTable(keys.astype(np.uint64), tokens.astype(np.int32), levels.copy(), of)
