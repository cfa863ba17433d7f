"""Reading safetensors: where each tensor of a file is, and its values."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.hashes import readable

__all__ = ["SafeTensor", "read_tensors"]

_HEADER_LIMIT = 100_000_000  # of the format itself
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64"), 64),
}
_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


@dataclass(frozen=True)
class SafeTensor:
    """A tensor of a file: `size` bytes from `start` on, of the type `kind`."""

    name: str
    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int
    size: int

    def rows(self, first: int, count: int) -> NDArray[np.float32]:
        """Rows of the first dimension, as float32.

        Raises: UnsupportedModel for another type than F32, F16 and BF16; ModelError naming the
        tensor if the file has become shorter, cannot be read, or holds what is no number.
        """
        if self.kind not in _TYPES:
            raise UnsupportedModel(
                f"'{self.file}': the tensor '{self.name}' is of type {self.kind}; expected "
                f"{', '.join(_TYPES)}"
            )
        dtype, rest = _TYPES[self.kind], self.shape[1:]
        width = int(np.prod(rest, dtype=np.int64))
        found = self.raw(dtype, first * width, count * width)
        if self.kind == "BF16":
            found = (found.astype(np.uint32) << 16).view(np.float32)
        values: NDArray[np.float32] = found.astype(np.float32).reshape(count, *rest)
        if not np.isfinite(values).all():
            raise ModelError(f"'{self.file}': the tensor '{self.name}' holds what is no number")
        return values

    def raw(self, dtype: np.dtype[Any], first: int, count: int) -> NDArray[Any]:
        """Values from the `first` on as they are stored, of a dtype that `kind` means.

        Raises: ModelError naming the tensor if the file has become shorter, or cannot be read.
        """
        with readable(self.file), open(self.file, "rb") as opened:
            opened.seek(self.start + first * dtype.itemsize)
            found = np.fromfile(opened, dtype, count)
        if len(found) != count:
            raise ModelError(f"'{self.file}' became shorter: it ends inside '{self.name}'")
        return found


def read_tensors(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a file, by name. Its header is compared with its size, so a partial download
    is found here; the values are not read.

    Raises: ModelError naming the file and what is wrong.
    """

    def damaged(why: str) -> ModelError:
        return ModelError(f"'{path}' is damaged or was not downloaded to its end: {why}")

    with readable(path), open(path, "rb") as file:
        size = path.stat().st_size
        first = file.read(8)
        if len(first) < 8:
            raise damaged(f"it has {len(first)} bytes")
        length: int = struct.unpack("<Q", first)[0]
        if length > min(size - 8, _HEADER_LIMIT):
            raise damaged(f"its header should have {length} bytes, but the file has {size}")
        raw = file.read(length)
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise damaged("its header is JSON, but no object")
    found, spans = {}, []
    for name, entry in header.items():
        if name != "__metadata__":
            span = _span(entry)
            if span is None:
                raise damaged(f"the tensor '{name:.80}' has no sound entry in the header")
            spans.append(span)
            begin, stop = span
            found[name] = SafeTensor(
                name, path, entry["dtype"], tuple(entry["shape"]), 8 + length + begin, stop - begin
            )
    end = 0
    for begin, stop in sorted(spans):
        if begin != end:
            raise damaged(f"its tensors overlap or leave a hole at byte {end} of the data")
        end = stop
    if 8 + length + end != size:
        raise damaged(f"it should have {8 + length + end} bytes, but has {size}")
    return found


def _span(entry: object) -> tuple[int, int] | None:
    """Begin and end of a tensor's data, if they fit its shape and type."""
    if not isinstance(entry, dict):
        return None
    span, shape, kind = entry.get("data_offsets"), entry.get("shape"), entry.get("dtype")
    if not isinstance(span, list) or not isinstance(shape, list) or not isinstance(kind, str):
        return None
    if len(span) != 2 or not all(type(n) is int and n >= 0 for n in (*span, *shape)):
        return None
    begin, end = span
    if kind in _BITS:
        bits = _BITS[kind]
        for dim in shape:
            bits *= dim
        if bits != 8 * (end - begin):
            return None
    return (begin, end) if begin <= end else None
