"""model.generate with foresay inside writes what it writes without."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    StoppingCriteriaList,
    StopStringCriteria,
)

import tiny
from foresay.drafters import SuffixDrafter
from foresay.errors import InputError
from foresay.integrations.transformers import assisted, generate, twin
from integrations.generating import both, config, make, padded
from models import zoo

KINDS = ["llama", "gemma2", "gpt2", "gpt_oss", "qwen3_moe", "phi3", "deepseek_v3", "mistral"]


@pytest.mark.parametrize("name", KINDS)
def test_greedy_is_what_it_is_without(name: str) -> None:
    model, inputs = make(name), padded(30, 7, 18, 25)
    plain, ours = both(model, **inputs)
    assert torch.equal(plain, ours)
    # And with ends, so that rows have different lengths.
    stops = [int(plain[0, 36]), int(plain[2, 45])]
    plain, ours = both(model, **inputs, eos_token_id=stops, pad_token_id=0)
    assert torch.equal(plain, ours)
    assert len({int((row == 0).sum()) for row in plain}) > 1


@pytest.mark.parametrize(
    "asked",
    [
        {"max_new_tokens": None, "max_length": 31},
        {"max_new_tokens": 1},
        {"min_new_tokens": 30},
        {"min_length": 60},
        {"suppress_tokens": list(range(3, 60))},
        {"repetition_penalty": 1.3},
        {"renormalize_logits": True, "use_cache": False, "length_penalty": 0.5},
        {"drafter": "none"},
        {"drafter": "ngram", "policy": "fixed", "memory": 1 << 26},
        {"pad_token_id": 77},
    ],
    ids=lambda asked: ", ".join(asked),
)
def test_what_a_config_asks_for(model: Any, asked: dict[str, Any]) -> None:
    inputs: dict[str, Any] = padded(30, 30, 30)
    free = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    inputs["eos_token_id"] = [int(free[0, 35]), int(free[1, 41])]
    own = {key: asked.pop(key) for key in ("drafter", "policy", "memory") if key in asked}
    common = {**inputs, "do_sample": False, "max_new_tokens": 40, **asked}
    plain = model.generate(**common)
    assert torch.equal(plain, model.generate(**common, custom_generate=generate, **own))
    if "pad_token_id" not in asked and not own and "renormalize_logits" not in asked:
        usual = model.generate(**inputs, max_new_tokens=40, do_sample=False)
        assert plain.shape != usual.shape or not torch.equal(plain, usual)  # it matters here


def test_padding_counts_for_no_penalty(model: Any) -> None:
    """Alone and without padding, transformers writes the same."""
    inputs, sizes = padded(30, 12), (30, 12)
    asked: dict[str, Any] = {"do_sample": False, "repetition_penalty": 1.4, "max_new_tokens": 30}
    ours = model.generate(**inputs, **asked, custom_generate=generate)
    for row, size in enumerate(sizes):
        alone = model.generate(inputs["input_ids"][row : row + 1, -size:], **asked)
        assert torch.equal(ours[row, 30:], alone[0, size:])


def test_stop_strings(tmp_path: Path) -> None:
    tiny.save_model(tmp_path)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path, padding_side="left", pad_token="!")
    inputs = tokenizer(["one, two, three", "to be or not"], return_tensors="pt", padding=True)
    width, asked = inputs["input_ids"].shape[1], {"do_sample": False, "max_new_tokens": 60}
    free = model.generate(**inputs, **asked)
    letters = [tokenizer.decode(token) for token in free[0, width + 8 :]]
    stops = [next(a + b for a, b in pairwise(letters) if (a + b).isascii())]
    plain = model.generate(**inputs, **asked, stop_strings=stops, tokenizer=tokenizer)
    assert plain.shape == free.shape and not torch.equal(plain, free)  # one of the two ends earlier
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, stops)])
    ours = model.generate(**inputs, **asked, stopping_criteria=criteria, custom_generate=generate)
    assert torch.equal(plain, ours)

    # In a config, with the tokenizer that everybody gives beside it, and given as keywords.
    texts = config(stop_strings=stops, **asked)
    for given in ({"generation_config": texts}, {**asked, "stop_strings": stops}):
        named = {**inputs, **given, "tokenizer": tokenizer}
        assert torch.equal(plain, model.generate(**named, custom_generate=generate))
        few = {**named, "min_new_tokens": 50}  # which transformers does not mind either
        assert torch.equal(model.generate(**few), model.generate(**few, custom_generate=generate))
        with pytest.raises(ValueError, match="must pass the model's tokenizer"):
            model.generate(**inputs, **given, custom_generate=generate)
    alone = {"input_ids": inputs["input_ids"][:1], "tokenizer": tokenizer}
    with pytest.raises(InputError, match="StopStringCriteria is among the stopping criteria"):
        model.generate(**alone, generation_config=texts, custom_generate=assisted)
    free = model.generate(**inputs, **asked, tokenizer=tokenizer, custom_generate=generate)
    assert torch.equal(free, model.generate(**inputs, **asked))


def test_samples_follow_the_seed_and_torch(model: Any) -> None:
    inputs = padded(20, 9)
    asked: dict[str, Any] = {
        **inputs,
        "do_sample": True,
        "temperature": 0.9,
        "top_p": 0.95,
        "max_new_tokens": 20,
        "num_return_sequences": 3,
        "custom_generate": generate,
    }
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.generate(**asked))
    assert drawn[0].shape == (6, 40)
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert len({tuple(row.tolist()) for row in drawn[0]}) == 6
    given = [model.generate(**asked, seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(given[0], given[1]) and not torch.equal(given[0], given[2])


@pytest.mark.parametrize("wrong", [False, True])
def test_the_law_of_samples(model: Any, wrong: bool) -> None:
    """Frequencies of the first two tokens; of another temperature they are found to be wrong."""
    ids, count = padded(12)["input_ids"], 1200
    asked: dict[str, Any] = {"do_sample": True, "top_k": 6, "min_p": 0.02, "max_new_tokens": 2}
    drawn = model.generate(
        ids,
        **asked,
        temperature=1.3 if wrong else 1.8,
        num_return_sequences=count,
        custom_generate=generate,
        seed=3,
    )[:, 12:]
    first = _law(model, ids[0].tolist())
    off = []
    for token, share in first.items():
        rows = drawn[drawn[:, 0] == token]
        off.append((len(rows) - share * count) / (share * (1 - share) * count) ** 0.5)
        for then, next_share in _law(model, [*ids[0].tolist(), token]).items():
            if len(rows) * next_share > 20 and next_share < 0.99:
                spread = (next_share * (1 - next_share) * len(rows)) ** 0.5
                off.append((int((rows[:, 1] == then).sum()) - next_share * len(rows)) / spread)
    assert len(off) > 5
    assert (max(map(abs, off)) > 4.5) == wrong


def _law(model: Any, text: list[int]) -> dict[int, float]:
    """Temperature 1.8, then the 6 likeliest, then those of at least 0.02 of the likeliest."""
    likeliest = (zoo.plain_logits(model, text)[-1].double() / 1.8).topk(6)
    shares = likeliest.values.softmax(0)
    shares = torch.where(shares >= 0.02 * shares[0], shares, 0)
    shares /= shares.sum()
    pairs = zip(likeliest.indices.tolist(), shares.tolist(), strict=True)
    return {token: share for token, share in pairs if share}


def test_engines_of_many_drafters_are_not_kept(model: Any) -> None:
    asked: dict[str, Any] = {**padded(9), "max_new_tokens": 2, "custom_generate": generate}
    for _ in range(9):
        model.generate(**asked, drafter=SuffixDrafter(), policy="fixed")
    assert len(twin.held_for(model, 1 << 24).engines) <= 4


def test_siblings_share_a_group(model: Any) -> None:
    seen: list[str | None] = []

    class Watched(SuffixDrafter):
        def begin(self, prompt: Any, /, **names: Any) -> Any:
            seen.append(names["group"])
            return super().begin(prompt, **names)

    asked: dict[str, Any] = {"do_sample": True, "max_new_tokens": 4, "custom_generate": generate}
    model.generate(**padded(9, 9), **asked, num_return_sequences=2, drafter=Watched())
    assert None not in seen and sorted(map(seen.count, set(seen))) == [2, 2]


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model() -> None:
    from foresay.models import weights

    folder = weights.find(weights.DEFAULT_MODEL, convert=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = ["Count from one to twenty.", "Name a colour."]
    chats = [[{"role": "user", "content": text}] for text in asked]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
    )
    plain, ours = both(model, **inputs, max_new_tokens=20)
    assert torch.equal(plain, ours)
