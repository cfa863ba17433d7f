"""The header of a GGUF file: metadata and the table of tensors. Every number in it is checked.

A count, length or offset is compared with the size of the file before anything is allocated for
it, so a damaged file gives an error and takes no memory. Nothing is mapped: a file that shrinks
while it is read gives an error and not a signal.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from os import PathLike
from typing import Any, BinaryIO

import numpy as np

from foresay.errors import ModelError
from foresay.models.weights.hashes import readable

__all__ = ["GgmlType", "Header", "Tensor", "read_header"]

_SCALARS = dict(
    zip(
        (0, 1, 2, 3, 4, 5, 6, 10, 11, 12),
        ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"),
        strict=True,
    )
)
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LENGTH = struct.Struct("<Q")
_LEAST = {
    _BOOL: 1,
    _STRING: 8,
    **{kind: np.dtype(code).itemsize for kind, code in _SCALARS.items()},
}


class GgmlType(IntEnum):
    """The type of a tensor: ggml's number and name, the values of a block and its bytes. A table of
    our own, so that a header is read without the package that decodes the values.
    """

    block: int
    block_bytes: int

    def __new__(cls, number: int, block: int, block_bytes: int) -> GgmlType:
        made = int.__new__(cls, number)
        made._value_ = number
        made.block, made.block_bytes = block, block_bytes
        return made

    @classmethod
    def of(cls, number: int) -> GgmlType | None:
        """The type of that number; None for an unknown one."""
        return next((kind for kind in cls if kind == number), None)

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: the shape as torch writes it, and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says of itself; arrays of strings are lists, arrays of numbers numpy.

    end         where the header ends: the bytes before it say all this
    file_size   what the tensors were checked against
    """

    metadata: dict[str, Any]
    tensors: dict[str, Tensor]
    end: int
    file_size: int


def read_header(path: str | PathLike[str]) -> Header:
    """The header of a file, checked against the file's size.

    Raises: ModelError naming the file and what is wrong in it.
    """
    with readable(path), open(path, "rb", buffering=1 << 20) as file:
        return _Reader(file, str(path)).header()


class _Reader:
    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0

    def header(self) -> Header:
        if self._take(4, "the magic") != b"GGUF":
            raise self._damaged("it does not begin with 'GGUF'")
        version = self._number("I", "the version")
        if version not in (2, 3):
            raise self._damaged(f"its version is {version}; expected 2 or 3 (little-endian)")
        tensors = self._count("the number of tensors", 8 + 4 + 8 + 4 + 8)
        keys = self._count("the number of keys", 8 + 4 + 1)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._string("a key")
            if key in metadata:
                raise self._damaged(f"the key '{key}' occurs twice")
            metadata[key] = self._value(self._number("I", key), key)
        infos = [self._info() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or alignment not in [1 << n for n in range(3, 24)]:
            raise self._damaged(f"general.alignment is {alignment}; expected a power of 2 from 8")
        end = self._at
        begin = -(-end // alignment) * alignment
        table = {}
        for name, shape, kind, offset in infos:
            if name in table:
                raise self._damaged(f"the tensor '{name}' occurs twice")
            table[name] = self._tensor(name, shape, kind, begin, offset, alignment)
        for one, two in pairwise(sorted(table.values(), key=lambda tensor: tensor.start)):
            if one.start + one.size > two.start:
                raise self._damaged(f"the tensors '{one.name}' and '{two.name}' overlap")
        return Header(metadata, table, end, self._size)

    def _tensor(
        self, name: str, dims: list[int], kind: int, begin: int, offset: int, alignment: int
    ) -> Tensor:
        named = GgmlType.of(kind)
        if named is None:
            raise self._damaged(f"the tensor '{name}' is of unknown type {kind}")
        block, width = named.block, named.block_bytes
        elements = 1
        for dim in dims:
            elements *= dim
        if dims[0] % block or not elements:
            raise self._damaged(
                f"the tensor '{name}' is {dims}; expected rows of {block}s for {named.name}"
            )
        size = elements // block * width
        if offset % alignment or begin + offset + size > self._size:
            raise self._damaged(
                f"the tensor '{name}' should have {size} bytes at {begin + offset}, "
                f"but the file has {self._size} bytes"
            )
        return Tensor(name, tuple(reversed(dims)), named, begin + offset, size)

    def _info(self) -> tuple[str, list[int], int, int]:
        name = self._string("the name of a tensor")
        count = self._number("I", name)
        if not 1 <= count <= 4:
            raise self._damaged(f"the tensor '{name}' has {count} dimensions; expected 1 to 4")
        dims = [self._number("Q", name) for _ in range(count)]
        return name, dims, self._number("I", name), self._number("Q", name)

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind != _ARRAY:
            return self._numbers(kind, 1, key)[0].item()
        kind = self._number("I", key)
        count = self._count(key, _LEAST.get(kind, 1))
        if kind == _STRING:
            return self._strings(count, key)
        return self._numbers(kind, count, key)

    def _numbers(self, kind: int, count: int, key: str) -> Any:
        if kind == _BOOL:
            return np.frombuffer(self._take(count, key), np.uint8) != 0
        if kind not in _SCALARS:
            raise self._damaged(f"the key '{key}' holds values of unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize, key), dtype)

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _strings(self, count: int, what: str) -> list[str]:
        """A loop of its own: a vocabulary and its merges are a hundred thousand strings."""
        read, length_of, size, at = self._file.read, _LENGTH.unpack, self._size, self._at
        found: list[str] = []
        for _ in range(count):
            head = read(8)
            if len(head) != 8:
                raise self._damaged(f"it ends at byte {size}, inside {what}")
            (length,) = length_of(head)
            at += 8
            if length > size - at:
                raise self._damaged(f"{what} says {length}, but {size - at} bytes are left")
            raw = read(length)
            at += length
            if len(raw) != length:
                raise self._damaged(f"it ends at byte {size}, inside {what}")
            try:
                found.append(raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                raise self._damaged(f"{what} is no text in UTF-8: {raw[:40]!r}") from error
        self._at = at
        return found

    def _count(self, what: str, least: int) -> int:
        """A count of things of at least `least` bytes each, checked against the file's size."""
        count = self._number("Q", what)
        if count * least > self._size - self._at:
            raise self._damaged(f"{what} says {count}, but {self._size - self._at} bytes are left")
        return count

    def _number(self, code: str, what: str) -> int:
        size = struct.calcsize(f"<{code}")
        number: int = struct.unpack(f"<{code}", self._take(size, what))[0]
        return number

    def _take(self, count: int, what: str) -> bytes:
        raw = self._file.read(count) if count <= self._size - self._at else b""
        if len(raw) != count:
            raise self._damaged(f"it ends at byte {self._size}, inside {what}")
        self._at += count
        return raw

    def _damaged(self, why: str) -> ModelError:
        return ModelError(f"'{self._path}' is no sound GGUF file: {why}")
