"""Log probabilities of a prompt's own tokens: those of a plain pass, however the prompt is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from foresay import SamplingParams
from foresay.drafters import SuffixDrafter
from foresay.engine import compute
from foresay.engine.engine import Engine
from foresay.engine.logprobs import note_prompt_logprobs
from foresay.engine.pages import PAGE
from foresay.engine.request import Request
from foresay.errors import InputError
from foresay.models.load_transformers import target_of
from foresay.models.target import SequenceInput, Target
from foresay.sampling.logprobs import TokenLogprob
from models import zoo
from models.targets import zoo_target

SHORT = SamplingParams(temperature=0, max_tokens=5)
SIZES = (90, 1, 2, 17, 64, 33)


@pytest.fixture(scope="module")
def target() -> Target:
    """Of torch's modules: what it says is compared with what transformers says."""
    return zoo_target("llama")


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return zoo.make("llama")


def texts(sizes: Sequence[int] = SIZES, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [zoo.tokens(random, size).tolist() for size in sizes]


def check(model: PreTrainedModel, request: Request, top: int) -> None:
    """Compare with the model's own plain pass over the prompt."""
    prompt, found = request.prompt.tolist(), request.prompt_logprobs
    assert found is not None and len(found) == len(prompt) and found[0] is None
    rows = torch.log_softmax(zoo.plain_logits(model, prompt).double(), dim=-1)
    for logprobs, token, said in zip(rows, prompt[1:], found[1:], strict=False):
        assert isinstance(said, TokenLogprob) and said.token == token
        assert abs(said.logprob - float(logprobs[token])) < 1e-4
        assert said.processed == said.logprob
        assert len(said.top) == top
        likeliest = logprobs.topk(top).values.tolist()
        assert np.allclose(list(said.top.values()), likeliest, atol=1e-4)
        assert all(abs(float(logprobs[t]) - value) < 1e-4 for t, value in said.top.items())


def asked(
    engine: Engine, prompts: Sequence[list[int]], tops: Sequence[int | None]
) -> list[Request]:
    requests = [
        engine.add(p, SHORT, seed=i, prompt_logprobs=top)
        for i, (p, top) in enumerate(zip(prompts, tops, strict=True))
    ]
    engine.run()
    engine.check_integrity()
    return requests


@pytest.mark.parametrize("rows", [3, 16, 512])
def test_those_of_a_plain_pass(target: Target, model: PreTrainedModel, rows: int) -> None:
    tops = [0, 1, 3, 5, 0, 2]
    plainly = asked(Engine(target, max_rows=rows), texts(), [None] * len(tops))
    engine = Engine(target, SuffixDrafter(), policy="fixed", max_rows=rows)
    requests = asked(engine, texts(), tops)
    for request, plain, top in zip(requests, plainly, tops, strict=True):
        check(model, request, top)
        assert request.token_ids == plain.token_ids
        assert plain.prompt_logprobs is None


def test_others_beside_it_do_not_ask(target: Target, model: PreTrainedModel) -> None:
    tops = [None, 2, None, None, 1, 4]
    requests = asked(Engine(target, max_rows=40), texts(), tops)
    for request, top in zip(requests, tops, strict=True):
        if top is None:
            assert request.prompt_logprobs is None
        else:
            check(model, request, top)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "gpt2", "qwen3_moe", "deepseek_v3"])
def test_other_architectures(name: str) -> None:
    engine = Engine(target_of(zoo.make(name)), max_rows=24)
    for request in asked(engine, texts((50, 9)), [1, 3]):
        check(zoo.make(name), request, 1 if request.number == 0 else 3)


def test_the_same_bits_however_it_is_read(target: Target) -> None:
    """Also where all rows of a step want logits, which the head must not mix up."""
    wanted = asked(Engine(target), texts((90,)), [3])[0]
    for rows in (1, 7, 89, 90):
        assert asked(Engine(target, max_rows=rows), texts((90,)), [3])[0].prompt_logprobs == (
            wanted.prompt_logprobs
        )
    beside = asked(Engine(target, max_rows=50), texts((90, 40, 60)), [3, None, 0])[0]
    assert beside.prompt_logprobs == wanted.prompt_logprobs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_asking_changes_no_answer(dtype: torch.dtype) -> None:
    target = target_of(zoo.make("llama", dtype=dtype))
    long = replace(SHORT, max_tokens=40, temperature=0.8, logprobs=2)
    answers: list[list[Any]] = []
    for top in (None, 0, 4):
        engine = Engine(target, SuffixDrafter(), max_rows=48)
        requests = [engine.add(p, long, seed=i, prompt_logprobs=top) for i, p in enumerate(texts())]
        engine.run()
        answers.append([(r.token_ids, r.logprobs) for r in requests])
    assert answers[0] == answers[1] == answers[2]


def test_who_asks_for_more_changes_nothing_for_others() -> None:
    """Where many tokens are equally likely it is the smaller ids that are told, also of prompts."""
    model = zoo.make("llama")
    with torch.no_grad():
        head = model.lm_head.weight
        head.copy_(head[torch.arange(zoo.VOCABULARY) % 5])
    target = target_of(model)
    told = []
    for most in (None, 3, 20, 100):
        engine = Engine(target, SuffixDrafter(), policy="fixed")
        mine = engine.add(texts()[0], replace(SHORT, logprobs=3), seed=0, prompt_logprobs=3)
        engine.add(texts()[4], replace(SHORT, logprobs=most), seed=0, prompt_logprobs=most)
        engine.run()
        told.append((mine.logprobs, mine.prompt_logprobs))
        for said in (*mine.logprobs, *(mine.prompt_logprobs or [])[1:]):
            assert said is not None
            tops = list(said.top)
            assert tops == [tops[0] % 5, tops[0] % 5 + 5, tops[0] % 5 + 10]
    assert all(each == told[0] for each in told)


def test_a_preempted_one_is_not_noted_twice(target: Target, model: PreTrainedModel) -> None:
    memory = 5 * PAGE * target.bytes_per_token
    engine = Engine(target, memory=memory, max_rows=20)
    long = replace(SHORT, max_tokens=100)
    # The first grows while the others, of which there is not memory for all, still read.
    prompts = texts((60, 100, 100, 90))
    requests = [engine.add(p, long, seed=i, prompt_logprobs=1) for i, p in enumerate(prompts)]
    engine.run()
    engine.check_integrity()
    assert sum(request.stats.preemptions for request in requests) > 0
    for request in requests:
        check(model, request, 1)


def test_preempted_in_the_middle_of_the_prompt(target: Target, model: PreTrainedModel) -> None:
    engine = Engine(target, max_rows=16)
    request = engine.add(texts((90,))[0], SHORT, prompt_logprobs=2)
    engine.step()
    engine.step()
    assert request.prompt_logprobs is not None and len(request.prompt_logprobs) == 33
    engine.scheduler._preempt(request)
    engine.run()
    assert request.stats.preemptions == 1
    check(model, request, 2)


def test_it_takes_over_nothing_and_others_take_over_from_it(
    target: Target, model: PreTrainedModel
) -> None:
    engine = Engine(target, max_rows=32)
    prompt = texts((80,))[0]
    first, second, third = asked(engine, [prompt] * 3, [None, 1, None])
    assert (first.stats.shared_tokens, third.stats.shared_tokens) == (0, len(prompt) - 1)
    assert second.stats.shared_tokens == 0
    check(model, second, 1)
    other = texts((80,), seed=5)[0]
    fourth, fifth = asked(engine, [other] * 2, [0, None])
    assert fourth.stats.shared_tokens == 0 and fifth.stats.shared_tokens >= 64
    check(model, fourth, 0)
    assert first.token_ids == second.token_ids == third.token_ids


def test_more_than_the_vocabulary_is_all_of_it(target: Target, model: PreTrainedModel) -> None:
    request = asked(Engine(target), texts((12,)), [10_000])[0]
    check(model, request, zoo.VOCABULARY)


@pytest.mark.parametrize("wrong", [-1, True, 1.0, "3", 1 << 40])
def test_a_wrong_number_is_refused(target: Target, wrong: Any) -> None:
    engine = Engine(target)
    with pytest.raises(InputError, match=r"prompt_logprobs is .*; expected a whole number from 0"):
        engine.add([5, 6], SHORT, prompt_logprobs=wrong)
    assert not engine.busy


def test_the_target_refuses_more_than_is_read(target: Target) -> None:
    with pytest.raises(InputError, match="prefill_logits is 3; expected 0 to the 2 prefill"):
        SequenceInput.of(
            target, target.open(), np.array([4, 5, 6], np.int32), prefill=2, prefill_logits=3
        )


def test_rows_of_other_tokens_are_found(
    target: Target, model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row off must fail, or the comparison proves nothing."""

    def shifted(prompts: Sequence[tuple[Request, int]], logits: torch.Tensor) -> None:
        note_prompt_logprobs(prompts, logits.roll(1, 0))

    monkeypatch.setattr(compute, "note_prompt_logprobs", shifted)
    request = asked(Engine(target), texts((20,)), [0])[0]
    with pytest.raises(AssertionError):
        check(model, request, 0)
