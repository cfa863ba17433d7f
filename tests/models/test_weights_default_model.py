"""The default model: its bits, its tokenizer, its answer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresay.models import weights
from models.test_tokenizer import TEXTS

# What the converter of FORMAT 1 makes of it, on every machine.
CONVERTED = "d13f68464fb5039323dfbbc761314c29707274bd1caa4e65544e02e42741c592"


@pytest.fixture(scope="module")
def default() -> Path:
    return weights.find(weights.DEFAULT_MODEL, convert=True)


@pytest.mark.model
def test_the_default_model_has_the_same_bits_everywhere(default: Path) -> None:
    note = json.loads((default / "foresay.json").read_text())
    assert note["sha256"] == weights.ALIASES[weights.DEFAULT_MODEL].sha256
    assert note["files"] == {"model.safetensors": CONVERTED}
    raw = (default / "model.safetensors").read_bytes()
    assert hashlib.sha256(raw).hexdigest() == CONVERTED


@pytest.mark.model
def test_the_default_model_as_it_is_stored(default: Path) -> None:
    found = weights.find_stored(weights.DEFAULT_MODEL)
    assert found.gguf is not None
    digest = hashlib.sha256(found.gguf.read_bytes()).hexdigest()
    assert digest == weights.ALIASES[weights.DEFAULT_MODEL].sha256
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (found.folder / name).read_text() == (default / name).read_text()
    kinds = {stored.tensor.kind.name for stored in found.tensors.values()}
    assert kinds == {"Q4_1", "Q8_0", "F32"} and "lm_head.weight" not in found.tensors


@pytest.mark.model
def test_the_default_model_speaks(default: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(default)
    model: Any = AutoModelForCausalLM.from_pretrained(default, dtype=torch.float32)
    assert model.config.vocab_size == len(tokenizer) == 49152
    assert model.lm_head.weight is model.model.embed_tokens.weight
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
    assert text == "The capital of France is Paris.<|im_end|>"


@pytest.mark.model
def test_the_tokenizer_of_the_default_model(
    default: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What transformers makes of the same file, alone in a folder. Not compared: numerals beyond 0
    to 9, which the model's own tokenizer cuts singly as ours does, and transformers here does not.
    """
    from transformers import AutoTokenizer

    found = weights.find_stored(weights.DEFAULT_MODEL)
    assert found.gguf is not None
    (tmp_path / "m.gguf").symlink_to(found.gguf)
    # Each of 100,000 words is a slice of it, and a slice of a mapping takes long.
    monkeypatch.setattr(np, "memmap", lambda path, **_: np.fromfile(path, np.uint8))
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    monkeypatch.undo()
    ours: Any = AutoTokenizer.from_pretrained(default)
    for text in (text for text in TEXTS if "½" not in text):
        ids = ours(text)["input_ids"]
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids) == text
    assert ours.convert_ids_to_tokens(ours(" ½")["input_ids"])[0] == "Ġ"
    for turns in (["Hi é\n"], ["a", "b  c", "d"]):
        chat = [
            {"role": "assistant" if n % 2 else "user", "content": text}
            for n, text in enumerate(turns)
        ]
        made = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
            for tokenizer in (ours, theirs)
        ]
        assert made[0] == made[1] and len(made[0]) > 10
    for name in ("bos", "eos", "pad"):
        assert getattr(ours, f"{name}_token_id") == getattr(theirs, f"{name}_token_id")
