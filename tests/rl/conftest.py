"""One tiny model for the tests of this folder, for each test anew: weights are replaced. Its layers
are the core's, in bfloat16: those of torch take three times as long."""

from __future__ import annotations

import pytest
import torch

from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from models import zoo


@pytest.fixture
def target() -> Target:
    return target_of(zoo.make("llama", dtype=torch.bfloat16))
