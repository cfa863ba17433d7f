"""The target on a GPU: on a GPU where there is one, else in Triton's interpreter on the CPU.

What every target must do is in `test_conformance.py`; here is what is this one's own.
"""

from __future__ import annotations

import os
from functools import cache

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported

from transformers import PreTrainedModel

from foresay.models.decoder_config import read_config
from foresay.models.gpu.load import target_over
from foresay.models.gpu.target import GpuTarget
from foresay.models.replacing import names_of, tensors_of
from models import zoo
from models.targets import assert_close, plain_of, ragged_step

FAST = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def gpu_target(model: PreTrainedModel) -> GpuTarget:
    config = read_config(model.config.to_dict(), "the model")
    tensors = {name: tensor.detach() for name, tensor in tensors_of(model.to(DEVICE)).items()}
    return target_over(config, tensors, names_of(model), "the model", memory=1 << 22)


@cache
def made(name: str) -> GpuTarget:
    return gpu_target(zoo.make(name))


@pytest.mark.parametrize("name", FAST)
def test_a_ragged_step_of_trees(name: str) -> None:
    given, wanted = ragged_step(made(name), plain_of(name), 1)
    assert_close(given.cpu(), wanted)
