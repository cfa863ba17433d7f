"""Small targets whose layers are skipped: computed by torch, by the core, and quantised."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine.asking import ASKED, prompts
from foresay import SamplingParams
from foresay.models.load import load
from foresay.models.target import Target
from models import zoo

LAYERS = 4
SAMPLED = SamplingParams(temperature=0.8, max_tokens=40)
MANY = [
    (prompt, replace(params, max_tokens=min(params.max_tokens, 16)))
    for prompt, params in zip(prompts(len(ASKED)), ASKED, strict=True)
]


def made(name: str = "llama", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    return zoo.make(name, dtype=dtype, num_hidden_layers=LAYERS, **changes)


@cache
def quantised(folder: Path) -> Target:
    made(hidden_size=64, intermediate_size=96).save_pretrained(folder)
    return load(folder, quantize="q8_0", threads=1)


KINDS = ["float32", "bfloat16", "q8_0"]
