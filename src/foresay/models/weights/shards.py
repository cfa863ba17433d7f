"""Writing safetensors: bfloat16 tensors one after another, in files of at most 2 GB.

All shapes are known before the first byte, so headers come first and the data streams.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST", "SHARD_BYTES", "Chunks", "bf16_of", "write_shards"]

SHARD_BYTES = 2_000_000_000
LARGEST = float(np.uint32(0x7F7F0000).view(np.float32))  # of the bfloat16s

Chunks: TypeAlias = Callable[[], Iterator[NDArray[np.uint16]]]
"""Called once, gives the bits of a tensor's bfloat16 values in parts."""


def bf16_of(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16s, ties to even, of numbers no larger than LARGEST.

    Raises: nothing; NaN gives any number.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded: NDArray[np.uint16] = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    return rounded


def write_shards(
    folder: Path,
    tensors: dict[str, tuple[tuple[int, ...], Chunks]],
    *,
    limit: int = SHARD_BYTES,
) -> dict[str, str]:
    """Write the tensors to model.safetensors, or to several files and their index.

    Returns the sha256 of each file of tensors. Raises: OSError, and what the chunks raise.
    """
    shards: list[dict[str, int]] = [{}]
    for name, (shape, _) in tensors.items():
        size = 2
        for dim in shape:
            size *= dim
        if shards[-1] and sum(shards[-1].values()) + size > limit:
            shards.append({})
        shards[-1][name] = size
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{n + 1:05}-of-{len(shards):05}.safetensors" for n in range(len(shards))]
        index = {
            "metadata": {"total_size": sum(sum(shard.values()) for shard in shards)},
            "weight_map": {
                tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard
            },
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return {
        name: _write(folder / name, shard, tensors)
        for name, shard in zip(names, shards, strict=True)
    }


def _write(
    path: Path, sizes: dict[str, int], tensors: dict[str, tuple[tuple[int, ...], Chunks]]
) -> str:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, size in sizes.items():
        offsets = [end, end + size]
        header[name] = {"dtype": "BF16", "shape": tensors[name][0], "data_offsets": offsets}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for piece in (struct.pack("<Q", len(text)), text):
            digest.update(piece)
            file.write(piece)
        for name in sizes:
            for chunk in tensors[name][1]():
                raw = chunk.astype("<u2", copy=False).tobytes()
                digest.update(raw)
                file.write(raw)
    return digest.hexdigest()
