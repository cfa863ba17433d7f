"""TRL without vLLM, and quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

from tiny import one_thread

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # it warns of every rollout_func

# TRL looks for a package `vllm` when it is imported, and would find our folder tests/vllm.
if "vllm" not in sys.modules:
    sys.modules["vllm"] = None  # type: ignore[assignment]
    import trl.trainer.grpo_trainer

    assert trl
    del sys.modules["vllm"]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
