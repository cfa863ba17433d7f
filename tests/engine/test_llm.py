"""Texts in, texts out: on a tiny model, and on the real default one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from foresay import LLM, SamplingParams
from foresay.engine import llm as engine_llm
from foresay.engine.plain import logits_of, plain
from foresay.errors import InputError, ModelError, TokenTypeError
from foresay.models import weights
from real import default_llm
from tiny import save_model

GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPTS = ["Hello, hello, hello", "one two three one two three one", "a"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(save_model(tmp_path_factory.mktemp("tiny")), dtype="float32", memory=1 << 24)


def test_the_answers_are_those_of_the_plain_loop(llm: LLM) -> None:
    for params in (GREEDY, SamplingParams(temperature=0.9, seed=5, max_tokens=20)):
        results = llm.generate(PROMPTS, params)
        for prompt, result in zip(PROMPTS, results, strict=True):
            ids = llm.encode(prompt).tolist()
            seed = params.seed or 0
            free = plain(logits_of(llm.target), ids, params, seed, llm.tokenizer.ends)
            assert result.token_ids == free
            assert result.prompt_token_ids == ids and result.prompt == prompt
            ended = free[-1] in llm.tokenizer.ends
            assert result.text == llm.tokenizer.decode(free[: len(free) - ended])


def test_samples_have_their_own_noise_and_share_the_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=12)
    first = llm.beside("suffix").generate(["x" * 50, "y" * 50], params)
    assert [r.sample for r in first] == [0, 1, 2, 3] * 2
    assert len({tuple(r.token_ids) for r in first}) == 8
    again = llm.beside(None).generate(["x" * 50, "y" * 50], params)
    assert [r.token_ids for r in first] == [r.token_ids for r in again]
    assert sorted(r.stats.shared_tokens for r in first[:4]) == [0, 49, 49, 49]
    alone = llm.generate("x" * 50, replace(params, n=1))
    assert alone[0].token_ids == first[0].token_ids


def test_no_text_ends_an_answer_before_min_tokens(llm: LLM) -> None:
    free = llm.generate(PROMPTS[0], replace(GREEDY, max_tokens=40, ignore_eos=True))[0]
    texts = [llm.tokenizer.decode(free.token_ids[:size]) for size in range(41)]
    stop = texts[5][-1]
    for drafter in ("suffix", None):
        for least in (0, 6, 20):
            params = replace(GREEDY, max_tokens=40, ignore_eos=True, stop=stop, min_tokens=least)
            answer = llm.beside(drafter).generate(PROMPTS[0], params)[0]
            ends = [n for n in range(least + 1, 41) if stop in texts[n][len(texts[n - 1]) :]]
            assert len(answer.token_ids) == (ends[0] if ends else 40)
            assert answer.text == (texts[ends[0]][: -len(stop)] if ends else texts[40])
            streamed = list(llm.beside(drafter).stream(PROMPTS[0], params))
            assert "".join(chunk.text for chunk in streamed) == answer.text


def test_who_stops_listening_ends_the_answers(llm: LLM) -> None:
    stream = llm.stream(PROMPTS, replace(GREEDY, max_tokens=200))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert not llm.engine.busy
    unheard = llm.stream(PROMPTS, replace(GREEDY, max_tokens=200))
    before = len(llm.engine.scheduler.waiting)
    del unheard
    assert before == len(PROMPTS) and not llm.engine.busy
    llm.engine.check_integrity()


def test_kinds_of_prompts(llm: LLM) -> None:
    text = llm.generate("abc", GREEDY)[0]
    ids = llm.encode("abc")
    assert llm.generate(ids, GREEDY)[0].token_ids == text.token_ids
    assert llm.generate(ids.tolist(), GREEDY)[0].token_ids == text.token_ids
    assert llm.generate([ids.tolist(), "abc"], GREEDY)[1].token_ids == text.token_ids
    message = [{"role": "user", "content": "abc"}]
    chat = llm.generate(message, GREEDY)
    assert chat[0].token_ids == llm.generate("abc", GREEDY, chat=True)[0].token_ids
    assert chat[0].prompt_token_ids == llm.encode("user: abc\nmodel: ").tolist()
    assert llm.generate([message, message], GREEDY)[1].token_ids == chat[0].token_ids
    assert llm.generate([], GREEDY) == []


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt is empty"),
        (["fine", ""], "prompt 2 of 2: the prompt is empty"),
        ("x" * 5000, "the model takes 4096"),
        ("\ud800", "which is no character"),
        (b"bytes", "prompts are b'bytes'"),
        (5, "prompts are 5"),
        ([1.5, 2.5], "a prompt is 1.5"),
        ([[{"role": "user"}]], "expected a role and a content"),
        ([99999], "expected 0 to"),
    ],
)
def test_prompts_that_cannot_be_answered(llm: LLM, prompt: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        llm.generate(prompt, GREEDY)
    assert not llm.engine.busy


def test_wrong_settings_come_before_the_long_work(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no drafter 'magic'"):
        LLM(tmp_path, drafter="magic")
    with pytest.raises(InputError, match="policy is 'often'"):
        LLM(tmp_path, policy="often")
    with pytest.raises(InputError, match=r"expected --corpus FILE, or in Python CorpusDrafter\("):
        LLM(tmp_path, drafter="corpus")
    for name in ("memory", "max_running", "max_rows"):
        for value in (0, -1, 1.5, "x", True):
            limit: Any = {name: value}
            with pytest.raises(InputError, match=f"^{name} is {value!r}; expected a whole number"):
                LLM(tmp_path, **limit)
    for dtype in ("int9", 5, None):
        wrong: Any = dtype
        with pytest.raises(InputError, match=f"^dtype is {dtype!r}; expected auto, bfloat16"):
            LLM(tmp_path, dtype=wrong)
    with pytest.raises(ModelError, match="smollm2-135m"):
        LLM("smollm3-135m")


def test_memory_where_no_system_tells_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = engine_llm._free_memory()

    def missing(path: Path, *args: Any) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert engine_llm._free_memory() >= free > 1 << 20


def test_the_engine_takes_no_text(llm: LLM) -> None:
    for prompt in ("hi", b"hi"):
        text: Any = prompt
        kind = type(prompt).__name__
        said = f"^prompt is a {kind}; expected token ids; only LLM takes text$"
        with pytest.raises(TokenTypeError, match=said):
            llm.engine.add(text)


def test_logprobs_and_statistics(llm: LLM) -> None:
    (result,) = llm.generate("abcabcabcabc", replace(GREEDY, logprobs=2))
    assert result.logprobs is not None
    assert [p.token for p in result.logprobs] == result.token_ids
    assert all(p.logprob == max(p.top.values()) for p in result.logprobs)  # greedy
    stats = result.as_dict()["stats"]
    assert stats["tokens"] == len(result.token_ids) and stats["prompt_tokens"] == 12
    assert stats["steps"] + stats["accepted"] >= stats["tokens"] >= stats["steps"]
    assert set(stats["seconds"]) == {"schedule", "draft", "forward", "verify", "commit"}


QUESTIONS = [
    "What is the capital of France?",
    "Write a Python function that adds two numbers, and a test for it.",
    "Repeat these words three times: the quick brown fox jumps over the lazy dog.",
    "A train goes 60 miles in 1.5 hours. How fast is it? Think step by step.",
]


def _says_the_same(llm: LLM, questions: list[str], asked: list[SamplingParams]) -> None:
    for params in asked:
        expected = llm.generate(questions, params, chat=True)
        assert all(result.text.strip() for result in expected)
        if not llm.target.exact:
            continue  # this machine does not promise it, and says so
        for drafter, policy in (("suffix", "adaptive"), ("suffix", "fixed"), ("ngram", "fixed")):
            found = llm.beside(drafter, policy).generate(questions, params, chat=True)
            assert [r.token_ids for r in found] == [r.token_ids for r in expected]
            if policy == "fixed":
                assert sum(r.stats.accepted for r in found) > 0


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_says_the_same() -> None:
    llm = default_llm()
    assert llm.target.exact
    sampled = SamplingParams(temperature=0.8, seed=1, n=2, max_tokens=8)
    _says_the_same(llm, QUESTIONS[2:3], [GREEDY, sampled])


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_default_model_says_the_same_at_length(dtype: Any) -> None:
    sampled = SamplingParams(temperature=0.8, seed=1, n=3, max_tokens=32)
    llm = LLM(drafter=None, dtype=dtype, memory=1 << 30)
    _says_the_same(llm, QUESTIONS, [replace(GREEDY, max_tokens=48), sampled])


@pytest.mark.model
def test_the_default_model_says_what_transformers_says() -> None:
    llm = default_llm().beside("suffix")
    model = AutoModelForCausalLM.from_pretrained(
        weights.find(weights.DEFAULT_MODEL, convert=True), dtype=torch.float32
    )
    ids = llm.encode(QUESTIONS[0], chat=True)
    given = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.inference_mode():
        wanted: Any = model.generate(given, max_new_tokens=20, do_sample=False)  # type: ignore[misc]
    (result,) = llm.generate(QUESTIONS[0], GREEDY, chat=True)
    assert result.token_ids == wanted[0, len(ids) :].tolist() and "Paris" in result.text
