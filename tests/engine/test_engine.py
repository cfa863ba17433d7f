"""The engine gives the tokens of the plain loop, with any drafter and any batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from engine.asking import (
    ASKED,
    GREEDY,
    STOPS,
    Asked,
    added,
    answers,
    check,
    known,
    prompts,
    tokens_of,
    wanted,
)
from engine.drafters import Scripted
from foresay import SamplingParams
from foresay.budget.policy import POLICIES
from foresay.drafters import MergeDrafter, NgramDrafter, RecycleDrafter, SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.errors import UnknownGroup
from foresay.models.load_transformers import target_of
from foresay.models.parts import StepParts
from foresay.models.target import Target
from models import zoo
from models.targets import zoo_target

KNOWING = {"right": 0.0, "half right": 0.4}  # the chance that they are wrong
DRAFTERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "suffix": SuffixDrafter,
    "ngram": NgramDrafter,
    "recycle": RecycleDrafter,
    "static recycle": lambda: RecycleDrafter(context=1, tree="static"),
    "merge": lambda: MergeDrafter(SuffixDrafter(), NgramDrafter()),
    "merge with recycle": lambda: MergeDrafter(SuffixDrafter(), RecycleDrafter(k=4)),
    "two recycle": lambda: MergeDrafter(RecycleDrafter(k=2), SuffixDrafter(), RecycleDrafter(k=8)),
}


def drafter_of(name: str, target: Target, asked: Asked, stops: tuple[int, ...] = STOPS) -> Any:
    if name in KNOWING:
        return Scripted(known(target, asked, stops), wrong=KNOWING[name])
    return DRAFTERS[name]()


MANY = list(zip(prompts(len(ASKED) * 2), ASKED * 2, strict=True))


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("name", [*DRAFTERS, *KNOWING])
def test_the_text_is_that_of_the_plain_loop(target: Target, name: str, policy: str) -> None:
    drafter = drafter_of(name, target, MANY)
    engine = Engine(target, drafter, policy=policy, max_running=7, max_rows=48)
    requests = check(engine, MANY)
    for request, (_, params) in zip(requests, MANY, strict=True):
        ended = request.token_ids[-1] in STOPS
        assert request.finish_reason == ("stop" if ended else "length")
        assert ended or len(request.token_ids) == params.max_tokens
    if name == "right" and policy == "fixed":
        assert sum(r.stats.steps for r in requests) < 0.5 * sum(r.stats.tokens for r in requests)
    again = check(engine, MANY)  # what was learned before changes nothing
    if "recycle" in name and policy == "fixed":
        assert sum(request.stats.accepted for request in again) > 20  # all was seen before


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "llama4_text", "qwen3_moe", "gpt2"])
def test_other_architectures(name: str) -> None:
    target = zoo_target(name)
    asked = list(zip(prompts(4, seed=3), ASKED[:4], strict=True))
    drafter = Scripted(known(target, asked), wrong=0.3)
    check(Engine(target, drafter, policy="fixed", max_rows=40), asked)


def test_bfloat16_to_the_bit() -> None:
    target = target_of(zoo.make("llama", dtype=torch.bfloat16))
    assert target.exact  # on every machine: all of its products are the core's
    asked = list(zip(prompts(8, seed=5), ASKED, strict=True))
    for drafter in (None, Scripted(known(target, asked), wrong=0.3), SuffixDrafter()):
        check(Engine(target, drafter, policy="fixed", max_rows=40), asked)


def test_a_wrong_engine_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping the wrong rows of a tree must change the text, or these tests prove nothing."""
    asked = list(zip(prompts(8), ASKED, strict=True))
    expected, drafter = wanted(target, asked), Scripted(known(target, asked), wrong=0.4)
    right = StepParts._rows_of

    def first_rows(parts: StepParts, *path: Any) -> Any:
        """The first rows of each text, in place of the accepted ones."""
        bounds = right(parts, *path)[1]
        counts = np.diff(bounds)
        return np.concatenate([np.arange(n, dtype=np.int32) for n in counts]), bounds

    monkeypatch.setattr(StepParts, "_rows_of", first_rows)
    assert tokens_of(answers(Engine(target, drafter, policy="fixed"), asked)) != expected


@pytest.mark.parametrize("name", ["half right", "recycle", "merge with recycle"])
def test_memory_for_few_preempts_and_changes_nothing(target: Target, name: str) -> None:
    asked = [(p, replace(GREEDY, max_tokens=60)) for p in prompts(10, seed=1)]
    asked += [(p, SamplingParams(temperature=0.8, max_tokens=60)) for p in prompts(6, seed=2)]
    memory, drafter = 5 * PAGE * target.bytes_per_token, drafter_of(name, target, asked, ())
    engine = Engine(target, drafter, policy="fixed", memory=memory, max_rows=32)
    requests = added(engine, asked, stops=())
    while engine.busy:
        engine.step()
        engine.check_integrity()
    assert sum(request.stats.preemptions for request in requests) > 3
    assert tokens_of(requests) == wanted(target, asked, stops=())


def test_equal_beginnings_are_computed_once(target: Target) -> None:
    prompt = prompts(1, seed=8)[0] * 3
    asked = [(prompt[:70], replace(GREEDY, temperature=0.9)) for _ in range(6)]
    engine = Engine(target, SuffixDrafter())
    requests = check(engine, asked)
    shared = [request.stats.shared_tokens for request in requests]
    assert shared == [0, *[len(prompt[:70]) - 1] * 5]
    # One that comes later takes over what was kept; another tenant's does not.
    later = engine.add(prompt[:70], GREEDY, seed=9, stops=STOPS)
    stranger = engine.add(prompt[:70], GREEDY, seed=9, stops=STOPS, tenant="another")
    engine.run()
    assert later.stats.shared_tokens == len(prompt[:70]) - 1
    assert stranger.stats.shared_tokens == 0
    assert later.token_ids == stranger.token_ids


def test_ten_thousand_cancelled_requests_leave_nothing(target: Target) -> None:
    random = np.random.default_rng(4)
    drafter = SuffixDrafter(history=False)
    engine = Engine(target, drafter, policy="fixed", memory=40 * PAGE * target.bytes_per_token)
    alive: list[Request] = []
    texts, added = prompts(50, seed=6), 0
    while added < 10_000 or alive:
        for _ in range(int(random.integers(0, 600)) if added < 10_000 else 0):
            text = texts[int(random.integers(len(texts)))]
            alive.append(engine.add(text, GREEDY, seed=added, group=f"group {added % 7}"))
            added += 1
        if random.random() < 0.3:
            engine.step()
        cancelled = random.permutation(len(alive))[: random.integers(1, 700)]
        for at in sorted(cancelled, reverse=True):
            engine.cancel(alive.pop(int(at)))
        alive = [request for request in alive if not request.finished]
    assert not engine.busy
    while engine.scheduler.prefixes.drop_oldest():
        pass
    engine.check_integrity()
    assert engine.scheduler.pages.in_use == 0 and not engine.scheduler.prefixes._running
    for group in range(7):
        with suppress(UnknownGroup):
            drafter.drop_group(f"group {group}")
    assert drafter.tokens_held() == 0


def test_other_requests_change_no_answer(target: Target) -> None:
    asked = list(zip(prompts(16, seed=11), ASKED * 2, strict=True))
    expected, drafter = wanted(target, asked), Scripted(known(target, asked))
    random = np.random.default_rng(0)
    engine = Engine(target, drafter, policy="threshold", max_running=5, max_rows=20)
    waiting = list(enumerate(asked))
    requests: dict[int, Request] = {}
    noise: list[Request] = []
    while waiting or engine.busy:
        if waiting and random.random() < 0.4:
            seed, (prompt, params) = waiting.pop(int(random.integers(len(waiting))))
            requests[seed] = engine.add(prompt, params, seed=seed, stops=STOPS)
        if waiting and random.random() < 0.3:
            noise.append(engine.add(prompts(1, seed=len(noise))[0], GREEDY, seed=1))
        if noise and random.random() < 0.3:
            engine.cancel(noise[int(random.integers(len(noise)))])
        engine.step()
    assert [requests[seed].token_ids for seed in range(len(asked))] == expected


def test_the_drafter_hears_of_every_token(target: Target) -> None:
    """Also where nothing is drafted, and across the switch of the batch size."""
    asked = list(zip(prompts(12, seed=12), ASKED + ASKED[:4], strict=True))
    texts = known(target, asked)
    for policy in ("none", "threshold"):
        drafter = Scripted(texts, wrong=0.2)
        answers(Engine(target, drafter, policy=policy, max_running=12), asked)
        assert {tuple(s.prompt): s.observed for s in drafter.states} == texts
        assert all(state.finished for state in drafter.states)


def test_the_switch_at_the_batch_size(target: Target) -> None:
    for running, drafts in ((8, True), (9, False)):
        drafter = Scripted({tuple(p): [1] * 30 for p in prompts(running)}, wrong=0)
        engine = Engine(target, drafter, policy="threshold")
        requests = [engine.add(p, GREEDY, seed=0) for p in prompts(running)]
        engine.step()
        assert (sum(request.stats.drafted for request in requests) > 0) == drafts


@pytest.mark.parametrize("rule", ["union", "first"])
def test_a_merge_is_told_what_time_is_worth(
    target: Target, rule: Literal["union", "first"]
) -> None:
    """A slow drafter is asked in some steps and not in others, and the text stays the same."""
    now = 0.0

    class Slow(Scripted):
        asked: ClassVar[list[bool]] = []

        def propose(self, states: Any, budgets: Any, /) -> Any:
            nonlocal now
            now += 0.02 * max(budgets, default=0) ** 0.5
            self.asked.append(any(budgets))
            return super().propose(states, budgets)

    prices: list[tuple[float, float]] = []

    class Told(MergeDrafter):
        def price(self, token: float, node: float, step: float) -> None:
            prices.append((token, node))
            super().price(token, node, step)

    drafter = Told(Slow(known(target, MANY), 0.3), SuffixDrafter(), rule=rule, clock=lambda: now)
    check(Engine(target, drafter, max_running=7, max_rows=48), MANY)
    assert prices and all(token > 0 and node >= 0 for token, node in prices)
    assert 0 < sum(Slow.asked) < len(prices)


def test_logprobs_do_not_depend_on_drafts(target: Target) -> None:
    (prompt,) = prompts(1, seed=22)
    params = SamplingParams(temperature=0.8, max_tokens=20, logprobs=3)
    free = plain(logits_of(target), prompt, params, 3)
    found = []
    for drafter in (None, Scripted({tuple(prompt): free}, wrong=0.3)):
        engine = Engine(target, drafter, policy="fixed" if drafter else "none")
        other = engine.add(prompt, GREEDY, seed=1)
        request = engine.add(prompt, params, seed=3)
        engine.run()
        assert [p.token for p in request.logprobs] == request.token_ids == free
        assert all(len(p.top) == 3 and max(p.top.values()) >= p.logprob for p in request.logprobs)
        assert not other.logprobs
        found.append(np.array([[p.logprob, p.processed] for p in request.logprobs]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_the_prefix_that_was_used_least_recently_is_forgotten(target: Target) -> None:
    """There is room for two."""
    engine = Engine(target, None, memory=8 * PAGE * target.bytes_per_token)

    def shared(first: int) -> int:
        request = engine.add(list(range(first, first + 20)), SamplingParams(max_tokens=2), seed=1)
        engine.run()
        return request.stats.shared_tokens

    assert [shared(first) for first in (0, 30, 0, 60)] == [0, 0, 19, 0]
    assert (shared(0), shared(30)) == (19, 0)
