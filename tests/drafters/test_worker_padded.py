"""A worker whose model is padded: what it was told of the target holds for its successor, too."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from drafters.forked_worker import ForkedWorker
from foresay import LLM, SamplingParams
from tiny import save_model


def test_a_killed_worker_of_a_padded_model_is_replaced(tmp_path: Path) -> None:
    folder, wide = save_model(tmp_path / "tiny"), tmp_path / "wide"
    shutil.copytree(folder, wide)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(model.config.vocab_size + 7, mean_resizing=False)
    model.save_pretrained(wide)
    params = SamplingParams(temperature=0.0, max_tokens=8)
    drafter = ForkedWorker(f"model:{wide}", timeout=20)
    try:
        llm = LLM(folder, drafter, "fixed", dtype="float32", memory=1 << 24)
        [before] = llm.generate("Hello, hello", params)
        assert before.stats.drafted and drafter.pid is not None
        os.kill(drafter.pid, signal.SIGKILL)
        for _ in range(2):  # the end of the first is noticed in the first
            [again] = llm.generate("Hello, hello", params)
            assert again.token_ids == before.token_ids
            assert drafter.ready(60)
        assert again.stats.drafted and drafter.restarts == 1
    finally:
        drafter.close()
