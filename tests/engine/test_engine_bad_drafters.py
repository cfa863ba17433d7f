"""Drafters that fail or do not listen cost their drafts, and never change the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engine.asking import ASKED, answers, prompts, wanted
from engine.drafters import Scripted
from foresay import Draft, DraftBatch, SamplingParams, Wants
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
    assert [request.token_ids for request in answers(engine, asked)] == expected
    assert sum(request.stats.drafted for request in answers(engine, asked)) > 0
