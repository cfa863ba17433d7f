"""Asynchronous scheduling: plain steps that are started before the one before has been read.

A target that computes on the CPU stands for one on a device: its next step gets the tokens that the
step before has chosen, and nothing that the host knows of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.asking import ASKED, GREEDY, STOPS, added, check, letters, prompts, tokens_of, wanted
from engine.on_device import PLAIN, OnDevice
from foresay import SamplingParams
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load
from foresay.budget.policy import Fixed, Policy
from foresay.drafters import RecycleDrafter, SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.text import IncrementalDetokenizer
from foresay.sampling.verification import VerificationBatch
from foresay.verdict import Wants
from models import zoo
from models.targets import cpu_target

SHORT = replace(GREEDY, max_tokens=3)


def test_the_same_texts(device: Any) -> None:
    asked = [(prompt, PLAIN[at % len(PLAIN)]) for at, prompt in enumerate(prompts(18))]
    steps = 0

    class Counting(Engine):
        def step(self) -> Any:
            nonlocal steps
            steps += 1
            self.check_integrity()
            return super().step()

    check(Counting(device), asked)
    assert device.ahead > steps // 2


@pytest.mark.parametrize("at", range(12))
def test_while_requests_come_and_leave(device: Any, at: int) -> None:
    """Some are cancelled, paused, given more memory than there is; some want what steps ahead
    cannot give."""
    random = np.random.default_rng(at)
    params = ASKED if at % 2 else PLAIN
    asked = [(prompt, params[n % len(params)]) for n, prompt in enumerate(prompts(14, seed=at))]
    if at % 5 == 3:
        asked[3] = asked[3][0], replace(asked[3][1], logprobs=1)
    memory = (12 if at % 3 == 2 else 400) * PAGE * device.bytes_per_token
    policies: list[str | Policy] = ["none", "fixed", Rarely(), Adaptive(StepCost())]
    policy, drafter = policies[at % 4], SuffixDrafter() if at % 4 else None
    engine = Engine(device, drafter, policy=policy, memory=memory, max_running=9)
    requests, cancelled = list[Any](), set[int]()
    while len(requests) < len(asked) or engine.busy:
        if len(requests) < len(asked) and (not engine.busy or random.random() < 0.3):
            prompt, given = asked[len(requests)]
            requests.append(engine.add(prompt, given, seed=len(requests), stops=STOPS))
        engine.step()
        engine.check_integrity()
        some = int(random.integers(len(requests)))
        before = requests[some].token_ids
        if random.random() < 0.05:
            engine.cancel(requests[some])
            cancelled.add(some)
        elif random.random() < 0.1:
            engine.pause(requests[some])
            engine.step()
            assert requests[some].token_ids == before
            engine.pause(requests[some], False)
        if random.random() < 0.05:
            engine._ahead.drop()  # as if a step had been interrupted
    assert bool(device.ahead) == (at % 4 != 1)  # fixed drafts are asked for in every step
    for number, (found, text) in enumerate(
        zip(tokens_of(requests), wanted(device.target, asked), strict=True)
    ):
        left = number in cancelled and requests[number].finish_reason == "cancelled"
        assert found == (text[: len(found)] if left else text)


class Rarely(Fixed):
    """Drafts in every third step, and is told of each step once, in order."""

    name = "rarely"

    def __init__(self) -> None:
        super().__init__(k=4)
        self.planned: list[Load] = []

    def budgets(self, load: Load) -> list[int]:
        self.planned.append(load)
        return super().budgets(load) if len(self.planned) % 3 == 0 else [0] * len(load)

    def observe(self, step: Any) -> None:
        while self.planned[0] is not step.load:
            del self.planned[0]
        load: Any = step.load
        drafts = step.chosen.drafts
        assert step.seconds > 0 and len(load) >= step.committed - len(drafts.tokens)
        assert len(drafts) == len(load) == len(load.ids) == len(load.tenants)
        assert len(set(load.ids.tolist())) == len(load) and load.tokens_left.min(initial=1) >= 1
        del self.planned[0]


def test_a_policy_is_told_of_each_step(device: Any) -> None:
    told = list[Any]()

    class Told(Rarely):
        def budgets(self, load: Load) -> list[int]:
            assert load.ids is not None
            running = {request.number: request for request in engine.scheduler.running}
            texts = [running[number] for number in load.ids.tolist()]
            more = load.contexts - [len(text) for text in texts]  # 1 where it runs ahead
            assert set(more.tolist()) <= {0, 1} and len(set(more.tolist())) == 1
            assert load.tenants == [text.tenant for text in texts]
            return super().budgets(load)

        def observe(self, step: Any) -> None:
            told.append(step)
            super().observe(step)

    policy = Told()
    engine = Engine(device, SuffixDrafter(), policy=policy)
    requests = [
        engine.add(prompt, replace(GREEDY, max_tokens=24 - 7 * at), seed=at, tenant=f"of {at}")
        for at, prompt in enumerate(prompts(3))
    ]
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
    assert len(told) == steps and device.ahead
    assert sum(step.committed for step in told) == sum(len(r.token_ids) for r in requests)
    stats = [request.stats for request in requests]
    assert [one.tokens for one in stats] == [24, 17, 10]
    assert all(0 < one.steps <= one.tokens for one in stats)


def test_stop_strings_and_ends(device: Any) -> None:
    """Who ends has a row in the step that was started; it is not read."""
    asked = [(prompt, GREEDY) for prompt in prompts(5)]
    texts = [letters(text) for text in wanted(device.target, asked, ())]
    engine = Engine(device)
    requests = [
        engine.add(
            prompt,
            replace(GREEDY, max_tokens=24 - at, stop=[text[3 * at + 2 : 3 * at + 5]]),
            text=IncrementalDetokenizer(letters, [text[3 * at + 2 : 3 * at + 5]]),
        )
        for at, ((prompt, _), text) in enumerate(zip(asked, texts, strict=True))
    ]
    engine.run()
    for at, (request, text) in enumerate(zip(requests, texts, strict=True)):
        assert request.answer is not None
        assert request.answer.text == text[: text.index(text[3 * at + 2 : 3 * at + 5])]
        assert len(request.token_ids) <= 3 * at + 5
    assert device.ahead > 3


def test_weights_that_are_replaced() -> None:
    """A step that was started with the old weights is not read."""
    model = zoo.make("llama")
    device: Any = OnDevice(cpu_target(model))
    head = zoo.make("llama").get_output_embeddings().weight.detach()
    for version in range(3):
        engine = Engine(device)
        request = engine.add([1, 2, 3, 4], GREEDY)
        for _ in range(5):
            engine.step()
        before, ahead = request.token_ids, device.ahead
        device.replace_weights({"lm_head.weight": head.roll(version + 1, 0)})
        engine.run()
        text = wanted(
            device.target,
            [([1, 2, 3, 4, *before], replace(GREEDY, max_tokens=24 - len(before)))],
            (),
        )
        assert request.token_ids == before + text[0], version
        assert ahead


def test_what_is_not_started_ahead(device: Any) -> None:
    """Steps whose successor cannot be known: with penalties, log probabilities or rule rejection,
    for a drafter that wants to see something, and beside prompts that are not read yet."""
    repeated = SamplingParams(temperature=0, repetition_penalty=1.3, max_tokens=9)
    rejecting = SamplingParams(temperature=0.8, rule="rejection", max_tokens=9)
    for params in (repeated, rejecting, replace(SHORT, logprobs=2)):
        engine = Engine(device)
        engine.add([1, 2, 3], params)
        engine.add([1, 2, 3], GREEDY)
        while len(engine.scheduler.running) != 1:
            engine.step()
        assert not device.ahead
    engine = Engine(device, RecycleDrafter(), policy="none")
    engine.add([1, 2, 3], GREEDY)
    engine.run()
    assert not device.ahead
    engine = Engine(device, max_rows=8)
    engine.add([1, 2, 3], SHORT)
    engine.add(list(range(40)), SHORT)
    for _ in range(3):
        engine.step()
    assert not device.ahead


class WantsLater(RecycleDrafter):
    """Wants to see something from the sixth step on."""

    asked = 0

    def wants_now(self) -> Wants:
        self.asked += 1
        return self.wants if self.asked > 5 else Wants()

    def shown(self, seconds: float) -> None:
        pass


def test_a_drafter_sees_what_it_wants(device: Any) -> None:
    seen = list[bool]()

    class Seeing(WantsLater):
        def observe(self, states: Any, verdicts: Any, /) -> None:
            seen.append(verdicts.topk is not None)
            super().observe(states, verdicts)

    engine = Engine(device, Seeing(), policy="none")
    added(engine, [([1, 2, 3], GREEDY)], ())
    engine.run()
    assert seen[6:] and all(seen[6:])


@pytest.mark.parametrize("params", [ASKED[3], replace(GREEDY, logprobs=1)])
def test_drafts_are_not_probed_where_no_step_can_follow(
    device: Any, params: SamplingParams
) -> None:
    loads = list[Load]()

    class Told(Adaptive):
        def budgets(self, load: Load) -> list[int]:
            loads.append(load)
            return super().budgets(load)

    engine = Engine(device, SuffixDrafter(), policy=Told(StepCost()))
    added(engine, [(prompt, params) for prompt in prompts(3)], ())
    engine.run()
    assert loads and not any(load.probed for load in loads) and not device.ahead


def test_wrong_variants_are_found(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from foresay.engine import ahead

    asked = [(prompt, PLAIN[at % len(PLAIN)]) for at, prompt in enumerate(prompts(6))]

    def same() -> bool:
        engine = Engine(device)
        requests = added(engine, asked)
        engine.run()
        return tokens_of(requests) == wanted(device.target, asked)

    assert same()
    with monkeypatch.context() as wrong:  # noise of the position before
        wrong.setattr(VerificationBatch, "a_token_on", lambda self: self)
        assert not same()
    with monkeypatch.context() as wrong:  # who has ended is not left out
        wrong.setattr(
            ahead, "upload", lambda arrays, where: {"rows": torch.arange(len(arrays["rows"]))}
        )
        assert not same()
    with monkeypatch.context() as wrong:  # tokens of another row
        forward = OnDevice.forward_next
        wrong.setattr(
            OnDevice, "forward_next", lambda self, parts, t: forward(self, parts, t.roll(1))
        )
        assert not same()
    assert same()
