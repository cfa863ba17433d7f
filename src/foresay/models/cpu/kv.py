"""Keys and values of the core, for the targets on processors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foresay._core import AttentionStep, Kv

__all__ = ["bytes_per_token", "filled_kv"]


def bytes_per_token(kv: Kv) -> int:
    """With padding to whole vectors. Reserves memory in `kv`."""
    kv.reserve(1)
    return kv.bytes // kv.capacity


def filled_kv(
    kv: Kv, shapes: Sequence[tuple[int, int, int]], dtype: torch.dtype, tokens: int
) -> Kv:
    """`kv`, with keys and values of `tokens` that are made up, for timing."""
    rows = np.arange(tokens, dtype=np.int32)
    step = AttentionStep([kv], np.array([0, tokens], np.int32), rows - 1)
    chance = torch.Generator().manual_seed(1)  # torch's own generator belongs to the user

    def ordinary(*shape: int) -> Tensor:  # tiny numbers would take longer
        return torch.rand(shape, generator=chance, dtype=torch.float32).to(dtype)

    for layer, (heads, key, value) in enumerate(shapes):
        keys, values = ordinary(1, heads, tokens, key), ordinary(1, heads, tokens, value)
        out = torch.empty(1, tokens, heads, value, dtype=dtype)
        step.attend(layer, keys, keys, values, out, scaling=1.0, window=1)
    kv.keep(rows)
    return kv
