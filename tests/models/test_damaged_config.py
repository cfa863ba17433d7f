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


USED, LOADED = r"/config.json' cannot be used: .*", "the model in '.*' cannot be loaded: "
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": "four"}, USED + "'num_hidden_layers' expected int, got str .*'four'"),
    ({"hidden_size": None}, USED + "'hidden_size' expected int, got NoneType"),
    ({"head_dim": 2.5}, USED + "'head_dim' with value 2.5 doesn't match any type in"),
    ({"num_attention_heads": 3}, USED + "hidden size .32. is not a multiple of .* heads .3.$"),
    # What transformers does not check.
    ({"num_attention_heads": 0}, LOADED),
    ({"layer_types": 3}, LOADED),
    ({"quantization_config": 5}, LOADED),
    ({"pad_token_id": 10**9}, LOADED),
    # What would be built without end.
    ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; expected at most 4096"),
    ({"model_type": "gpt2", "n_layer": 10**9}, "'n_layer' is 1000000000; expected"),
    ({"model_type": "mixtral", "num_local_experts": 10**9}, "'num_local_experts' is 1000000000"),
    ({"model_type": "gemma3", "text_config": {"num_hidden_layers": 10**9}}, "'num_hidden_layers'"),
]


@pytest.mark.parametrize(("damage", "sentence"), WRONG)
def test_a_wrong_value_is_named_with_its_file(
    tmp_path: Path, model: Path, damage: dict[str, Any], sentence: str
) -> None:
    config = json.loads((model / "config.json").read_text()) | damage
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(model / "model.safetensors")
    with pytest.raises(ModelError, match=sentence):
        read_model(tmp_path, torch.float32)
