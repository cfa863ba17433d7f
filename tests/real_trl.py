"""TRL looks for a package `vllm` when it is imported, and would find our folder tests/vllm."""

from __future__ import annotations

import sys
from importlib import import_module


def import_trl() -> None:
    """Import what foresay uses of TRL, as if there were no vLLM."""
    if "vllm" in sys.modules:
        import_module("trl.trainer.grpo_trainer")
        return
    sys.modules["vllm"] = None  # type: ignore[assignment]
    try:
        import_module("trl.trainer.grpo_trainer")
    finally:
        del sys.modules["vllm"]
