"""A worker whose model is padded: what it was told of the target holds for its successor, too."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from foresay import LLM, SamplingParams
from foresay.drafters import WorkerDrafter
from tiny import save_model


def test_a_killed_worker_of_a_padded_model_is_replaced(tmp_path: Path) -> None:
    folder, wide = save_model(tmp_path / "tiny"), tmp_path / "wide"
    shutil.copytree(folder, wide)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(model.config.vocab_size + 7, mean_resizing=False)
    model.save_pretrained(wide)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    drafter = WorkerDrafter(f"model:{wide}")
    try:
        llm = LLM(folder, drafter, "fixed", dtype="float32", memory=1 << 24)
        [before] = llm.generate("Hello, hello", params)
        assert before.stats.drafted and drafter.pid is not None
        os.kill(drafter.pid, signal.SIGKILL)
        until = time.monotonic() + 60
        drafted = 0
        while not drafted and time.monotonic() < until:
            [again] = llm.generate("Hello, hello", params)
            assert again.token_ids == before.token_ids
            drafted = again.stats.drafted
            time.sleep(0.2)
        assert drafted
    finally:
        drafter.close()
