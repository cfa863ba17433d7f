"""GGUF to a folder that transformers reads: bfloat16 safetensors, config and tokenizer.

Weights stream: one tensor, and of a large one a part, is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.gguf_config import Plan, StoredTensor, plan
from foresay.models.weights.gguf_header import Header, Tensor, read_header
from foresay.models.weights.gguf_tokenizer import words_of
from foresay.models.weights.gguf_values import decoded, tensor_bytes
from foresay.models.weights.shards import LARGEST, Chunks, bf16_of, write_shards
from foresay.models.weights.stored import write_texts

__all__ = ["size_of", "write_model"]

_VALUES_AT_A_TIME = 1 << 23
_BYTES_AT_A_TIME = 1 << 24


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
    """Write a GGUF file as safetensors, config and tokenizer into a folder that exists.

    note    goes into foresay.json, beside the sha256 of the weights

    Raises: ModelError for a damaged file, UnsupportedModel for an unknown format, OSError.
    """
    source = Path(file)
    header = read_header(source)
    made = plan(header, source)
    words = words_of(header, made.config["vocab_size"], str(source))
    made = replace(made, tensors=_untied(made, source))
    total = sum(_written(one.tensor) for one in made.tensors.values())
    report, done = progress or silent, 0
    report("convert", 0, total)

    def chunks(one: StoredTensor) -> Iterator[NDArray[np.uint16]]:
        nonlocal done
        yield from _bits(source, one)
        done += _written(one.tensor)
        report("convert", done, total)

    tensors: dict[str, tuple[tuple[int, ...], Chunks]] = {
        name: (one.tensor.shape, partial(chunks, one)) for name, one in made.tensors.items()
    }
    hashes = write_shards(folder, tensors)
    write_texts(made, words, folder, note={**(note or {}), "files": hashes})


def _written(tensor: Tensor) -> int:
    """Bytes of its values in bfloat16."""
    return 2 * int(np.prod(tensor.shape, dtype=object))


def _untied(made: Plan, file: Path) -> dict[str, StoredTensor]:
    """The plan's tensors without an output that equals the embedding."""
    stored = dict(made.tensors)
    output, embedding = stored.get("lm_head.weight"), stored["model.embed_tokens.weight"]
    if output is not None and _same(file, output.tensor, embedding.tensor):
        del stored["lm_head.weight"]
    return stored


def _same(file: Path, one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have the same bytes."""
    if (one.shape, one.kind) != (two.shape, two.kind):
        return False
    for at in range(0, one.size, _BYTES_AT_A_TIME):
        count = min(_BYTES_AT_A_TIME, one.size - at)
        if (tensor_bytes(file, one, at, count) != tensor_bytes(file, two, at, count)).any():
            return False
    return True


def _bits(file: Path, stored: StoredTensor) -> Iterator[NDArray[np.uint16]]:
    """The tensor in the layout of the target, in parts of bounded size."""
    tensor = stored.tensor
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    width, values = tensor.size // rows, int(np.prod(tensor.shape, dtype=object)) // rows
    unit = rows // stored.heads if stored.heads else 1
    step = max(1, _VALUES_AT_A_TIME // values // unit) * unit
    for row in range(0, rows, step):
        count = min(step, rows - row)
        part = decoded(file, tensor, tensor_bytes(file, tensor, row * width, count * width))
        if stored.heads:
            # Rows came as (half, pair) in every head and were stored as (pair, half).
            part = part.reshape(-1, unit // 2, 2, part.shape[1]).swapaxes(1, 2)
        if stored.plus:
            part = part - np.float32(stored.plus)
        if not float(np.abs(part).max()) <= LARGEST:  # so NaN is found too
            raise ModelError(
                f"'{file}' is damaged: the tensor '{tensor.name}' holds values that are no "
                "numbers, or too large for bfloat16"
            )
        yield bf16_of(part)
