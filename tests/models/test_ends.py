"""What ends an answer: every end-of-generation token of a file, a folder and a family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken
from tokenizers import Tokenizer as Inner

from foresay import LLM, SamplingParams
from foresay.models.ends import ends_by_text
from foresay.models.tokenizer import Tokenizer
from foresay.models.tokenizer_readers import TransformersTokenizer
from models import gguf_files
from models.gguf_files import convert

CODER = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_pad|>"]


def coder_file(folder: Path) -> Path:
    """A GGUF file with Qwen coder's control tokens that names `<|im_end|>` only. It writes
    `<|fim_pad|>` after everything."""
    words = [*CODER, *gguf_files.WORDS[len(gguf_files.SPECIAL) : -1]]
    kinds = [3] * len(CODER) + [1] * (len(words) - len(CODER))
    keys = gguf_files.byte_words(
        "qwen2", tokens=words, token_type=kinds, bos_token_id=0, padding_token_id=0
    )
    model = gguf_files.tiny("qwen2")
    with torch.no_grad():
        for layer in model.model.layers:  # which then add nothing
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[:, 0] = 10.0
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.zero_()
        model.lm_head.weight[CODER.index("<|fim_pad|>"), 0] = 1.0
    path = folder / "coder.gguf"
    gguf_files.export(model, path, "qwen2", words={**keys, "add_bos_token": False})
    return path


def test_filling_in_ends_with_its_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_CACHE", str(tmp_path / "cache"))
    llm = LLM(coder_file(tmp_path), drafter="suffix", memory=1 << 24)
    assert llm.tokenizer.ends == (2, 0, 4)
    greedy: dict[str, Any] = {"max_tokens": 36, "temperature": 0.0}
    done = llm.generate(["<|fim_prefix|>hello"], SamplingParams(**greedy))[0]
    assert (done.token_ids, done.text, done.finish_reason) == ([4], "", "stop")
    on = llm.generate(["<|fim_prefix|>hello"], SamplingParams(**greedy, ignore_eos=True))[0]
    assert on.token_ids == [4] * 36


def test_a_folder_says_its_ends_in_several_places(tmp_path: Path) -> None:
    """Both readers of tokenizers give the same."""
    inner = Inner.from_str(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
            }
        )
    )
    inner.add_tokens([AddedToken("<|fim_pad|>", special=False), AddedToken("</s>", special=False)])
    inner.add_special_tokens(["<|endoftext|>", "<|eot_id|>", "<stop>", "<|quad_end|>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    told: dict[str, dict[str, Any]] = {
        "config.json": {"model_type": "llama"},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|endoftext|>",
        },
        "generation_config.json": {"eos_token_id": [5, 3]},
    }
    for name, content in told.items():
        (tmp_path / name).write_text(json.dumps(content))
    tokenizer = Tokenizer(tmp_path)
    words = ["<|endoftext|>", "<stop>", "<|fim_pad|>", "<|eot_id|>"]
    assert [tokenizer.piece(end) for end in tokenizer.ends] == words
    other = TransformersTokenizer(tmp_path)
    assert sorted(other.added()) == sorted(tokenizer._inner.added())


def test_ends_by_text() -> None:
    for text, control, ends in (
        ("<|eot_id|>", True, True),
        ("<|eot_id|>", False, True),
        ("</s>", True, True),
        ("</s>", False, False),
        ("<end_of_turn>", True, True),
        ("<end_of_turn>", False, False),
        ("<EOT>", True, True),
        ("<|im_start|>", True, False),
        ("<|fim_middle|>", True, False),
        ("eot_id", True, False),
    ):
        assert ends_by_text([(7, text, control)]) == [7] * ends, text


def test_the_end_of_one_message_of_several() -> None:
    names = ["<|end|>", "<|return|>", "<|call|>"]
    tokens = [(number, name, True) for number, name in enumerate(names)]
    assert ends_by_text(tokens) == [1, 2]
    assert ends_by_text(tokens[:2]) == [0, 1]


def test_what_ends_a_turn_ends_an_answer(tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", "<end_of_turn>", "over", "a"]
    common: dict[str, Any] = {
        "model": "llama",
        "tokens": pieces,
        "token_type": [2, 3, 3, 3, 3, 1],
        "scores": [0.0] * 6,
        "eos_token_id": 2,
    }
    for name, keys, ends in (
        ("text", {}, [2, 3]),
        ("eot", {"eot_token_id": 4}, [2, 4, 3]),
        ("padding", {"fim_pad_token_id": 4}, [2, 4, 3]),
        ("ordinary", {"token_type": [2, 3, 3, 4, 3, 1]}, 2),
    ):
        path = tmp_path / f"{name}.gguf"
        gguf_files.export(gguf_files.tiny("llama"), path, "llama", words={**common, **keys})
        convert(path, tmp_path / name)
        told = json.loads((tmp_path / name / "generation_config.json").read_text())
        assert told["eos_token_id"] == ends, name
