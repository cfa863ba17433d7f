"""A config.json with values that transformers refuses is named in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foresay.errors import ModelError
from foresay.models.load_transformers import read_model
from models import zoo


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    zoo.make("llama").save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"num_hidden_layers": "four"}, "'num_hidden_layers' expected int, got str .*'four'"),
        ({"hidden_size": None}, "'hidden_size' expected int, got NoneType"),
        ({"head_dim": 2.5}, "'head_dim' with value 2.5 doesn't match any type in"),
        ({"num_attention_heads": 3}, "hidden size .32. is not a multiple of .* heads .3.$"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(
    model: Path, tmp_path: Path, damage: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=rf"/config.json' cannot be used: .*{sentence}"):
        read_model(_damaged(model, tmp_path, damage), torch.float32)


@pytest.mark.parametrize(
    "damage",
    [
        {"num_attention_heads": 0},
        {"layer_types": 3},
        {"quantization_config": 5},
        {"pad_token_id": 10**9},
    ],
)
def test_what_transformers_does_not_check(
    model: Path, tmp_path: Path, damage: dict[str, Any]
) -> None:
    with pytest.raises(ModelError, match=f"the model in '{tmp_path}' cannot be loaded: "):
        read_model(_damaged(model, tmp_path, damage), torch.float32)


@pytest.mark.parametrize(
    ("damage", "key"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"model_type": "gpt2", "n_layer": 10**9}, "n_layer"),
        ({"model_type": "mixtral", "num_local_experts": 10**9}, "num_local_experts"),
        ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 10**9}}, "num_hidden_l"),
    ],
)
def test_what_would_be_built_without_end(
    model: Path, tmp_path: Path, damage: dict[str, Any], key: str
) -> None:
    with pytest.raises(ModelError, match=f"'{key}.*' is 1000000000; expected at most 4096"):
        read_model(_damaged(model, tmp_path, damage), torch.float32)


def _damaged(model: Path, folder: Path, damage: dict[str, Any]) -> Path:
    config = json.loads((model / "config.json").read_text()) | damage
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").symlink_to(model / "model.safetensors")
    return folder
