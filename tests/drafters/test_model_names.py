"""A draft model by its name: in LLM and on the command line, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from drafters.forked_worker import ForkedWorker
from foresay import LLM, SamplingParams
from foresay.corpus import tokenizer_hash_of
from foresay.drafters import ModelDrafter
from foresay.errors import TokenizerMismatch
from tiny import call, save_model

PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=24)
PROMPTS = ["Hello, hello, hello", "one two three one two three one", "a"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, None, dtype="float32", memory=1 << 24)


def test_a_name(llm: LLM, folder: Path) -> None:
    expected = llm.generate(PROMPTS, PARAMS)
    beside = llm.beside(f"model:{folder}", "fixed")
    found = beside.generate(PROMPTS, PARAMS)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    accepted = sum(r.stats.accepted for r in found)
    assert accepted > 0.6 * sum(r.stats.drafted for r in found)  # the same model, perhaps rounded
    drafter = ModelDrafter(folder)
    assert drafter.tokenizer_hash == tokenizer_hash_of(folder / "tokenizer.json")


def test_another_tokenizer(llm: LLM, folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    file = other / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": "1.1"}))
    hashes = [tokenizer_hash_of(where / "tokenizer.json").hex()[:16] for where in (other, folder)]
    sentence = f"tokenizer has the hash {hashes[0]}… and the target's has {hashes[1]}…; expected"
    with pytest.raises(TokenizerMismatch, match=sentence):
        llm.beside(f"model:{other}")
    with pytest.raises(TokenizerMismatch, match=sentence):
        LLM(folder, ModelDrafter(other), dtype="float32", memory=1 << 24)


@pytest.fixture(scope="module")
def wide(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model with 7 tokens more than its tokenizer has."""
    out = tmp_path_factory.mktemp("wide")
    shutil.copytree(folder, out, dirs_exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(model.config.vocab_size + 7, mean_resizing=False)
    model.save_pretrained(out)
    return out


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_vocabularies_that_are_padded(folder: Path, wide: Path, rule: Any) -> None:
    """Of one tokenizer: the draft model may have more columns than the target, or fewer."""
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=24, rule=rule)
    for target, draft in ((folder, wide), (wide, folder)):
        alone = LLM(target, None, dtype="float32", memory=1 << 24)
        beside = alone.beside(ModelDrafter(draft, shape=(2, 1)), "fixed")
        found = beside.generate(PROMPTS, params)
        if rule == "match":
            expected = alone.generate(PROMPTS, params)
            assert [r.token_ids for r in found] == [r.token_ids for r in expected]
        assert sum(r.stats.accepted for r in found) > 0
        assert all(r.error is None for r in found)


def test_a_killed_worker_of_a_padded_model_is_replaced(llm: LLM, wide: Path) -> None:
    """What it was told of the target holds for its successor, too."""
    params = SamplingParams(temperature=0.0, max_tokens=8)
    drafter = ForkedWorker(f"model:{wide}", timeout=20)
    try:
        beside = llm.beside(drafter, "fixed")
        [before] = beside.generate("Hello, hello", params)
        assert before.stats.drafted and drafter.pid is not None
        os.kill(drafter.pid, signal.SIGKILL)
        for _ in range(2):  # the end of the first is noticed in the first
            [again] = beside.generate("Hello, hello", params)
            assert again.token_ids == before.token_ids
            assert drafter.ready(60)
        assert again.stats.drafted and drafter.restarts == 1
    finally:
        drafter.close()


def test_the_command_line(llm: LLM, folder: Path) -> None:
    command = ["generate", "Hello, hello", "--model", folder, "--dtype", "float32", "--json"]
    command += ["--max-tokens", 12, "--temperature", 0, "--policy", "fixed", "--raw"]
    plain, drafted = (
        call(*command, "--drafter", drafter) for drafter in ("none", f"model:{folder}")
    )
    assert drafted.status == 0, drafted.err
    texts = [json.loads(done.out) for done in (plain, drafted)]
    assert texts[0]["token_ids"] == texts[1]["token_ids"]
    assert texts[1]["stats"]["accepted"] > 0 == texts[0]["stats"]["accepted"]


@pytest.mark.parametrize(
    ("drafter", "sentence"),
    [
        ("model", "drafter is 'model'; expected one of suffix, sam"),
        ("model:", "the drafter 'model:' names no model; expected model:NAME"),
        ("model:nowhere/at/all", "nowhere/at/all"),
    ],
)
def test_bad_names_on_the_command_line(folder: Path, drafter: str, sentence: str) -> None:
    done = call("generate", "Hello", "--model", folder, "--drafter", drafter)
    assert done.status != 0 and sentence in done.err
    assert "Traceback" not in done.err
