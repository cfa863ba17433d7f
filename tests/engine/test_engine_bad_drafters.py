"""Drafters that fail or do not listen cost their drafts, and never change the text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.asking import ASKED, STOPS, answers, prompts, wanted
from engine.drafters import Scripted, State
from foresay import Draft, DraftBatch, SamplingParams, Verdict, Wants
from foresay.arrays import Int32s
from foresay.drafter import ExternalDraft
from foresay.drafters import MergeDrafter
from foresay.engine.engine import Engine
from foresay.errors import InputError, StateError
from foresay.models.target import Target
from models import zoo


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


def test_a_drafter_without_memory_costs_only_its_drafts(target: Target) -> None:
    """It is the drafter that is broken, not the request that it is told of."""
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, broken("begin", StateError("failed before")), policy="fixed")
    with pytest.warns(UserWarning, match="the drafter failed, and is not asked again"):
        requests = answers(engine, asked)
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


def test_foreign_tokens_are_forgotten_where_nothing_is_drafted(target: Target) -> None:
    """One request ends, and the other may get one token more; or the drafter fails."""
    asked = [(p, SamplingParams(max_tokens=5 + i)) for i, p in enumerate(prompts(2))]
    expected = wanted(target, asked)
    engine = Engine(target, Foreign({}), policy="fixed")
    assert [request.token_ids for request in answers(engine, asked)] == expected

    failing = Foreign({})
    setattr(failing, "observe", broken("observe", ZeroDivisionError("none")).observe)  # noqa: B010
    engine = Engine(target, failing, policy="fixed")
    with pytest.warns(UserWarning, match="is not asked again"):
        assert [request.token_ids for request in answers(engine, asked)] == expected


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


class Reusing(Scripted):
    """Writes into what it has handed out when it is told of the verdicts."""

    given: DraftBatch | None = None

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> Any:
        scores = np.array([0.9, 0.8], np.float32)
        drafts = [Draft.chain([3, 4], scores) if b > 1 else Draft.empty() for b in budgets]
        self.given = DraftBatch.of(drafts)
        return self.given

    def observe(self, states: Sequence[Any], verdicts: Any, /) -> None:
        if self.given is not None and self.given.scores is not None:
            self.given.tokens[:], self.given.parents[:], self.given.scores[:] = -1, 7, 5


@pytest.mark.parametrize("policy", ["fixed", "adaptive", "dynamic-k"])
def test_a_drafter_may_use_its_arrays_again(target: Target, policy: str) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, Reusing({}), policy=policy)
    found = [*answers(engine, asked), *answers(engine, asked)]
    assert [request.token_ids for request in found] == expected * 2
    assert sum(request.stats.drafted for request in found) > 0


class Scribbling(Scripted):
    """Writes into all that it is given, after it has read it."""

    def begin(self, prompt: Int32s, /, **about: Any) -> State:
        state = super().begin(prompt)
        prompt[:] = 1
        about["sampling"].params.logit_bias.clear()
        return state

    def propose(self, states: Sequence[Any], budgets: Any, /) -> list[Draft]:
        drafts = super().propose(states, budgets)
        states.clear()  # type: ignore[attr-defined]
        budgets.clear()
        return drafts

    def observe(self, states: Sequence[Any], verdicts: Any, /) -> None:
        super().observe(states, verdicts)
        for written in (verdicts.path, verdicts.tokens):
            written[:] = 99
        verdicts.offsets[:], verdicts.path_offsets[:] = 7, 5
        if verdicts.topk is not None:
            verdicts.topk.tokens[:], verdicts.hidden[:] = 98, np.nan


class Reading(Scripted):
    """Notes what it is told, also of what it wants to see."""

    wants = Wants(topk=2, hidden=True)

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.biases: list[dict[int, float]] = []
        self.seen: list[Verdict] = []

    def begin(self, prompt: Int32s, /, **about: Any) -> State:
        self.biases.append(dict(about["sampling"].params.logit_bias))
        return super().begin(prompt)

    def observe(self, states: Sequence[Any], verdicts: Any, /) -> None:
        super().observe(states, verdicts)
        self.seen += list(verdicts)


BIASED = [replace(each, logit_bias={5: 2.0}) for each in ASKED[:4]]


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_a_drafter_may_write_into_all_that_it_is_given(
    target: Target, policy: str, recwarn: pytest.WarningsRecorder
) -> None:
    asked = list(zip(prompts(4), BIASED, strict=True))
    expected = wanted(target, asked)
    known = {tuple(p): answer for (p, _), answer in zip(asked, expected, strict=True)}
    drafter = Scribbling(known)
    requests = answers(Engine(target, drafter, policy=policy), asked)
    assert [request.token_ids for request in requests] == expected
    assert sum(request.stats.accepted for request in requests) > 0
    assert sorted(s.observed for s in drafter.states) == sorted(expected)
    assert not recwarn.list


@pytest.mark.parametrize("first", [True, False])
def test_what_one_drafter_of_a_merge_writes_concerns_no_other(
    target: Target, first: bool, recwarn: pytest.WarningsRecorder
) -> None:
    asked = list(zip(prompts(4), BIASED, strict=True))
    expected = wanted(target, asked)
    known = {tuple(p): answer for (p, _), answer in zip(asked, expected, strict=True)}
    writing, reading = Scribbling(known, 0.3), Reading(known, 0.3)
    writing.wants = reading.wants
    pair = (writing, reading) if first else (reading, writing)
    requests = answers(Engine(target, MergeDrafter(*pair), policy="fixed"), asked)
    assert [request.token_ids for request in requests] == expected
    assert [s.prompt for s in reading.states] == [s.prompt for s in writing.states]
    assert sorted(s.observed for s in reading.states) == sorted(expected)
    assert reading.biases == [{5: 2.0}] * 4
    for verdict in reading.seen:
        assert verdict.topk is not None and verdict.hidden is not None
        assert len(verdict.tokens) and np.isfinite(verdict.hidden).all()
        assert not (verdict.topk.tokens == 98).all()
    assert not recwarn.list


class Raising(Scripted):
    """Raises its own budgets."""

    def propose(self, states: Sequence[Any], budgets: Any, /) -> list[Draft]:
        budgets[:] = [budget + 2 for budget in budgets]
        return [Draft.chain([5] * budget) for budget in budgets]


def test_a_drafter_does_not_set_its_budget(target: Target) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    expected = wanted(target, asked)
    engine = Engine(target, Raising({}), policy="fixed")
    with pytest.warns(UserWarning, match=r"is not asked again.*more nodes than its budget"):
        requests = answers(engine, asked)
    assert [request.token_ids for request in requests] == expected


def test_a_drafter_may_write_into_the_text_of_an_offer(target: Target) -> None:
    """The text that goes with a draft from outside is not the engine's own."""

    class Writing(Scripted):
        def add_external_draft(self, state: Any, text: Int32s, offer: ExternalDraft, /) -> int:
            text[:] = 1
            return 0

        def has_external_draft(self, state: Any, /) -> bool:
            return False

    asked = list(zip(prompts(1), ASKED[:1], strict=True))
    engine = Engine(target, Writing({}), policy="fixed")
    request = engine.add(*asked[0], seed=0, stops=STOPS)
    engine.step()
    engine.add_external_draft(request, ExternalDraft(len(request), 0, Draft.chain([1, 2])))
    engine.run()
    assert request.prompt.tolist() == asked[0][0]
    assert [request.token_ids] == wanted(target, asked)


class Timeless(Scripted):
    """Has worked for no number of seconds."""

    def price(self, token: float, node: float, step: float) -> None: ...

    def weighed_seconds(self) -> float:
        return self.said

    said = math.nan


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf])
def test_a_drafter_that_cannot_tell_its_seconds_is_given_up(target: Target, said: float) -> None:
    asked = list(zip(prompts(4), ASKED[:4], strict=True))
    drafter = Timeless({})
    drafter.said = said
    engine = Engine(target, drafter, policy="adaptive")
    with pytest.warns(UserWarning, match=r"weighed_seconds\(\) is -?(nan|inf); expected a number"):
        found = answers(engine, asked)
    assert [request.token_ids for request in found] == wanted(target, asked)
    assert not engine.drafter.active
