"""GGUF to a folder that transformers reads: bfloat16 safetensors, config and tokenizer.

Weights stream: one tensor, and of a large one a part, is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.progress import Progress, silent
from foresay.models.weights.cache import place
from foresay.models.weights.gguf_config import Plan, StoredTensor
from foresay.models.weights.gguf_header import Header, Tensor, read_header
from foresay.models.weights.gguf_texts import planned, write_texts
from foresay.models.weights.gguf_tokenizer import words_of
from foresay.models.weights.shards import LARGEST, Chunks, bf16_of, write_shards

__all__ = ["convert", "size_of", "write_model"]

_VALUES_AT_A_TIME = 1 << 23


def convert(
    file: str | PathLike[str],
    folder: str | PathLike[str],
    progress: Progress | None = None,
) -> None:
    """Write a GGUF file as safetensors, config and tokenizer into a new folder.

    Mutates: makes `folder`, all of it or none of it. Raises: ModelError for a damaged file or a
    full disk, UnsupportedModel for an unknown format, InputError if the folder exists.
    """
    final = Path(folder)
    if final.exists():
        raise InputError(f"'{final}' exists already; expected a new folder")
    header = read_header(file)
    place(final, lambda made: write_model(file, made, progress), needed=size_of(header))


def size_of(header: Header) -> int:
    """Bytes that the folder will have, within a few MB."""
    return sum(map(_written, header.tensors.values())) + (1 << 24)


def write_model(
    file: str | PathLike[str],
    folder: Path,
    progress: Progress | None = None,
    *,
    note: Mapping[str, Any] | None = None,
) -> None:
    """As `convert`, into a temporary folder that exists.

    note    goes into foresay.json, beside the sha256 of the weights

    Raises: as `convert`, and OSError.
    """
    source = Path(file)
    header = read_header(source)
    made = planned(header, source)
    words = words_of(header, made.config["vocab_size"], str(source))
    with open(source, "rb") as opened:
        reader = _Reader(opened, str(source), progress or silent)
        made = replace(made, tensors=_untied(made, reader))
        reader.begin(sum(_written(one.tensor) for one in made.tensors.values()))
        tensors: dict[str, tuple[tuple[int, ...], Chunks]] = {
            name: (one.tensor.shape, partial(reader.bits, one))
            for name, one in made.tensors.items()
        }
        hashes = write_shards(folder, tensors)
    write_texts(made, words, folder, note={**(note or {}), "files": hashes})


def _written(tensor: Tensor) -> int:
    """Bytes of its values in bfloat16."""
    return 2 * int(np.prod(tensor.shape, dtype=object))


def _untied(made: Plan, reader: _Reader) -> dict[str, StoredTensor]:
    """The plan's tensors without an output that equals the embedding."""
    stored = dict(made.tensors)
    output, embedding = stored.get("lm_head.weight"), stored["model.embed_tokens.weight"]
    if output is not None and reader.same(output.tensor, embedding.tensor):
        del stored["lm_head.weight"]
    return stored


class _Reader:
    """The tensors of an open file, in parts."""

    def __init__(self, file: BinaryIO, path: str, progress: Progress) -> None:
        self._file, self._path, self._progress = file, path, progress
        self._done = self._total = 0

    def begin(self, total: int) -> None:
        """Start the progress, of so many bytes to write."""
        self._done, self._total = 0, total
        self._progress("convert", 0, total)

    def parts(self, tensor: Tensor, unit: int = 1) -> Iterator[NDArray[np.float32]]:
        """Rows as float32, in parts of bounded size, always whole units of rows."""
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        width = tensor.size // rows
        values = int(np.prod(tensor.shape, dtype=object)) // rows
        step = max(1, _VALUES_AT_A_TIME // values // unit) * unit
        kind = GGMLQuantizationType(tensor.kind)
        for row in range(0, rows, step):
            count = min(step, rows - row)
            raw = self._read(tensor, row * width, count * width)
            try:
                with np.errstate(all="ignore"):  # the caller checks for overflow
                    decoded = dequantize(raw.reshape(count, width), kind)
            except NotImplementedError as error:
                raise UnsupportedModel(
                    f"'{self._path}': the tensor '{tensor.name}' is of type {tensor.kind.name}, "
                    "which cannot be decoded"
                ) from error
            yield decoded.reshape(count, values)

    def bits(self, stored: StoredTensor) -> Iterator[NDArray[np.uint16]]:
        """The tensor in the layout of the target."""
        tensor = stored.tensor
        unit = tensor.shape[0] // stored.heads if stored.heads else 1
        for part in self.parts(tensor, unit):
            if stored.heads:
                # Rows came as (half, pair) in every head and were stored as (pair, half).
                part = part.reshape(-1, unit // 2, 2, part.shape[1]).swapaxes(1, 2)
            if stored.plus:
                part = part - np.float32(stored.plus)
            if not float(np.abs(part).max()) <= LARGEST:  # so NaN is found too
                raise ModelError(
                    f"'{self._path}' is damaged: the tensor '{tensor.name}' holds values that are "
                    "no numbers, or too large for bfloat16"
                )
            yield bf16_of(part)
        self._done += _written(tensor)
        self._progress("convert", self._done, self._total)

    def same(self, one: Tensor, two: Tensor) -> bool:
        """Whether two tensors have the same bytes."""
        if (one.shape, one.kind) != (two.shape, two.kind):
            return False
        for at in range(0, one.size, 1 << 24):
            count = min(1 << 24, one.size - at)
            if not np.array_equal(self._read(one, at, count), self._read(two, at, count)):
                return False
        return True

    def _read(self, tensor: Tensor, at: int, count: int) -> NDArray[np.uint8]:
        self._file.seek(tensor.start + at)
        raw = self._file.read(count)
        if len(raw) != count:
            raise ModelError(f"'{self._path}' became shorter while it was read")
        return np.frombuffer(raw, np.uint8)
