"""Models whose MTP head is missing, damaged or not known are refused in a sentence."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import modeling_layers

from foresay.drafters import MtpDrafter
from foresay.engine.llm import LLM
from foresay.errors import InputError, ModelError, UnsupportedModel
from models import gguf_files, zoo
from mtp import modules


@pytest.fixture(scope="module", params=modules.SHAPES)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = modules.make(request.param)
    return modules.save(tmp_path_factory.mktemp("mtp"), model, modules.random_module(model))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def _prefix(folder: Path) -> str:
    return "mtp." if "mellum" in (folder / "config.json").read_text() else "model.layers.2."


def _block(folder: Path) -> str:
    return "mtp.layers.0." if _prefix(folder) == "mtp." else "model.layers.2."


def _put(name: str, value: torch.Tensor | None) -> Callable[[Path], None]:
    return lambda folder: modules.change(folder, {_block(folder) + name: value})


def _says(**entries: Any) -> Callable[[Path], None]:
    return lambda folder: modules.change_config(folder, **entries)


WRONG: list[tuple[Callable[[Path], None], str]] = [
    (
        _put("self_attn.o_proj.weight", None),
        r"'.*model' lacks the tensor '.*self_attn.o_proj.weight' of an MTP head",
    ),
    (
        _put("mlp.experts.3.up_proj.weight", None),
        r"lacks the tensor '.*mlp.experts.3.up_proj.weight' of an MTP head",
    ),
    (
        _put("mlp.experts.1.down_proj.weight", torch.zeros(32, 15)),
        r"'.*experts.1.down_proj.weight' of an MTP head has the shape \[32, 15\], but its "
        r"config.json says \[32, 16\]",
    ),
    (
        _put("mlp.experts.4.down_proj.weight", torch.zeros(32, 16)),
        r"has the tensor '.*mlp.experts.4.down_proj.weight', which an MTP head has not; "
        r"expected those of \w+DecoderLayer",
    ),
    (
        _put("input_layernorm.weight", torch.full((32,), torch.nan)),
        r"the tensor '.*input_layernorm.weight' holds what is no number",
    ),
    (
        _put("input_layernorm.weight", torch.ones(32, dtype=torch.float8_e4m3fn)),
        r"the tensor '.*input_layernorm.weight' is of type F8_E4M3; expected F32, F16, BF16",
    ),
    (
        lambda folder: modules.change(folder, {"lm_head.weight": torch.zeros(127, 32)}),
        r"the output of the model in '.*model' has the shape \[127, 32\]; expected \[128, 32\]",
    ),
    (
        _says(num_nextn_predict_layers=0),
        r"config.json of the \w+ model in '.*model' names 0 MTP modules \(num_nextn_predict_"
        r"layers\); expected 1",
    ),
    (_says(num_hidden_layers="two"), r"'num_hidden_layers' of config.json is 'two'; expected"),
    (_says(rope_parameters="none"), r"no MTP module can be made for the \w+ model in '.*model': "),
    (
        _says(model_type="oak"),
        r"the model in '.*model' is of type 'oak', for which no MTP head is known; expected "
        r"deepseek_v3, glm4_moe, mellum",
    ),
    (_says(model_type=None), r"is of type None, for which no MTP head is known"),
]


@pytest.mark.parametrize(("change", "sentence"), WRONG, ids=[s[:40] for _, s in WRONG])
def test_refused(folder: Path, change: Callable[[Path], None], sentence: str) -> None:
    change(folder)
    with pytest.raises(ModelError, match=sentence):
        MtpDrafter(folder)


def test_a_model_without_its_head(folder: Path) -> None:
    """As transformers writes it, which leaves the head out."""
    model = modules.make(_family(folder))
    model.save_pretrained(folder)
    sentence = rf"the {_family(folder)} model in '.*' has no tensor '{re.escape(_prefix(folder))}…'"
    with pytest.raises(ModelError, match=sentence + ", so it came without its MTP head"):
        MtpDrafter(folder)


def _family(folder: Path) -> str:
    text = (folder / "config.json").read_text()
    return next(family for family in modules.SHAPES if f'"{family}"' in text)


def test_more_than_one(tmp_path: Path) -> None:
    model = modules.make("glm4_moe")
    folder = modules.save(tmp_path, model, modules.random_module(model))
    modules.change_config(folder, num_nextn_predict_layers=2)
    with pytest.raises(UnsupportedModel, match=r"glm4_moe model in '.*' names 2 MTP modules"):
        MtpDrafter(folder)


def test_other_families(tmp_path: Path) -> None:
    zoo.make("llama").save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match="'llama', for which no MTP head is known"):
        LLM(tmp_path, drafter="mtp")


def test_a_gguf_file(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    gguf_files.export(gguf_files.tiny("llama"), file, "llama")
    with pytest.raises(UnsupportedModel, match=r"tiny.gguf' is a GGUF file, whose MTP head cannot"):
        MtpDrafter(file)


def test_a_transformers_without_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(modeling_layers, "MtpModel")
    with pytest.raises(
        UnsupportedModel, match=r"transformers \S+ has no MtpModel; expected one with it: 5.22"
    ):
        MtpDrafter(folder)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"topk": 0}, "topk is 0; expected"),
        ({"depth": -1}, "depth is -1; expected"),
        ({"shortlist": 1.5}, "shortlist is 1.5; expected"),
        ({"dtype": "int8"}, "dtype is 'int8'; expected float32 or bfloat16"),
        ({"dtype": ["float32"]}, r"dtype is \['float32'\]; expected float32 or bfloat16"),
    ],
)
def test_settings(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        MtpDrafter("nowhere", **setting)


def test_no_such_model() -> None:
    with pytest.raises(ModelError, match="nowhere"):
        MtpDrafter("./nowhere")
