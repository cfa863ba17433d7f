"""Models and prompts for model.generate, without foresay and with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from foresay.integrations.transformers import generate
from models import zoo

# transformers' own types say that a model's `generate` is a tensor.
make: Any = zoo.make
config: Any = GenerationConfig


def padded(*sizes: int, seed: int = 0) -> dict[str, Tensor]:
    """Texts that repeat themselves, padded on the left."""
    random, width = np.random.default_rng(seed), max(sizes)
    ids = torch.zeros(len(sizes), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, size in enumerate(sizes):
        piece = zoo.tokens(random, max(size // 3, 1)).astype(np.int64)
        ids[row, width - size :] = torch.from_numpy(np.tile(piece, 4)[:size])
        mask[row, width - size :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def both(model: Any, **asked: Any) -> tuple[Tensor, Tensor]:
    asked = {"do_sample": False, "max_new_tokens": 40, **asked}
    return model.generate(**asked), model.generate(**asked, custom_generate=generate)
