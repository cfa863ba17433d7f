"""How a model is run follows from its files and from `dtype` and `quantize`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forks
from foresay.errors import InputError, ModelError
from foresay.models.cpu.quantised_linears import QuantisedLinear
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.cpu.target import CpuTarget
from foresay.models.load import find_model, load
from foresay.models.load_transformers import read_model
from foresay.models.options import Dtype
from foresay.models.target import SequenceInput, Target
from models import zoo
from models.test_quantised_decoder import make
from models.weight_files import small_file
from tiny import save_model

TEXT = np.arange(3, 40, dtype=np.int32)


def logits(target: Target) -> torch.Tensor:
    return target.forward(
        [SequenceInput.of(target, target.open(), TEXT % target.vocabulary)]
    ).logits.float()


def test_a_gguf_file_is_run_as_it_is_stored(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    found = find_model(tmp_path / "a.gguf", cache=tmp_path)
    stored = load(found, threads=1)
    assert found.gguf == tmp_path / "a.gguf" and isinstance(stored, StoredTarget) and stored.exact
    assert found.identity in (stored.identity or "")
    widened = find_model(tmp_path / "a.gguf", dtype="float32", cache=tmp_path)
    plain = load(widened, dtype="float32", threads=1)
    assert widened.gguf is None and isinstance(plain, CpuTarget)
    assert torch.corrcoef(torch.stack([logits(stored)[0], logits(plain)[0]]))[0, 1] > 0.99


@pytest.mark.parametrize("name", ["llama", "olmo2"])
def test_a_folder_is_quantised(name: str, tmp_path: Path) -> None:
    """By the core's decoder, or as transformers' modules where it does not know the model."""
    make(name).save_pretrained(tmp_path)
    target = load(find_model(tmp_path, quantize="q8_0"), quantize="q8_0", threads=1)
    if name == "llama":
        assert isinstance(target, StoredTarget)
    else:
        assert isinstance(target, CpuTarget)
        assert any(isinstance(m, QuantisedLinear) for m in target.model.modules())
    assert target.exact
    plain = load(tmp_path, dtype="float32", threads=1)
    assert isinstance(plain, CpuTarget) and not torch.equal(logits(target), logits(plain))
    assert torch.corrcoef(torch.stack([logits(target)[0], logits(plain)[0]]))[0, 1] > 0.99


@pytest.mark.parametrize("function", [find_model, load])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quantize": "q3"}, "quantize is 'q3'; expected q8_0, q4_0"),
        ({"quantize": 8}, "quantize is 8; expected q8_0, q4_0"),
        ({"quantize": "q8_0", "dtype": "float32"}, "'q8_0' and dtype is 'float32'; expected one"),
    ],
)
def test_wrong_options_are_refused_first(
    function: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        function("/nowhere", **options)


@pytest.mark.parametrize("way", ["cut", "overwritten"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_weights_file_that_changes_later(tmp_path: Path, way: str, dtype: Dtype) -> None:
    """In a process of its own: a mapped file would end it."""
    save_model(tmp_path)
    code = """
import os, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
from foresay import LLM, SamplingParams
folder, way, dtype = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
model.save_pretrained(folder / "stored")
for file in folder.glob("*token*"):
    (folder / "stored" / file.name).write_bytes(file.read_bytes())
weights = folder / "stored" / "model.safetensors"
llm = LLM(folder / "stored", None, dtype=dtype, memory=1 << 24)
params = SamplingParams(temperature=0, max_tokens=12)
before = llm.generate("Hello", params)[0].token_ids
if way == "cut":
    os.truncate(weights, 0)
else:
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.write(bytes([63]) * size)
assert llm.generate("Hello", params)[0].token_ids == before
"""
    done = forks.run("-c", code, tmp_path, way, dtype)
    assert done.returncode == 0, done.stderr


# --- a config.json with values that transformers refuses -----------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    tmp_path: Path, llama: Path, damage: dict[str, Any], sentence: str
) -> None:
    config = json.loads((llama / "config.json").read_text()) | damage
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(llama / "model.safetensors")
    with pytest.raises(ModelError, match=sentence):
        read_model(tmp_path, torch.float32)
