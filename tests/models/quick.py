"""Tiny targets whose passes cost little: whole decoders of the core, with weights in blocks. A pass
of four layers took 1.1 ms on a busy Xeon, of torch's modules with two layers 6.2 ms. For tests of
what stands above a target; it has tests of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedModel

from foresay.models.cpu.stored_target import StoredTarget, load_blocks
from foresay.models.options import LoadOptions
from foresay.models.weights.stored import in_folder
from models import zoo


@cache
def quick_target(seed: int = 0, noise: float = 0.0, **changes: Any) -> StoredTarget:
    """The zoo's llama; `noise` of its weights' own size makes a model that is near it."""
    model = zoo.make("llama", seed=seed, **{"intermediate_size": 64, **changes})
    if noise:
        draw = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for _, weight in sorted(model.named_parameters()):
                weight.add_(torch.randn(weight.shape, generator=draw) * noise * weight.std())
    return quickened(model)


def quickened(model: PreTrainedModel) -> StoredTarget:
    """A model of transformers, in blocks; its rows are of whole blocks of 32 numbers."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_blocks(in_folder(Path(folder)), LoadOptions(quantize="q8_0", threads=1))
