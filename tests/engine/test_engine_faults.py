"""Requests that are refused, requests that fail, each alone, and steps that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.asking import ASKED, GREEDY, STOPS, answers, check, letters, prompts, tokens_of, wanted
from foresay import SamplingParams
from foresay.budget.load import Load
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, NgramDrafter, RecycleDrafter, SuffixDrafter
from foresay.engine.compute import forward_and_verify
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import logits_of, plain
from foresay.engine.samples import add_samples
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError, LogitsError
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.target import Outputs, SequenceInput, Target

ASKED_FOR: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "the prompt is empty"),
    ({"prompt": [3] * 191}, "there is memory for 191"),
    ({"prompt": [128]}, "expected 0 to 127"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    # The context would allow it.
    ({"prompt": [3] * 100, "params": None}, "max_tokens is 156; there is memory for 191 in all"),
    ({"params": SamplingParams(logit_bias={500: 1})}, "logit_bias names token 500"),
    ({"params": {"max_tokens": 3}}, "params are .*; expected SamplingParams"),
    ({"tenant": ["a"]}, "tenant is"),
    ({"tenant": 5}, "tenant is 5; expected a str"),
    ({"group": "\ud800"}, "group is .*; expected a str of valid"),
    ({"stops": [1.5]}, "stops"),
    ({"text": "text"}, "text is 'text'; expected an IncrementalDetokenizer"),
    ({"seed": -1}, "seed is -1"),
    ({"seed": 1.5}, "seed is 1.5"),
    ({"together": "x"}, "together is 'x'; expected True or False"),
]


@pytest.mark.parametrize(("wrong", "said"), ASKED_FOR)
def test_what_cannot_be_answered(target: Target, wrong: dict[str, Any], said: str) -> None:
    engine = Engine(target, SuffixDrafter(), memory=3 * PAGE * target.bytes_per_token)
    with pytest.raises(InputError, match=said):
        engine.add(**{"prompt": [1, 2, 3], "params": GREEDY, **wrong})
    assert not engine.busy
    with pytest.raises(InputError, match="the model takes 256"):
        Engine(target).add([3] * 300)


MADE_OF: list[tuple[dict[str, Any], str]] = [
    *(({"target": wrong}, "expected a Target") for wrong in (None, "x", 3, NgramDrafter())),
    ({"drafter": "suffix"}, "which has no begin, propose, observe, finish; expected a Drafter"),
    ({"drafter": NgramDrafter}, "is the class NgramDrafter; expected an instance of it"),
    ({"drafter": object()}, "which has no begin"),
    ({"with_sources": "x"}, "with_sources is 'x'; expected True or False"),
    ({"policy": "often"}, "policy is 'often'; expected one of none"),
    ({"memory": 10}, "memory is 10 bytes"),
]


@pytest.mark.parametrize(("wrong", "said"), MADE_OF)
def test_what_an_engine_cannot_be_made_of(target: Target, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Engine(**{"target": target, **wrong})


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
    engine = Engine(target, SuffixDrafter(max_tokens=100), policy="fixed")
    victim = engine.add([3] * 150, GREEDY, seed=0)
    check(engine, list(zip(prompts(4), ASKED[:4], strict=True)))
    assert victim.finish_reason == "error" and isinstance(victim.error, InputError)


def unreadable(tokens: Sequence[int]) -> str:
    raise ValueError("no text")


def test_a_text_that_cannot_be_read_fails_alone(target: Target) -> None:
    asked = list(zip(prompts(3), ASKED[:3], strict=True))
    engine = Engine(target)
    good = [
        engine.add(p, params, seed=seed, stops=STOPS, text=IncrementalDetokenizer(letters))
        for seed, (p, params) in enumerate(asked)
    ]
    victim = engine.add([1, 2, 3], GREEDY, seed=0, text=IncrementalDetokenizer(unreadable))
    engine.run()
    assert victim.finish_reason == "error" and "cannot be decoded" in str(victim.error)
    assert tokens_of(good) == wanted(target, asked)
    for request in good:
        ended = request.token_ids[-1] in STOPS
        read = letters(request.token_ids[: len(request.token_ids) - ended])
        assert request.answer is not None and request.answer.text == read


def test_only_its_own_requests_are_cancelled(target: Target) -> None:
    one, other = Engine(target), Engine(target)
    request = one.add([1, 2, 3], GREEDY)
    for wrong in (request, "x", None):
        with pytest.raises(InputError, match="expected its own requests"):
            other.cancel(wrong)  # type: ignore[arg-type]
    one.run()
    assert request.finish_reason == "length"
    one.cancel(request)
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


class Sometimes(Fixed):
    """Asks for nothing after a step that failed."""

    asks = True

    def budgets(self, load: Load) -> list[int]:
        return super().budgets(load) if self.asks else [0] * len(load)


@pytest.mark.parametrize("merged", [False, True])
def test_drafts_of_a_failed_step_are_forgotten(target: Target, merged: bool) -> None:
    """The drafter goes on, and the text is the plain one."""
    compute, fails = forward_and_verify(target), [False]

    def sometimes(*arguments: Any) -> Any:
        if fails[0]:
            raise RuntimeError("the machine stumbled")
        return compute(*arguments)

    policy = Sometimes()
    drafter: Any = RecycleDrafter()
    engine = Engine(
        target,
        MergeDrafter(SuffixDrafter(), drafter) if merged else drafter,
        policy=policy,
        compute=sometimes,
    )
    params = SamplingParams(temperature=0, max_tokens=24)
    for _ in range(2):  # the second time there is much to draft
        request = engine.add([5, 6, 7], params, seed=1)
        for step in range(100):
            fails[0] = step % 3 == 2
            policy.asks = step % 3 != 0
            if fails[0]:
                with pytest.raises(RuntimeError, match="stumbled"):
                    engine.step()
            else:
                engine.step()
            if request.finished:
                break
            fails[0] = False
    assert request.token_ids == plain(logits_of(target), [5, 6, 7], params, 1)
    assert engine.drafter.active
    assert request.stats.accepted > 0
