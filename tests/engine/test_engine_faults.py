"""Requests that are refused, and requests that fail: each alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.asking import ASKED, GREEDY, STOPS, answers, letters, prompts, wanted
from foresay import SamplingParams
from foresay.budget.load import Load
from foresay.budget.policy import Fixed
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.samples import add_samples
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError, LogitsError
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.target import Outputs, SequenceInput, Target


def test_what_cannot_be_answered(target: Target) -> None:
    engine = Engine(target, SuffixDrafter(), memory=3 * PAGE * target.bytes_per_token)
    for prompt, said in (
        ([], "the prompt is empty"),
        ([3] * 191, "there is memory for 191"),
        ([128], "expected 0 to 127"),
        ([-1], "prompt"),
        ([1.5], "prompt"),
    ):
        with pytest.raises(InputError, match=said):
            engine.add(prompt)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="logit_bias names token 500"):
        engine.add([1], SamplingParams(logit_bias={500: 1}))
    with pytest.raises(InputError, match="the model takes 256"):
        Engine(target).add([3] * 300)
    with pytest.raises(InputError, match="max_tokens is 156; there is memory for 191 in all"):
        engine.add([3] * 100)  # the context would allow it
    with pytest.raises(InputError, match="policy is 'often'; expected one of none"):
        Engine(target, SuffixDrafter(), policy="often")
    with pytest.raises(InputError, match="memory is 10 bytes"):
        Engine(target, memory=10)
    assert not engine.busy


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenant": ["a"]},
        {"tenant": 5},
        {"group": "\ud800"},
        {"params": {"max_tokens": 3}},
        {"stops": [1.5]},
        {"text": "text"},
        {"seed": -1},
        {"seed": 1.5},
    ],
)
def test_wrong_arguments_are_refused(target: Target, wrong: dict[str, Any]) -> None:
    engine = Engine(target, SuffixDrafter())
    with pytest.raises(InputError):
        engine.add([1, 2, 3], **wrong)
    assert not engine.busy


def test_logits_that_are_no_law_fail_alone(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list(zip(prompts(4, seed=30), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    bad = [5, 77, 5, 77, 99]
    forward = StoredTarget.forward

    def spoiled(
        self: StoredTarget, parts: Sequence[SequenceInput], *, hidden: bool = False
    ) -> Outputs:
        logits, at = forward(self, parts).logits.clone(), 0
        for part in parts:
            rows = (1 + len(part.draft)) * part.needs_logits
            text = part.kv.length + len(part.tokens)
            if part.tokens[0] == 5 and rows and text >= len(bad) + 3:
                logits[at : at + rows] = np.nan
            at += rows
        return Outputs(logits)

    drafter = SuffixDrafter()
    engine = Engine(target, drafter, policy="fixed")
    monkeypatch.setattr(StoredTarget, "forward", spoiled)
    victim = engine.add(bad, replace(GREEDY, logit_bias={5: 1e4}), seed=0)  # gives 5 for ever
    requests = answers(engine, asked)
    assert victim.finish_reason == "error" and isinstance(victim.error, LogitsError)
    assert victim.token_ids
    alone = [at for at, text in enumerate(expected) if 5 not in text]  # the others look like it
    assert len(alone) >= 2
    assert [requests[at].token_ids for at in alone] == [expected[at] for at in alone]


def test_a_request_that_the_drafter_refuses_fails_alone(target: Target) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, SuffixDrafter(max_tokens=100), policy="fixed")
    victim = engine.add([3] * 150, GREEDY, seed=0)
    requests = answers(engine, asked)
    assert victim.finish_reason == "error" and isinstance(victim.error, InputError)
    assert [request.token_ids for request in requests] == expected


def unreadable(tokens: Sequence[int]) -> str:
    raise ValueError("no text")


def test_a_text_that_cannot_be_read_fails_alone(target: Target) -> None:
    asked = list(zip(prompts(3), ASKED[:3], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target)
    good = [
        engine.add(p, params, seed=seed, stops=STOPS, text=IncrementalDetokenizer(letters))
        for seed, (p, params) in enumerate(asked)
    ]
    victim = engine.add([1, 2, 3], GREEDY, seed=0, text=IncrementalDetokenizer(unreadable))
    engine.run()
    assert victim.finish_reason == "error" and "cannot be decoded" in str(victim.error)
    assert [request.token_ids for request in good] == expected
    for request in good:
        ended = request.token_ids[-1] in STOPS
        read = letters(request.token_ids[: len(request.token_ids) - ended])
        assert request.answer is not None and request.answer.text == read


def test_what_an_engine_cannot_be_made_of(target: Target) -> None:
    for wrong in (None, "x", 3, SuffixDrafter()):
        with pytest.raises(InputError, match="expected a Target"):
            Engine(wrong)  # type: ignore[arg-type]
    for drafter, said in (
        ("suffix", "which has no begin, propose, observe, finish; expected a Drafter"),
        (SuffixDrafter, "is the class SuffixDrafter; expected an instance of it"),
        (object(), "which has no begin"),
    ):
        with pytest.raises(InputError, match=said):
            Engine(target, drafter)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="with_sources is 'x'; expected True or False"):
        Engine(target, with_sources="x")  # type: ignore[arg-type]


def test_only_its_own_requests_are_cancelled(target: Target) -> None:
    one, other = Engine(target), Engine(target)
    request = one.add([1, 2, 3], GREEDY)
    for wrong in (request, "x", None):
        with pytest.raises(InputError, match="expected its own requests"):
            other.cancel(wrong)  # type: ignore[arg-type]
    one.run()
    assert request.finish_reason == "length"
    one.cancel(request)
    with pytest.raises(InputError, match="together is 'x'; expected True or False"):
        one.add([1], GREEDY, together="x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="group is 3; expected a str"):
        one.drop_group(3)  # type: ignore[arg-type]
    for seeds in (None, 3):
        with pytest.raises(InputError, match="seeds"):
            add_samples(one, [1], GREEDY, seeds=seeds)  # type: ignore[arg-type]


def test_a_policy_that_forgets_requests_is_named(target: Target) -> None:
    class Forgetful(Fixed):
        def budgets(self, load: Load) -> list[int]:
            return []

    engine = Engine(target, SuffixDrafter(), policy=Forgetful())
    engine.add([1, 2, 3], GREEDY)
    with pytest.raises(InputError, match="1 states but 0 budgets of the policy"):
        engine.step()
