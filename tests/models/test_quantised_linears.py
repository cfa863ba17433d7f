"""Models that the core's decoder does not know, with quantised linear layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from engine.asking import ASKED, answers, prompts, wanted
from engine.drafters import Scripted
from foresay.engine.engine import Engine
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.cpu.modules import load_modules
from foresay.models.cpu.quantised_linears import QuantisedLinear, quantise_linears
from foresay.models.cpu.target import CpuTarget
from foresay.models.options import LoadOptions, Quantise
from models import zoo
from models.core_reference import least_difference
from models.test_quantised_decoder import left, make

CLOSE = 2e-4


@pytest.fixture(scope="module", params=["olmo2", "phi"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[CpuTarget, Any]:
    """A quantised target, and the model with the weights that are left."""
    model = make(request.param)
    folder: Path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    embedding = model.get_input_embeddings().weight.detach().clone()  # which stays as it is
    model = left(model, "q8_0")
    model.get_input_embeddings().weight.data = embedding
    return load_modules(folder, LoadOptions(quantize="q8_0")), model


def test_logits_are_those_of_transformers(both: tuple[CpuTarget, Any]) -> None:
    target, model = both
    assert target.exact
    assert least_difference(target, model, quantised=True, narrow=False) < CLOSE
    assert least_difference(target, model, quantised=False, narrow=False) > CLOSE
    assert not [m for m in target.model.modules() if isinstance(m, nn.Linear)]


def test_the_engine_s_text_is_the_plain_loop_s(both: tuple[CpuTarget, Any]) -> None:
    target, _ = both
    asked = list(zip(prompts(6, seed=3), ASKED[:6], strict=True))
    expected = wanted(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    engine = Engine(target, Scripted(known, wrong=0.3), policy="fixed", max_rows=40)
    assert [request.token_ids for request in answers(engine, asked)] == expected


def test_weights_cannot_be_replaced(both: tuple[CpuTarget, Any]) -> None:
    target, model = both
    assert target.weight_shapes() == {}
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        with pytest.raises(InputError, match=f"'{name}' cannot be replaced: .* expected a model"):
            target.replace_weights({name: model.state_dict()[name]})


@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_a_layer(kind: type, format: Quantise) -> None:
    torch.manual_seed(0)
    layer: Any = nn.Linear(64, 40) if kind is nn.Linear else Conv1D(40, 64)
    x = torch.randn(2, 3, 64)
    with torch.inference_mode():
        given, expected = QuantisedLinear(layer, format)(x), layer(x)
    assert given.shape == (2, 3, 40)
    off = float((given - expected).abs().max() / expected.abs().max())
    assert off < (0.02 if format == "q8_0" else 0.2)
    assert QuantisedLinear(layer, format)(x[:, :0]).shape == (2, 0, 40)


def test_what_cannot_be_quantised() -> None:
    with pytest.raises(UnsupportedModel, match=r"down_proj' has 48 inputs; expected a multiple"):
        quantise_linears(zoo.make("olmo2"), "q8_0")
    with pytest.raises(UnsupportedModel, match=r"experts.* is of 3 dimensions; expected"):
        quantise_linears(make("qwen3_moe"), "q8_0")
    model = make("olmo2")
    model.lm_head.weight.data[3, 4] = np.inf
    with pytest.raises(ModelError, match=r"'lm_head' cannot be quantised: block 0 of output 3"):
        quantise_linears(model, "q8_0")
