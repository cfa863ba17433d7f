"""The engine gives the tokens of the plain loop, with any drafter and any batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine.drafters import Scripted
from foresay import Draft, SamplingParams, Wants
from foresay.budget.policy import POLICIES, Fixed
from foresay.drafters import MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.engine.text import AnswerText
from foresay.errors import InputError, LogitsError, UnknownGroup
from foresay.models.cpu.target import CpuTarget
from foresay.models.load import target_of
from foresay.models.target import Outputs, Part, Target
from models import zoo

GREEDY = SamplingParams(temperature=0, max_tokens=24)
ASKED = [
    GREEDY,
    SamplingParams(temperature=0.8, max_tokens=30),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, max_tokens=17),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, presence_penalty=0.3, max_tokens=20),
    SamplingParams(temperature=0, frequency_penalty=0.4, max_tokens=20, logit_bias={5: 2.0}),
    SamplingParams(temperature=1.0, min_tokens=9, max_tokens=25),
    SamplingParams(temperature=0, max_tokens=1),
    SamplingParams(temperature=0.9, max_tokens=2),
]
STOPS = (2, 9, 17)


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(zoo.make("llama"))


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 90, count)
    texts: list[list[int]] = []
    for size in sizes:  # with something to copy
        piece = random.integers(0, zoo.VOCABULARY, max(size // 3, 1))
        texts.append(np.tile(piece, 4)[:size].tolist())
    return texts


def wanted(
    target: Target,
    asked: Sequence[tuple[list[int], SamplingParams]],
    stops: tuple[int, ...] = STOPS,
) -> list[list[int]]:
    row = logits_of(target)
    return [plain(row, p, params, seed, stops) for seed, (p, params) in enumerate(asked)]


def answers(engine: Engine, asked: Sequence[tuple[list[int], SamplingParams]]) -> list[Request]:
    requests = [
        engine.add(prompt, params, seed=seed, stops=STOPS)
        for seed, (prompt, params) in enumerate(asked)
    ]
    engine.run()
    engine.check_integrity()
    return requests


def drafter_of(name: str, known: dict[tuple[int, ...], list[int]]) -> Any:
    made: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "suffix": SuffixDrafter,
        "ngram": NgramDrafter,
        "merge": lambda: MergeDrafter(SuffixDrafter(), NgramDrafter()),
        "right": lambda: Scripted(known, wrong=0.0),
        "half right": lambda: Scripted(known, wrong=0.4),
    }
    return made[name]()


MANY = list(zip(prompts(len(ASKED) * 2), ASKED * 2, strict=True))


@pytest.fixture(scope="module")
def answered(target: Target) -> list[list[int]]:
    return wanted(target, MANY)


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("name", ["none", "suffix", "ngram", "merge", "right", "half right"])
def test_the_text_is_that_of_the_plain_loop(
    target: Target, answered: list[list[int]], name: str, policy: str
) -> None:
    asked, expected = MANY, answered
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    engine = Engine(target, drafter_of(name, known), policy=policy, max_running=7, max_rows=48)
    requests = answers(engine, asked)
    assert [request.token_ids for request in requests] == expected
    for request, (_, params) in zip(requests, asked, strict=True):
        ended = request.token_ids[-1] in STOPS
        assert request.finish_reason == ("stop" if ended else "length")
        assert ended or len(request.token_ids) == params.max_tokens
    if name == "right" and policy == "fixed":
        assert sum(r.stats.steps for r in requests) < 0.5 * sum(map(len, expected))


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "llama4_text", "qwen3_moe", "gpt2"])
def test_other_architectures(name: str) -> None:
    target = target_of(zoo.make(name))
    asked = list(zip(prompts(6, seed=3), ASKED[:6], strict=True))
    expected = wanted(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    engine = Engine(target, Scripted(known, wrong=0.3), policy="fixed", max_rows=40)
    assert [request.token_ids for request in answers(engine, asked)] == expected


def test_bfloat16_to_the_bit() -> None:
    target = target_of(zoo.make("llama", dtype=torch.bfloat16))
    assert target.exact  # on every machine: all of its products are the core's
    asked = list(zip(prompts(8, seed=5), ASKED, strict=True))
    expected = wanted(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    for drafter in (None, Scripted(known, wrong=0.3), SuffixDrafter()):
        engine = Engine(target, drafter, policy="fixed", max_rows=40)
        assert [request.token_ids for request in answers(engine, asked)] == expected


def test_a_wrong_engine_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping the wrong rows of a tree must change the text, or these tests prove nothing."""
    asked = list(zip(prompts(8), ASKED, strict=True))
    expected = wanted(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    monkeypatch.setattr(
        Part,
        "keep",
        lambda part, path=(): part.kv.keep(np.arange(len(part.tokens) + len(path), dtype=np.int32)),
    )
    engine = Engine(target, Scripted(known, wrong=0.4), policy="fixed")
    assert [request.token_ids for request in answers(engine, asked)] != expected


def test_memory_for_few_preempts_and_changes_nothing(target: Target) -> None:
    asked = [(p, replace(GREEDY, max_tokens=60)) for p in prompts(10, seed=1)]
    asked += [(p, SamplingParams(temperature=0.8, max_tokens=60)) for p in prompts(6, seed=2)]
    expected = wanted(target, asked, stops=())
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    memory = 5 * PAGE * target.bytes_per_token
    engine = Engine(target, Scripted(known), policy="fixed", memory=memory, max_rows=32)
    requests = [engine.add(p, params, seed=i) for i, (p, params) in enumerate(asked)]
    while engine.busy:
        engine.step()
        engine.check_integrity()
    assert sum(request.stats.preemptions for request in requests) > 3
    assert [request.token_ids for request in requests] == expected


def test_equal_beginnings_are_computed_once(target: Target) -> None:
    prompt = prompts(1, seed=8)[0] * 3
    asked = [(prompt[:70], replace(GREEDY, temperature=0.9)) for _ in range(6)]
    expected = wanted(target, asked)
    engine = Engine(target, SuffixDrafter())
    requests = answers(engine, asked)
    assert [request.token_ids for request in requests] == expected
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
    expected = wanted(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    random = np.random.default_rng(0)
    engine = Engine(target, Scripted(known), policy="threshold", max_running=5, max_rows=20)
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
    expected = wanted(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    for policy in ("none", "threshold"):
        drafter = Scripted(known, wrong=0.2)
        engine = Engine(target, drafter, policy=policy, max_running=12)
        answers(engine, asked)
        heard = {tuple(s.prompt): s.observed for s in drafter.states}
        assert heard == known
        assert all(state.finished for state in drafter.states)


def test_the_switch_at_the_batch_size(target: Target) -> None:
    for running, drafts in ((8, True), (9, False)):
        drafter = Scripted({tuple(p): [1] * 30 for p in prompts(running)}, wrong=0)
        engine = Engine(target, drafter, policy="threshold")
        requests = [engine.add(p, GREEDY, seed=0) for p in prompts(running)]
        engine.step()
        assert (sum(request.stats.drafted for request in requests) > 0) == drafts


def test_stops_inside_an_accepted_path(target: Target) -> None:
    """The answer ends at the first stop, though the draft goes on behind it."""
    (prompt,) = prompts(1, seed=20)
    free = plain(logits_of(target), prompt, GREEDY, 0)
    for at in (0, 3, 10):
        stop = free[at]
        end = free.index(stop) + 1
        engine = Engine(target, Scripted({tuple(prompt): free}, wrong=0), policy=Fixed(k=64))
        request = engine.add(prompt, replace(GREEDY, stop=[stop]), seed=0)
        engine.run()
        assert request.token_ids == free[:end]
        assert request.finish_reason == "stop"
        assert request.stats.steps == 1
    for most in (1, 2, 7):
        engine = Engine(target, Scripted({tuple(prompt): free}, wrong=0), policy=Fixed(k=64))
        request = engine.add(prompt, replace(GREEDY, max_tokens=most), seed=0)
        engine.run()
        assert request.token_ids == free[:most]
        assert request.finish_reason == "length"


def letters(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token % 26) for token in tokens)


def test_texts_that_end_an_answer(target: Target) -> None:
    (prompt,) = prompts(1, seed=21)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    free = plain(logits_of(target), prompt, params, 7)
    whole = letters(free)
    for begin, size in ((0, 1), (5, 3), (11, 2), (30, 4)):
        stop = whole[begin : begin + size]
        for drafter in (None, Scripted({tuple(prompt): free}, wrong=0.2)):
            engine = Engine(target, drafter, policy="fixed" if drafter else "none")
            request = engine.add(
                prompt, replace(params, stop=stop), seed=7, text=AnswerText(letters, [stop])
            )
            engine.run()
            assert request.finish_reason == "stop" and request.answer is not None
            assert request.answer.text == whole[: whole.index(stop)]
            assert request.token_ids == free[: whole.index(stop) + size]


def test_no_text_ends_an_answer_before_min_tokens(target: Target) -> None:
    (prompt,) = prompts(1, seed=21)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    free = plain(logits_of(target), prompt, params, 7)
    whole = letters(free)
    for begin, size, least in ((0, 1, 20), (5, 3, 7), (5, 3, 8), (11, 2, 13), (30, 4, 40)):
        stop = whole[begin : begin + size]
        asked = replace(params, stop=stop, min_tokens=least)
        at = whole.find(stop, max(least - size + 1, 0))
        for drafter in (None, Scripted({tuple(prompt): free}, wrong=0.2)):
            engine = Engine(target, drafter, policy="fixed" if drafter else "none")
            text = AnswerText(letters, [stop], least)
            request = engine.add(prompt, asked, seed=7, text=text)
            engine.run()
            assert request.finish_reason == ("stop" if at >= 0 else "length")
            assert request.token_ids == (free[: at + size] if at >= 0 else free)
            assert len(request.token_ids) > least or at < 0
            assert text.text == (whole[:at] if at >= 0 else whole)


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


def test_logits_that_are_no_law_fail_alone(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list(zip(prompts(4, seed=30), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    bad = [5, 77, 5, 77, 99]
    forward = CpuTarget.forward

    def spoiled(self: CpuTarget, parts: Sequence[Part], *, hidden: bool = False) -> Outputs:
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
    monkeypatch.setattr(CpuTarget, "forward", spoiled)
    victim = engine.add(bad, replace(GREEDY, logit_bias={5: 1e4}), seed=0)  # gives 5 for ever
    requests = answers(engine, asked)
    assert victim.finish_reason == "error" and isinstance(victim.error, LogitsError)
    assert victim.token_ids
    alone = [at for at, text in enumerate(expected) if 5 not in text]  # the others look like it
    assert len(alone) >= 2
    assert [requests[at].token_ids for at in alone] == [expected[at] for at in alone]


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


def test_the_answer_ends_with_the_context(target: Target) -> None:
    engine = Engine(target, SuffixDrafter(), policy="fixed")
    request = engine.add([3] * 250, SamplingParams(temperature=0, max_tokens=100), seed=0)
    engine.run()
    assert request.finish_reason == "length" and len(request) == target.context


def broken(method: str, error: Exception) -> Scripted:
    drafter = Scripted({tuple(p): [1] * 30 for p in prompts(4)}, wrong=0)

    def fails(*_: Any, **__: Any) -> Any:
        raise error

    setattr(drafter, method, fails)
    return drafter


@pytest.mark.parametrize("method", ["begin", "propose", "observe", "finish"])
def test_a_drafter_that_fails_costs_only_its_drafts(target: Target, method: str) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, broken(method, ZeroDivisionError("no draft")), policy="fixed")
    with pytest.warns(UserWarning, match="the drafter failed, and is not asked again.*no draft"):
        requests = answers(engine, asked)
    assert [request.token_ids for request in requests] == expected


def test_a_request_that_the_drafter_refuses_fails_alone(target: Target) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, SuffixDrafter(max_tokens=100), policy="fixed")
    victim = engine.add([3] * 150, GREEDY, seed=0)
    requests = answers(engine, asked)
    assert victim.finish_reason == "error" and isinstance(victim.error, InputError)
    assert [request.token_ids for request in requests] == expected


class Eager(Scripted):
    """Drafts more than its budget."""

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> list[Draft]:
        return [Draft.chain([5] * (budget + 1)) for budget in budgets]


class Few(Scripted):
    """Forgets most requests."""

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> list[Draft]:
        return []


@pytest.mark.parametrize("kind", [Eager, Few])
def test_a_drafter_that_does_not_listen_is_not_asked_again(
    target: Target, kind: type[Scripted]
) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, kind({}), policy="fixed")
    with pytest.warns(UserWarning, match="is not asked again"):
        requests = answers(engine, asked)
    assert [request.token_ids for request in requests] == expected


def test_a_drafter_that_wants_more_is_refused(target: Target) -> None:
    drafter = Scripted({})
    drafter.wants = Wants(topk=zoo.VOCABULARY + 1)
    with pytest.raises(InputError, match="wants the 129 likeliest tokens; expected at most 128"):
        Engine(target, drafter)


class Foreign(Scripted):
    """Drafts tokens outside the vocabulary."""

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> list[Draft]:
        return [Draft.chain([5, 60_000, 7][:budget]) for budget in budgets]


def test_drafted_tokens_outside_the_vocabulary_are_left_out(target: Target) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, Foreign({}), policy="fixed")
    assert [request.token_ids for request in answers(engine, asked)] == expected


def unreadable(tokens: Sequence[int]) -> str:
    raise ValueError("no text")


def test_a_text_that_cannot_be_read_fails_alone(target: Target) -> None:
    asked = list(zip(prompts(3), ASKED[:3], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target)
    good = [
        engine.add(p, params, seed=seed, stops=STOPS, text=AnswerText(letters))
        for seed, (p, params) in enumerate(asked)
    ]
    victim = engine.add([1, 2, 3], GREEDY, seed=0, text=AnswerText(unreadable))
    engine.run()
    assert victim.finish_reason == "error" and "cannot be decoded" in str(victim.error)
    assert [request.token_ids for request in good] == expected
    for request in good:
        ended = request.token_ids[-1] in STOPS
        read = letters(request.token_ids[: len(request.token_ids) - ended])
        assert request.answer is not None and request.answer.text == read


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


class Careless(Scripted):
    """Writes into what it has handed out, after it was checked."""

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> list[Draft]:
        tokens = np.array([3, 4], np.int32)
        drafts = [Draft.chain(tokens) for _ in budgets]
        tokens[0] = -7
        return drafts


def test_what_a_careless_drafter_gives_is_checked_again(target: Target) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, Careless({}), policy="fixed")
    with pytest.warns(UserWarning, match="is not asked again"):
        requests = answers(engine, asked)
    assert [request.token_ids for request in requests] == expected
