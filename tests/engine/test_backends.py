"""Texts do not depend on what the target runs on, and weights are replaced under way.

`FORESAY_DRAWS=1000` draws more requests; a few are enough to see that it works.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from engine.asking import Asked, answers, check, known, tokens_of
from engine.drafters import Scripted
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.errors import InputError
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.target import Target
from foresay.sampling import SamplingParams
from models import zoo
from models.targets import zoo_target

DRAWS = int(os.environ.get("FORESAY_DRAWS", "28"))
NAMES = list(zoo.SUPPORTED)
AT_ONCE = 4


@cache
def targets(name: str) -> tuple[Target, Target]:
    return zoo_target(name), plain_target_of(zoo.make(name))


def drawn(random: np.random.Generator) -> tuple[list[int], SamplingParams]:
    piece = random.integers(0, zoo.VOCABULARY, random.integers(1, 30))
    prompt = np.tile(piece, 3)[: random.integers(1, 80)].tolist()
    asked: dict[str, Any] = {"max_tokens": int(random.integers(1, 16))}
    asked["temperature"] = float(random.choice([0.0, 0.5, 0.8, 1.0, 1.3]))
    for name, values in {
        "top_p": (0.7, 0.95),
        "top_k": (5, 40),
        "min_p": (0.02, 0.1),
        "repetition_penalty": (0.9, 1.2),
        "presence_penalty": (-0.3, 0.4),
        "frequency_penalty": (-0.2, 0.3),
        "min_tokens": (0, 1),
    }.items():
        if random.random() < 0.25:
            value = values[int(random.integers(2))]
            asked[name] = value
    return prompt, SamplingParams(**asked)


def texts(target: Target, drafter: Any, asked: Asked) -> list[list[int]]:
    engine = Engine(target, drafter, policy="fixed", memory=1 << 22, max_running=4, max_rows=32)
    return tokens_of(answers(engine, asked, stops=(2, 9)))


def test_random_requests_have_the_same_texts_on_both() -> None:
    random, different = np.random.default_rng(11), []
    for draw in range(-(-DRAWS // AT_ONCE)):
        name = NAMES[draw % len(NAMES)]
        cpu, slow = targets(name)
        asked = [drawn(random) for _ in range(AT_ONCE)]
        plainly = texts(slow, None, asked)
        for target in (cpu, slow):
            given = texts(target, SuffixDrafter(), asked)
            different += [(name, draw, at) for at in range(AT_ONCE) if given[at] != plainly[at]]
    assert not different


def other_weights(name: str) -> Any:
    model = zoo.make(name)
    generator = torch.Generator().manual_seed(8)
    for weight in model.parameters():
        weight.data += 0.3 * weight.std() * torch.randn(weight.shape, generator=generator)
    return model


@pytest.mark.parametrize("make", [target_of, plain_target_of])
def test_weights_are_replaced_while_requests_run(make: Any) -> None:
    """Committed tokens stay; all that follow are the new weights' own."""
    target, other = make(zoo.make("llama")), other_weights("llama")
    params = SamplingParams(temperature=0.8, max_tokens=20, ignore_eos=True)
    random = np.random.default_rng(3)
    prompts = [random.integers(0, zoo.VOCABULARY, 40).tolist() for _ in range(3)]
    engine = Engine(target, SuffixDrafter(), policy="fixed", memory=1 << 22)
    requests = [engine.add(p, params, seed=at) for at, p in enumerate(prompts)]
    while min(len(request.token_ids) for request in requests) < 5:
        engine.step()
    before = [request.token_ids for request in requests]
    assert all(request.stored for request in requests)
    engine.replace_weights(dict(other.named_parameters()))
    assert engine.version == 1
    engine.run()
    engine.check_integrity()
    row = logits_of(make(other_weights("llama")))
    for at, request in enumerate(requests):
        # The answer's beginning, from the old weights, is decoded again, as it was.
        rest = request.token_ids[len(before[at]) :]
        assert request.token_ids[: len(before[at])] == before[at]
        assert rest == continued(row, prompts[at], before[at], params, at)
        assert request.stats.preemptions == 1
    # And a later request takes over nothing that the old weights computed.
    again = engine.add(prompts[0], params, seed=0)
    engine.run()
    assert again.token_ids == plain(row, prompts[0], params, 0)


@pytest.mark.parametrize("make", [target_of, plain_target_of])
def test_weights_are_replaced_by_the_drafter(make: Any) -> None:
    """Between a step's beginning and its forward pass: nothing that the old weights computed is
    used in it."""
    target, other = make(zoo.make("llama")), other_weights("llama")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompt = list(range(1, 30))

    class Training(SuffixDrafter):
        steps = 0

        def propose(self, states: Any, budgets: Any, /, **more: Any) -> Any:
            self.steps += 1
            if self.steps == 4:
                target.replace_weights(dict(other.named_parameters()))
            return super().propose(states, budgets, **more)

    engine = Engine(target, Training(), policy="fixed", memory=1 << 22)
    request = engine.add(prompt, params)
    before: list[int] = []
    while not engine.version:
        before = request.token_ids
        engine.step()
    assert request.token_ids == before and request.stats.preemptions == 1
    engine.run()
    engine.check_integrity()
    row = logits_of(make(other_weights("llama")))
    assert request.token_ids == before + continued(row, prompt, before, params, 0)


def continued(
    row: Any, prompt: list[int], output: list[int], params: SamplingParams, seed: int
) -> list[int]:
    """The tokens of the plain loop after the beginning of an answer."""
    given = iter(output)

    def next_logits(text: Any, size: int) -> Any:
        logits = row(text, size)
        forced = next(given, None)
        if forced is None:
            return logits
        only = torch.full_like(logits, -torch.inf)
        only[forced] = 0.0
        return only

    return plain(next_logits, prompt, params, seed)[len(output) :]


def test_recompute_mends_what_an_interrupt_left() -> None:
    """A request that was being preempted is in both lists then; it must be computed once."""
    target = target_of(zoo.make("llama"))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    engine = Engine(target, memory=1 << 22)
    requests = [engine.add(list(range(first, first + 20)), params) for first in (1, 40)]
    for _ in range(4):
        engine.step()
    scheduler = engine.scheduler
    scheduler.waiting.appendleft(requests[0])
    scheduler._whole = False
    scheduler.recompute()
    assert not scheduler.running
    assert sorted(request.number for request in scheduler.waiting) == [0, 1]
    engine.run()
    engine.check_integrity()
    row = logits_of(target)
    for request in requests:
        assert request.token_ids == plain(row, request.prompt.tolist(), params, 0)


def test_engines_that_share_a_target_notice() -> None:
    target, other = target_of(zoo.make("llama")), other_weights("llama")
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompt = list(range(1, 40))
    first, second = Engine(target, memory=1 << 22), Engine(target, memory=1 << 22)
    for engine in (first, second):
        engine.add(prompt, params)
        engine.run()
    first.replace_weights(dict(other.named_parameters()))
    request = second.add(prompt, params)
    second.run()
    assert request.stats.shared_tokens == 0
    wanted = plain(logits_of(target_of(other_weights("llama"))), prompt, params, 0)
    assert request.token_ids == wanted
    with pytest.raises(InputError, match="the model has no weight 'x'"):
        first.replace_weights({"x": torch.zeros(1)})
    assert first.version == second.version == 1


def test_a_scripted_drafter_sees_no_difference() -> None:
    """Right drafts and wrong ones, on the plain target."""
    slow = targets("llama")[1]
    asked = [(list(range(3, 30)), SamplingParams(temperature=0.9, max_tokens=20))]
    for wrong in (0.0, 0.5):
        (request,) = check(Engine(slow, Scripted(known(slow, asked), wrong), policy="fixed"), asked)
        assert request.stats.accepted > 0
