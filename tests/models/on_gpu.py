"""What tests of models/gpu need: its kernels run on a GPU where there is one, else in Triton's
interpreter on the CPU (`tests/conftest.py` asks for it), where a step takes seconds."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from foresay.models.decoder_config import read_config
from foresay.models.gpu.load import target_over
from foresay.models.gpu.target import GpuTarget
from foresay.models.replacing import names_of, tensors_of

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
needs_cuda = pytest.mark.skipif(not CUDA, reason="a GPU is needed: the interpreter takes too long")
needs_kernels = pytest.mark.skipif(
    not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="the kernels cannot run here"
)


def gpu_target(model: PreTrainedModel) -> GpuTarget:
    """The target over a model's weights, on the device of the tests."""
    config = read_config(model.config.to_dict(), "the model")
    moving: Any = model
    moving.to(DEVICE)
    tensors = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    target = target_over(config, tensors, names_of(model), "the model", memory=1 << 22)
    target.model = model
    return target
