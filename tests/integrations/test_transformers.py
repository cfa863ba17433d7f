"""model.generate with foresay inside writes what it writes without, and leaves the model alone."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TemperatureLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

import tiny
from foresay.drafters import SuffixDrafter
from foresay.errors import InputError, UnsupportedModel
from foresay.integrations.transformers import SuffixCandidates, assisted, generate, twin
from foresay.models.cpu.target import CpuTarget
from models import zoo

# transformers' own types say that a model's `generate` is a tensor.
make: Any = zoo.make
config: Any = GenerationConfig
KINDS = ["llama", "gemma2", "gpt2", "gpt_oss", "qwen3_moe", "phi3", "deepseek_v3", "mistral"]


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama")


def padded(*sizes: int, seed: int = 0) -> dict[str, Tensor]:
    """Texts that repeat themselves, padded on the left."""
    random, width = np.random.default_rng(seed), max(sizes)
    ids = torch.zeros(len(sizes), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, size in enumerate(sizes):
        piece = zoo.tokens(random, max(size // 3, 1)).astype(np.int64)
        ids[row, width - size :] = torch.from_numpy(np.tile(piece, 4)[:size])
        mask[row, width - size :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def both(model: Any, **asked: Any) -> tuple[Tensor, Tensor]:
    asked = {"do_sample": False, "max_new_tokens": 40, **asked}
    return model.generate(**asked), model.generate(**asked, custom_generate=generate)


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
    ids, count = padded(12)["input_ids"], 3000
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
    assert len(twin.held_for(model).engines) <= 4


def test_siblings_share_a_group(model: Any) -> None:
    seen: list[str | None] = []

    class Watched(SuffixDrafter):
        def begin(self, prompt: Any, /, **names: Any) -> Any:
            seen.append(names["group"])
            return super().begin(prompt, **names)

    asked: dict[str, Any] = {"do_sample": True, "max_new_tokens": 4, "custom_generate": generate}
    model.generate(**padded(9, 9), **asked, num_return_sequences=2, drafter=Watched())
    assert None not in seen and sorted(map(seen.count, set(seen))) == [2, 2]


class _Nothing(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Any) -> Any:
        return scores


class _Deaf(BaseStreamer):
    def put(self, value: Tensor) -> None:
        pass


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 3}, "num_beams is 3; expected 1 with custom_generate=generate"),
    "ngrams": ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size is 2"),
    "typical": ({"typical_p": 0.5, "do_sample": True}, "typical_p is 0.5"),
    "scores": ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is True"),
    "dict": ({"return_dict_in_generate": True}, "return_dict_in_generate is True"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
    "bias": ({"sequence_bias": [[[5], 1.0]]}, "sequence_bias is"),
    "words": ({"bad_words_ids": [[5]]}, "bad_words_ids is"),
    "time": ({"max_time": 1.0}, "max_time is 1.0"),
    "cold": ({"temperature": 1e-5, "do_sample": True}, "temperature is 1e-05"),
    "processor": ({"logits_processor": LogitsProcessorList([_Nothing()])}, "_Nothing is among"),
    "allowed": ({"prefix_allowed_tokens_fn": lambda *_: [5]}, "PrefixConstrainedLogitsProcessor"),
    "other temperature": (
        {
            "logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]),
            "temperature": 0.7,
            "do_sample": True,
        },
        "TemperatureLogitsWarper is among",
    ),
    "criterion": (
        {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])},
        "MaxTimeCriteria is among",
    ),
    "streamer": ({"streamer": _Deaf()}, "streamer was given"),
    "long": ({"max_new_tokens": zoo.CONTEXT}, f"expected at most {zoo.CONTEXT}"),
    "policy": ({"policy": "nonsense"}, "nonsense"),
    "drafter": ({"drafter": "nonsense"}, "nonsense"),
    "right": ({"attention_mask": torch.tensor([[1] * 8 + [0]])}, "row 0 of attention_mask"),
    "gap": ({"attention_mask": torch.tensor([[1, 0] + [1] * 7])}, "row 0 of attention_mask"),
    "positions": (
        {"position_ids": torch.arange(1, 10)[None]},
        "position_ids do not fit the attention_mask",
    ),
    "embeds": ({"inputs_embeds": torch.zeros(1, 9, 32)}, "inputs_embeds"),
}


@pytest.mark.parametrize("why", list(REFUSED))
def test_what_is_refused_by_its_name(model: Any, why: str) -> None:
    asked, said = REFUSED[why]
    inputs = {**padded(9), "do_sample": False, "max_new_tokens": 4, **asked}
    with pytest.raises(InputError) as refused:
        model.generate(**inputs, custom_generate=generate)
    assert said in str(refused.value)


def test_more_that_is_refused(model: Any) -> None:
    asked: dict[str, Any] = {**padded(9), "max_new_tokens": 4, "custom_generate": generate}
    with pytest.raises(InputError, match="assistant_model was given"):
        model.generate(**asked, assistant_model=make("llama"))
    cache = DynamicCache()
    model(padded(9)["input_ids"], past_key_values=cache, use_cache=True)
    asked["attention_mask"] = torch.ones(1, 18, dtype=torch.long)
    asked["input_ids"] = asked["input_ids"].repeat(1, 2)
    with pytest.raises(InputError, match="past_key_values hold 9 tokens"):
        model.generate(**asked, past_key_values=cache)


def test_every_field_is_done_idle_or_refused(model: Any) -> None:
    """Also one that transformers will only have tomorrow."""
    names = [*vars(config()), "field_of_tomorrow"]
    ids, taken = padded(9)["input_ids"], []
    for name in names:
        asked = config(max_length=12)
        setattr(asked, name, object())
        try:
            generate(model, ids, [], [], asked)
        except InputError as error:
            assert name in str(error)
        except (TypeError, ValueError, RuntimeError):
            taken.append(name)  # it was looked at, and is no number
        else:
            taken.append(name)
    assert "field_of_tomorrow" not in taken and "num_beams" not in taken
    unknown = {"use_mtp", "top_h", "watermarking_config", "speculation_type", "constraints"}
    assert not unknown & set(taken)


def test_models_that_are_refused() -> None:
    asked: dict[str, Any] = {"max_new_tokens": 4, "custom_generate": generate}
    ids = padded(9)["input_ids"]
    with pytest.raises(UnsupportedModel, match=r"is on meta; expected the CPU"):
        generate(make("llama").to("meta"), ids, [], [], config(max_length=12))
    with pytest.raises(UnsupportedModel, match=r"has torch.float16; expected float32 or bfloat16"):
        make("llama", dtype=torch.float16).generate(ids, **asked)
    hooked: Any = make("llama")
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match=r"'model.layers.0' has a forward hook"):
        hooked.generate(ids, **asked)


def test_the_model_stays_as_it_was() -> None:
    model: Any = make("llama").train()
    model.config.attention_dropout = 0.0
    inputs: dict[str, Any] = {**padded(20, 9), "do_sample": False, "max_new_tokens": 20}

    def look() -> list[Any]:
        modules = [(path, type(m), m.training) for path, m in model.named_modules()]
        weights = [(p.data_ptr(), p.requires_grad, p._version) for p in model.parameters()]
        return [modules, weights, model.config.to_dict(), model.config._attn_implementation]

    before, text = look(), model.generate(**inputs)
    assert torch.equal(model.generate(**inputs, custom_generate=generate), text)
    assert look() == before
    assert torch.equal(model.generate(**inputs), text)
    model(**padded(9), labels=padded(9)["input_ids"]).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_nothing_keeps_a_model_alive() -> None:
    model: Any = make("llama")
    model.generate(**padded(9), max_new_tokens=4, custom_generate=generate)
    gone = weakref.ref(model)
    assert model in twin._HELD
    del model
    gc.collect()
    assert gone() is None


def _train(model: Any, inputs: dict[str, Tensor]) -> None:
    step = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    step.step()
    step.zero_grad()


def _by_data(model: Any, inputs: dict[str, Tensor]) -> None:
    for weight in model.parameters():
        weight.data.mul_(0.8 + 0.4 * torch.rand(weight.shape))


def _other_storage(model: Any, inputs: dict[str, Tensor]) -> None:
    for weight in model.parameters():
        weight.data = weight.data * (0.8 + 0.4 * torch.rand(weight.shape)).to(weight.dtype)


def afresh(model: Any) -> Any:
    """A model with the same weights, which nobody has seen."""
    other = make(model.config.model_type, dtype=model.dtype)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("change", [_train, _by_data, _other_storage])
def test_changed_weights_are_used(
    change: Any, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prompts, long enough that their beginnings are kept: those are stale as well."""
    torch.manual_seed(0)
    model: Any = make(name, dtype=dtype)
    inputs, given = padded(30, 24), config(max_length=60, eos_token_id=2, pad_token_id=0)
    asked: dict[str, Any] = {"generation_config": given, "custom_generate": generate}
    first = model.generate(**inputs, **asked)
    held = twin.held_for(model)
    change(model, inputs)
    second = model.generate(**inputs, **asked)
    assert twin.held_for(model) is held  # not all was made again
    assert torch.equal(second, afresh(model).generate(**inputs, **asked))
    if dtype == torch.float32:
        assert torch.equal(second, model.generate(**inputs, generation_config=given))
    assert first.shape != second.shape or not torch.equal(first, second)
    # If nobody looked, it would be found here.
    change(model, inputs)
    wanted = afresh(model).generate(**inputs, **asked)
    monkeypatch.setattr(CpuTarget, "replace_weights", lambda *_, **__: None)
    stale = model.generate(**inputs, **asked)
    assert stale.shape != wanted.shape or not torch.equal(stale, wanted)


def test_kept_beginnings_are_of_the_weights_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = make("llama")
    inputs, given = padded(60), config(max_length=80)
    asked: dict[str, Any] = {"generation_config": given, "custom_generate": generate}
    for _ in range(2):
        model.generate(**inputs, **asked)
        _by_data(model, inputs)
    assert torch.equal(model.generate(**inputs, **asked), model.generate(**inputs, max_length=80))
    monkeypatch.setattr("foresay.engine.prefixes.Prefixes.drop_oldest", lambda _: False)
    _by_data(model, inputs)
    wrong = model.generate(**inputs, **asked)
    assert not torch.equal(wrong, model.generate(**inputs, max_length=80))


class _Counted(SuffixCandidates):
    steps = 0

    def get_candidates(self, input_ids: Tensor, **given: Any) -> Any:
        self.steps += 1
        found, law = super().get_candidates(input_ids, **given)
        assert law is None  # so that transformers draws from its own law at every place
        return found, law


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3_moe", "olmo2"])
@pytest.mark.parametrize("chain", [True, False])
def test_assisted_is_greedy_and_faster(name: str, chain: bool) -> None:
    model, ids = make(name), padded(30)["input_ids"]
    asked: dict[str, Any] = {"do_sample": False, "max_new_tokens": 120}
    plain = model.generate(ids, **asked)
    candidates = _Counted(drafter=SuffixDrafter(chain=chain))
    steps = []
    for _ in range(2):  # the second time all of it has been seen
        candidates.steps = 0
        ours = model.generate(
            ids, **asked, custom_generate=assisted, candidate_generator=candidates
        )
        assert torch.equal(plain, ours)
        steps.append(candidates.steps)
    assert steps[1] < 60 and steps[1] <= steps[0] <= 120
    assert not hasattr(model, "candidates") and "_get_candidate_generator" not in vars(model)


def test_assisted_ends_where_it_must(model: Any) -> None:
    """At the end of the context learned positions have no more rows, also not for a guess."""
    learned, ids = make("gpt2"), padded(30)["input_ids"]
    asked: dict[str, Any] = {"do_sample": False, "max_length": zoo.CONTEXT}
    plain = learned.generate(ids, **asked)
    assert torch.equal(plain, learned.generate(ids, **asked, custom_generate=assisted))
    end = int(plain[0, 50])
    plain = learned.generate(ids, **asked, eos_token_id=end)
    assert torch.equal(
        plain, learned.generate(ids, **asked, eos_token_id=end, custom_generate=assisted)
    )
    with pytest.raises(InputError, match="there are 2 texts; expected 1"):
        model.generate(**padded(9, 9), max_new_tokens=4, custom_generate=assisted)
    with pytest.raises(InputError, match="MaxTimeCriteria is among the stopping criteria"):
        model.generate(ids, max_new_tokens=4, max_time=1.0, custom_generate=assisted)
    with pytest.raises(InputError, match="most is -1"):
        SuffixCandidates(-1)


def test_assisted_samples_from_the_law_of_the_model(model: Any) -> None:
    """Also with guesses of the likeliest tokens: they come as often as they should."""
    ids, count = padded(12)["input_ids"], 400
    law = (zoo.plain_logits(model, ids[0].tolist())[-1].double() / 1.8).softmax(0)
    candidates = SuffixCandidates()
    torch.manual_seed(2)
    asked: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 1.8}
    drawn = [
        int(
            model.generate(
                ids,
                **asked,
                max_new_tokens=2,
                custom_generate=assisted,
                candidate_generator=candidates,
            )[0, 12]
        )
        for _ in range(count)
    ]
    token = int(law.argmax())
    share = float(law[token])
    assert abs(drawn.count(token) - share * count) < 4.5 * (share * (1 - share) * count) ** 0.5


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model() -> None:
    from foresay.models import weights

    folder = weights.find(weights.DEFAULT_MODEL)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    asked = ["Count from one to twenty.", "Name a colour."]
    chats = [[{"role": "user", "content": text}] for text in asked]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
    )
    plain, ours = both(model, **inputs, max_new_tokens=20)
    assert torch.equal(plain, ours)
