"""A tiny target and answers that it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle.heads import save_target
from foresay import SamplingParams
from foresay.engine.engine import Engine
from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from models import zoo


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose next token depends mostly on the last one, so that a tiny head can learn it:
    the weights of the zoo are drawn wide, so that each token depends on all before."""
    model = zoo.make("llama")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(0.1)
    return save_target(tmp_path_factory.mktemp("target"), model)


@pytest.fixture(scope="session")
def target(folder: Path) -> Target:
    return target_of(AutoModelForCausalLM.from_pretrained(folder))


@pytest.fixture(scope="session")
def corpus(folder: Path, target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's own answers."""
    path, random = tmp_path_factory.mktemp("corpus") / "answers.jsonl", np.random.default_rng(0)
    engine = Engine(target, policy="none")
    params = SamplingParams(temperature=0.7, max_tokens=40)
    requests = [
        engine.add(random.integers(0, zoo.VOCABULARY, 6).tolist(), params, seed=seed)
        for seed in range(150)
    ]
    engine.run()
    path.write_text(
        "".join(
            json.dumps(
                {
                    "id": str(at),
                    "group": str(at),
                    "prompt": request.prompt.tolist(),
                    "output": request.token_ids,
                }
            )
            + "\n"
            for at, request in enumerate(requests)
        )
    )
    return path
