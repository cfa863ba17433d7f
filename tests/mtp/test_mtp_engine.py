"""The engine's text with MtpDrafter is that of the plain loop, whatever the module says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.asking import ASKED, GREEDY, answers, prompts, wanted
from foresay import LLM, SamplingParams, Verdict, Wants
from foresay.drafters import MergeDrafter, MtpDrafter, NgramDrafter
from foresay.drafters.lineup import make_drafter
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.load import load
from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from models import zoo
from mtp import modules
from tiny import call, save_model

MANY = list(zip(prompts(len(ASKED)), ASKED, strict=True))


@pytest.fixture(scope="module", params=modules.SHAPES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = modules.make(request.param)
    return modules.save(tmp_path_factory.mktemp("mtp"), model, modules.random_module(model))


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    found = load(folder, dtype="float32")
    assert found.exact
    return found


@pytest.fixture(scope="module")
def answered(target: Target) -> list[list[int]]:
    return wanted(target, MANY)


def _shifted(folder: Path) -> MtpDrafter:
    """Reads each token as the next one of the vocabulary."""
    drafter = MtpDrafter(folder)
    read = drafter.head.read
    drafter.head.read = lambda rows, tokens, *rest: read(  # type: ignore[method-assign]
        rows, (tokens + 1) % zoo.VOCABULARY, *rest
    )
    return drafter


def _no_numbers(folder: Path) -> MtpDrafter:
    drafter = MtpDrafter(folder)
    logits = drafter.head.logits

    def broken(rows: Tensor) -> Tensor:
        found = logits(rows)
        found[..., ::2] = torch.nan
        return found

    drafter.head.logits = broken  # type: ignore[method-assign]
    return drafter


DRAFTERS: dict[str, Callable[[Path], Any]] = {
    "trees": MtpDrafter,
    "chains": lambda folder: MtpDrafter(folder, topk=1, depth=6),
    "a wrong token": _shifted,
    "not a number": _no_numbers,
    "beside ngrams": lambda folder: MergeDrafter(MtpDrafter(folder), NgramDrafter()),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_text_is_that_of_the_plain_loop(
    folder: Path, target: Target, answered: list[list[int]], name: str
) -> None:
    drafter = DRAFTERS[name](folder)
    engine = Engine(target, drafter, policy="fixed", max_running=5, max_rows=48)
    requests = answers(engine, MANY)
    assert [request.token_ids for request in requests] == answered
    if name != "not a number":
        assert sum(request.stats.drafted for request in requests) > 50
    if isinstance(drafter, MtpDrafter):
        assert drafter.tokens_held() == drafter.bytes_used() == 0
        assert drafter.wants == Wants(hidden=True)


def bigrams(family: str, folder: Path) -> None:
    """A model whose next token depends on the last one alone, and a module that knows as much.

    Nothing is added to the residual stream, so a hidden state is the embedding, normalised; the
    module hands on the embedding that it is given.
    """
    model = modules.make(family)
    module = modules.random_module(model)
    with torch.no_grad():
        named = dict(model.named_parameters())
        for name, weight in (*named.items(), *module.items()):
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
        width = model.config.hidden_size
        module["eh_proj.weight"] = torch.cat([torch.eye(width), torch.zeros(width, width)], 1)
        module["enorm.weight"] = torch.ones(width)
        module["post_norm.weight"] = named["model.norm.weight"].clone()
    modules.save(folder, model, module)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("family", modules.SHAPES)
def test_a_perfect_module_is_always_accepted(
    family: str, temperature: float, tmp_path: Path
) -> None:
    """Also where requests are sampled: it knows their noise."""
    bigrams(family, tmp_path)
    target = load(tmp_path, dtype="float32")
    params = SamplingParams(temperature=temperature, max_tokens=41)
    asked = [(prompt, params) for prompt in prompts(4, seed=2)]
    drafter = MtpDrafter(tmp_path, topk=1, depth=3)
    engine = Engine(target, drafter, policy="fixed", max_rows=200)
    requests = [engine.add(p, params, seed=i) for i, (p, params) in enumerate(asked)]
    engine.run()
    assert [request.token_ids for request in requests] == wanted(target, asked, stops=())
    for request in requests:
        # The first token has no draft; then come three drafted ones and the target's own.
        assert request.stats.accepted == request.stats.drafted == 30
        assert request.stats.drafted > 0


def test_another_model_s_module_is_only_slower(tmp_path: Path) -> None:
    """The perfect one of another family, and a damaged feature: fewer tokens are accepted."""
    bigrams("glm4_moe", tmp_path / "right")
    target = load(tmp_path / "right", dtype="float32")
    asked = [(prompt, GREEDY) for prompt in prompts(4, seed=2)]
    found = {}
    for name, given in (("right", tmp_path / "right"), ("wrong", tmp_path / "wrong")):
        if name == "wrong":
            other = modules.make("deepseek_v3", seed=5)
            modules.save(given, other, modules.random_module(other))
        engine = Engine(target, MtpDrafter(given), policy="fixed")
        requests = [engine.add(p, params, seed=i) for i, (p, params) in enumerate(asked)]
        engine.run()
        assert [request.token_ids for request in requests] == wanted(target, asked, stops=())
        found[name] = sum(request.stats.accepted for request in requests)
    assert found["right"] > 4 * found["wrong"]


def test_by_its_name(tmp_path: Path) -> None:
    """In LLM, and on the command line."""
    save_model(tmp_path)  # for its tokenizer
    model = modules.make("glm4_moe", vocab_size=257, eos_token_id=256)
    modules.save(tmp_path, model, modules.random_module(model))
    llm = LLM(tmp_path, drafter="mtp", policy="fixed", dtype="float32", memory=1 << 24)
    plain = LLM(tmp_path, drafter=None, dtype="float32", memory=1 << 24)
    texts = ["abcabc", "what?", "x"]
    for params in (GREEDY, SamplingParams(temperature=0.8, max_tokens=20, seed=3)):
        given = llm.generate(texts, params)
        assert [r.token_ids for r in given] == [r.token_ids for r in plain.generate(texts, params)]
        assert all(r.stats.drafted for r in given if len(r.token_ids) > 2)
    assert make_drafter("mtp", model=tmp_path, chain=True).wants.hidden
    options = ("--model", str(tmp_path), "--max-tokens", "4", "--policy", "fixed")
    done = call("generate", "abc", "--drafter", "mtp", *options)
    assert done.status == 0, done.complaints
    again = call("generate", "abc", "--drafter", "none", *options)
    assert done.out == again.out


def test_a_target_of_another_vocabulary(tmp_path: Path) -> None:
    model = modules.make("glm4_moe")
    modules.save(tmp_path, model, modules.random_module(model))
    other = target_of(zoo.make("llama", vocab_size=120))
    with pytest.raises(InputError, match="of a model of 128 tokens, but the target has 120; exp"):
        Engine(other, MtpDrafter(tmp_path))
    drafter = MtpDrafter(tmp_path)
    state = drafter.begin([1, 2])
    with pytest.raises(InputError, match="the hidden states are 31 wide; expected 32"):
        drafter.observe([state], [Verdict([], [5], hidden=np.zeros((1, 31), np.float32))])
