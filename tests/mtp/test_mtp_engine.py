"""The engine's text with MtpDrafter is that of the plain loop, whatever the module says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.asking import ASKED, GREEDY, answers, prompts, wanted
from foresay import LLM, SamplingParams, Wants
from foresay.drafters import MergeDrafter, MtpDrafter, NgramDrafter
from foresay.drafters.lineup import make_drafter
from foresay.engine.engine import Engine
from foresay.models.load import load
from foresay.models.target import Target
from models import zoo
from mtp import modules
from tiny import call, save_model

SHORT = [replace(params, max_tokens=min(params.max_tokens, 14)) for params in ASKED]
MANY = list(zip(prompts(len(SHORT)), SHORT, strict=True))


Made = Callable[[str], tuple[Path, Target]]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A model of a family with a random module, in a folder and loaded."""

    @cache
    def made(family: str) -> tuple[Path, Target]:
        model = modules.make(family)
        folder = modules.save(tmp_path_factory.mktemp("mtp"), model, modules.random_module(model))
        target = load(folder, dtype="float32")
        assert target.exact
        return folder, target

    return made


@pytest.fixture(scope="module")
def perfect(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same with a module that knows what the model knows."""

    @cache
    def made(family: str) -> tuple[Path, Target]:
        folder = tmp_path_factory.mktemp("perfect")
        bigrams(family, folder)
        return folder, load(folder, dtype="float32")

    return made


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


# What is not a tree of the module as it is says nothing of a family.
CASES = [
    *((family, "trees") for family in modules.SHAPES),
    ("mellum", "chains"),
    ("deepseek_v3", "a wrong token"),
    ("glm4_moe", "not a number"),
    ("glm4_moe", "beside ngrams"),
]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_the_text_is_that_of_the_plain_loop(usual: Made, family: str, name: str) -> None:
    folder, target = usual(family)
    drafter = DRAFTERS[name](folder)
    engine = Engine(target, drafter, policy="fixed", max_running=5, max_rows=48)
    requests = answers(engine, MANY)
    assert [request.token_ids for request in requests] == wanted(target, MANY)
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


@pytest.mark.parametrize("family", modules.SHAPES)
def test_a_perfect_module_is_always_accepted(perfect: Made, family: str) -> None:
    """Also where requests are sampled: it knows their noise."""
    folder, target = perfect(family)
    asked = [
        (prompt, SamplingParams(temperature=temperature, max_tokens=21))
        for prompt, temperature in zip(prompts(4, seed=2), (0.0, 0.8, 0.8, 0.0), strict=True)
    ]
    drafter = MtpDrafter(folder, topk=1, depth=3)
    engine = Engine(target, drafter, policy="fixed", max_rows=200)
    requests = [engine.add(p, params, seed=i) for i, (p, params) in enumerate(asked)]
    engine.run()
    assert [request.token_ids for request in requests] == wanted(target, asked, stops=())
    for request in requests:
        # The first token has no draft; then come three drafted ones and the target's own.
        assert request.stats.accepted == request.stats.drafted == 15


def test_by_its_name(tmp_path: Path) -> None:
    """In LLM, and on the command line."""
    save_model(tmp_path)  # for its tokenizer
    model = modules.make("glm4_moe", vocab_size=257, eos_token_id=256)
    modules.save(tmp_path, model, modules.random_module(model))
    llm = LLM(tmp_path, drafter="mtp", policy="fixed", dtype="float32", memory=1 << 24)
    plain = llm.beside(None, "none")
    texts = ["abcabc", "what?", "x"]
    for params in (GREEDY, SamplingParams(temperature=0.8, max_tokens=20, seed=3)):
        given = llm.generate(texts, params)
        assert [r.token_ids for r in given] == [r.token_ids for r in plain.generate(texts, params)]
        assert all(r.stats.drafted for r in given if len(r.token_ids) > 2)
    assert make_drafter("mtp", model=tmp_path, chain=True).wants.hidden
    options = ["--model", str(tmp_path), "--max-tokens", "4", "--policy", "fixed"]
    options += ["--dtype", "float32"]  # as of `plain`
    done = call("generate", "abc", "--drafter", "mtp", *options)
    assert done.status == 0, done.complaints
    [again] = plain.generate(["abc"], SamplingParams(temperature=0.0, max_tokens=4), chat=True)
    assert done.out == f"{again.text}\n"
