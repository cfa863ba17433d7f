"""One thread: tiny matrices are not worth more. Targets whose layers are skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from drafters.self_targets import made, quantised
from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from tiny import one_thread


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    """Layers that torch computes, whole layers of the core, a whole decoder of the core."""
    return {
        "float32": target_of(made()),
        "bfloat16": target_of(made(dtype=torch.bfloat16)),
        "q8_0": quantised(tmp_path_factory.mktemp("quantised")),
    }
