"""Paused requests sit steps out, keep what they have, and lose nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.asking import ASKED, GREEDY, STOPS, added, prompts, tokens_of, wanted
from foresay import SamplingParams
from foresay.drafters import SuffixDrafter
from foresay.drafters.lineup import with_external_drafts
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.errors import InputError
from foresay.models.target import Target

ASK = list(zip(prompts(6, seed=4), ASKED[:6], strict=True))


@pytest.mark.parametrize("replaced", [False, True], ids=["kept", "weights replaced"])
def test_others_go_on_and_the_text_is_the_same(target: Target, replaced: bool) -> None:
    """Where weights are replaced, all texts are computed again; the paused one when it goes on."""
    expected = wanted(target, ASK)
    engine = Engine(target, with_external_drafts(SuffixDrafter()), policy="fixed")
    requests = added(engine, ASK)
    while len(requests[1].token_ids) < 3:
        engine.step()
    engine.pause(requests[1])
    kept, stored = requests[1].token_ids, requests[1].stored
    engine.run()
    assert tokens_of([requests[0], *requests[2:]]) == [expected[0], *expected[2:]]
    assert not requests[1].finished and requests[1].token_ids == kept
    assert requests[1].stored == stored and requests[1].kv is not None
    if replaced:
        engine.scheduler.recompute()
        assert requests[1].status == "waiting" and not engine.busy
    engine.check_integrity()
    assert engine.step() == []  # nothing happens, and nothing is raised
    engine.pause(requests[1], False)
    assert engine.busy
    engine.run()
    assert requests[1].token_ids == expected[1]
    engine.check_integrity()


def test_one_that_waits_can_be_paused_and_is_overtaken(target: Target) -> None:
    expected = wanted(target, ASK)
    engine = Engine(target, None, max_running=1)
    first, second = added(engine, ASK[:2])
    engine.pause(first)
    engine.run()
    assert second.token_ids == expected[1] and first.token_ids == [] and not engine.busy
    engine.pause(first, False)
    engine.run()
    assert first.token_ids == expected[0]


def test_preempted_while_paused(target: Target) -> None:
    """The others need its memory; it computes its text again when it goes on."""
    texts = prompts(4, seed=1)
    asked = [(p, replace(GREEDY, max_tokens=60)) for p in texts]
    asked.append((texts[0], SamplingParams(temperature=0.8, max_tokens=60)))
    expected = wanted(target, asked, stops=())
    engine = Engine(target, None, memory=5 * PAGE * target.bytes_per_token, max_rows=64)
    requests = added(engine, asked, stops=())
    paused = set()
    while engine.busy:
        engine.step()
        engine.check_integrity()
        for request in requests:
            if len(request.token_ids) >= 5 and request not in paused:
                paused.add(request)
                engine.pause(request)
        if not engine.busy or len(engine.scheduler.running) == sum(
            r.paused for r in engine.scheduler.running
        ):
            for request in paused:
                engine.pause(request, False)
    assert sum(request.stats.preemptions for request in requests) > 0
    assert tokens_of(requests) == expected


def test_a_newer_one_that_is_paused_gives_its_memory(target: Target) -> None:
    """The oldest needs more than is left: a paused one is preempted, and not in the way."""
    old, new = prompts(2, seed=9)
    asked = [(old, replace(GREEDY, max_tokens=100)), (new, replace(GREEDY, max_tokens=60))]
    expected = wanted(target, asked, stops=())
    pages = -(-(len(old) + 101) // PAGE)
    engine = Engine(target, None, memory=pages * PAGE * target.bytes_per_token)
    first, second = added(engine, asked, stops=())
    while not second.token_ids:
        engine.step()
    engine.pause(second)
    for _ in range(200):
        engine.step()
        engine.check_integrity()
        if first.finished:
            break
    assert first.token_ids == expected[0] and second.stats.preemptions == 1
    assert second.paused and second.kv is None and not engine.busy
    engine.pause(second, False)
    engine.run()
    assert second.token_ids == expected[1]


@pytest.mark.parametrize("begun", [True, False])
def test_cancelled_while_paused(target: Target, begun: bool) -> None:
    engine = Engine(target, with_external_drafts(SuffixDrafter()), policy="fixed")
    request = engine.add(ASK[0][0], GREEDY, seed=1)
    if begun:
        engine.step()
    engine.pause(request)
    assert not engine.busy
    engine.cancel(request)
    assert request.finish_reason == "cancelled" and request.kv is None
    assert not engine.busy and not engine.scheduler.running and not engine.scheduler.waiting
    engine.pause(request, False)  # of one that has ended: nothing
    assert not engine.busy
    engine.check_integrity()


def test_what_cannot_be_paused(target: Target) -> None:
    engine = Engine(target, None)
    request = engine.add(ASK[0][0], GREEDY)
    with pytest.raises(InputError, match="not of this engine"):
        Engine(target, None).pause(request)
    with pytest.raises(InputError, match="paused is 'no'; expected"):
        engine.pause(request, "no")  # type: ignore[arg-type]
    engine.run()
    assert request.finished


def run_at_most(engine: Engine, steps: int) -> None:
    """As `run`, which would never return where a request is stuck."""
    for _ in range(steps):
        if not engine.busy:
            return
        engine.step()
        engine.check_integrity()
    raise AssertionError(f"busy after {steps} steps: {[*engine.scheduler.waiting]}")


LONG = [5, 6, 7, 8] * 20
SHORT = replace(GREEDY, max_tokens=5)


@pytest.mark.parametrize("then", ["pause", "cancel", "preempt", "replace"])
def test_nobody_waits_for_a_prefix_that_is_not_computed(target: Target, then: str) -> None:
    expected = wanted(target, [(LONG, SHORT), (LONG, SHORT)], stops=())
    engine = Engine(target, None, max_rows=16)
    first = engine.add(LONG, SHORT, seed=0)
    engine.step()
    assert 0 < first.stored < len(LONG) - 1  # in the middle of its prefill
    second = engine.add(LONG, SHORT, seed=1)
    engine.step()
    assert second.status == "waiting"  # the prefix is shared when it is there
    if then == "cancel":
        engine.cancel(first)
    elif then == "replace":
        engine.scheduler.recompute()
    else:
        engine.pause(first)
    if then == "preempt":
        engine.scheduler._preempt(first)
    run_at_most(engine, 40)
    assert second.token_ids == expected[1]
    assert first.stats.preemptions == (then in ("preempt", "replace"))
    engine.pause(first, False)
    run_at_most(engine, 40)
    assert first.token_ids == ([] if then == "cancel" else expected[0])


def test_nobody_waits_for_the_prefix_of_one_that_fails(target: Target) -> None:
    """The drafter refuses the first request in the step that ends its prefill."""

    class Refusing(SuffixDrafter):
        def begin(self, prompt: Any, /, **about: Any) -> Any:
            if about["sampling"].seed == 0:
                raise InputError("not this one")
            return super().begin(prompt, **about)

    expected = wanted(target, [(LONG, SHORT), (LONG, SHORT)], stops=())
    engine = Engine(target, Refusing(), policy="fixed", max_rows=16)
    first, second = (engine.add(LONG, SHORT, seed=seed) for seed in (0, 1))
    run_at_most(engine, 40)
    assert first.finish_reason == "error" and second.token_ids == expected[1]


def test_a_paused_one_does_not_count_as_running(target: Target) -> None:
    expected = wanted(target, ASK[:3])
    engine = Engine(target, None, max_running=1)
    requests = added(engine, ASK[:3])
    while not requests[0].token_ids:
        engine.step()
    engine.pause(requests[0])
    run_at_most(engine, 200)
    assert tokens_of(requests[1:]) == expected[1:]
    engine.pause(requests[0], False)
    engine.add(*ASK[3], seed=3, stops=STOPS)
    while engine.busy:
        engine.step()
        assert len({r.number for r in requests if r.status == "running"}) <= 1
    assert requests[0].token_ids == expected[0]


def test_steps_stay_small_when_paused_ones_go_on(target: Target) -> None:
    expected = wanted(target, ASK[:4])
    engine = Engine(target, None, max_running=2)
    requests = added(engine, ASK[:4])
    for request in requests:
        for _ in range(60):
            if request.token_ids or request.finished:
                break
            engine.step()
        engine.pause(request)
    for request in requests:
        engine.pause(request, False)
    while engine.busy:
        engine.step()
        assert engine.last_step is None or len(engine.last_step.load) <= 2
    assert tokens_of(requests) == expected


def test_paused_ones_give_their_memory_where_nothing_else_can_run(target: Target) -> None:
    """The oldest is paused and holds the memory that the only other one waits for."""
    old, new = prompts(2, seed=9)
    asked = [(old, replace(GREEDY, max_tokens=60)), (new, replace(GREEDY, max_tokens=60))]
    expected = wanted(target, asked, stops=())
    pages = -(-(max(len(old), len(new)) + 61) // PAGE)
    engine = Engine(target, None, memory=pages * PAGE * target.bytes_per_token)
    first = engine.add(*asked[0], seed=0)
    while len(first.token_ids) < 50:
        engine.step()
    engine.pause(first)
    second = engine.add(*asked[1], seed=1)
    run_at_most(engine, 100)
    assert second.token_ids == expected[1] and first.stats.preemptions == 1
    engine.pause(first, False)
    run_at_most(engine, 100)
    assert first.token_ids == expected[0]
