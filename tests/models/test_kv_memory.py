"""What keys and values take: 2 x layers x KV heads x head size x bytes of a number, per token."""

from __future__ import annotations

import pytest
import torch

from foresay.models.load_transformers import plain_target_of, target_of
from models import zoo

HEAD, LAYERS = 32, 2


def expected(heads: int, dtype: torch.dtype, tokens: int = 1) -> int:
    return 2 * LAYERS * heads * HEAD * dtype.itemsize * tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [4, 2, 1], ids=["MHA", "GQA", "MQA"])
def test_bytes_of_a_token(heads: int, dtype: torch.dtype) -> None:
    """Of 4 query heads; the core pads to whole vectors, which 32 numbers are."""
    model = zoo.make("llama", num_key_value_heads=heads, head_dim=HEAD, dtype=dtype)
    assert plain_target_of(model).bytes_per_token == expected(heads, dtype)
    target = target_of(model, deterministic=False)
    assert target.bytes_per_token == expected(heads, dtype)
    kv = target.open()
    kv.reserve(100)
    assert kv.bytes == expected(heads, dtype, kv.capacity) and kv.capacity >= 100
