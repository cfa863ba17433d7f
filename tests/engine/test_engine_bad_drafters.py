"""Drafters that fail or do not listen cost their drafts, and never change the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.asking import ASKED, added, check, known, prompts
from engine.drafters import Scripted, State
from foresay import Draft, DraftBatch, SamplingParams, Verdict, Wants
from foresay.arrays import Int32s
from foresay.drafter import ExternalDraft
from foresay.drafters import MergeDrafter
from foresay.engine.engine import Engine
from foresay.errors import InputError, StateError
from foresay.models.target import Target
from models import zoo

FOUR = list(zip(prompts(4), ASKED[:4], strict=True))


def fails(error: type[Exception], said: str) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error(said)  # a new one: a traceback would keep the target

    return fail


def says(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def too_many(drafter: Any, states: Any, budgets: Sequence[int]) -> list[Draft]:
    return [Draft.chain([5] * (budget + 1)) for budget in budgets]


def with_other_budgets(drafter: Any, states: Any, budgets: Any) -> list[Draft]:
    budgets[:] = [budget + 2 for budget in budgets]
    return [Draft.chain([5] * budget) for budget in budgets]


def written_into(drafter: Any, states: Any, budgets: Sequence[int]) -> list[Draft]:
    """After the drafts were checked."""
    tokens = np.array([3, 4], np.int32)
    drafts = [Draft.chain(tokens) for _ in budgets]
    tokens[0] = -7
    return drafts


def outside(drafter: Any, states: Any, budgets: Sequence[int]) -> list[Draft]:
    """Tokens outside the vocabulary."""
    return [Draft.chain([5, 60_000, 7][:budget]) for budget in budgets]


def odd(**methods: Any) -> Scripted:
    """A drafter with other methods."""
    drafts = {tuple(p): [1] * 30 for p in prompts(4)}
    made: Scripted = type("Odd", (Scripted,), methods)(drafts, wrong=0)
    return made


TIMELESS, WANTING = {"price": says(None)}, {"shown": says(None)}
NO_SECONDS = r"weighed_seconds\(\) is -?(nan|inf); expected a number"
MANY = "a draft has more nodes than its budget"
FAULTY: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"{method} fails": ({method: fails(ZeroDivisionError, "no draft")}, "no draft")
        for method in ("begin", "propose", "observe", "finish")
    },
    # It is the drafter that is broken, not the request that it is told of.
    "no memory": ({"begin": fails(StateError, "failed before")}, "failed before"),
    "too many nodes": ({"propose": too_many}, MANY),
    "budgets of its own": ({"propose": with_other_budgets}, MANY),
    "too few drafts": ({"propose": says([])}, "4 states but 0 drafts"),
    "drafts that are none": ({"propose": written_into}, r"-7"),
    "price fails": (
        {"price": fails(ValueError, "what is time?"), "weighed_seconds": says(0.0)},
        "what is time",
    ),
    **{
        f"{said} seconds": ({**TIMELESS, "weighed_seconds": says(said)}, NO_SECONDS)
        for said in (math.nan, math.inf, -math.inf)
    },
    **{
        f"wants {now}": ({**WANTING, "wants_now": says(now)}, r"wants_now\(\) is")
        for now in (Wants(topk=3), Wants(hidden=True), "everything", None)
    },
    "outside, then fails": ({"propose": outside, "observe": fails(ValueError, "none")}, "none"),
}


@pytest.mark.parametrize(("methods", "said"), FAULTY.values(), ids=FAULTY)
def test_a_drafter_that_fails_costs_only_its_drafts(
    target: Target, methods: dict[str, Any], said: str
) -> None:
    engine = Engine(target, odd(**methods), policy="adaptive" if "price" in methods else "fixed")
    with pytest.warns(UserWarning, match=f"the drafter failed, and is not asked again.*{said}"):
        check(engine, FOUR)
    assert not engine.drafter.active


def test_a_drafter_that_wants_more_is_refused(target: Target) -> None:
    with pytest.raises(InputError, match="wants the 129 likeliest tokens; expected at most 128"):
        Engine(target, odd(wants=Wants(topk=zoo.VOCABULARY + 1)))


def test_drafted_tokens_outside_the_vocabulary_are_left_out(target: Target) -> None:
    """Also where one request ends, and the other may get one token more."""
    two = [(p, SamplingParams(max_tokens=5 + i)) for i, p in enumerate(prompts(2))]
    for asked in (FOUR, two):
        engine = Engine(target, odd(propose=outside), policy="fixed")
        check(engine, asked)
        assert engine.drafter.active


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
    engine = Engine(target, Reusing({}), policy=policy)
    found = [*check(engine, FOUR), *check(engine, FOUR)]
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


BIASED = [(prompt, replace(params, logit_bias={5: 2.0})) for prompt, params in FOUR]


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_a_drafter_may_write_into_all_that_it_is_given(
    target: Target, policy: str, recwarn: pytest.WarningsRecorder
) -> None:
    drafter = Scribbling(known(target, BIASED))
    requests = check(Engine(target, drafter, policy=policy), BIASED)
    assert sum(request.stats.accepted for request in requests) > 0
    assert sorted(s.observed for s in drafter.states) == sorted(r.token_ids for r in requests)
    assert not recwarn.list


@pytest.mark.parametrize("first", [True, False])
def test_what_one_drafter_of_a_merge_writes_concerns_no_other(
    target: Target, first: bool, recwarn: pytest.WarningsRecorder
) -> None:
    texts = known(target, BIASED)
    writing, reading = Scribbling(texts, 0.3), Reading(texts, 0.3)
    writing.wants = reading.wants
    pair = (writing, reading) if first else (reading, writing)
    check(Engine(target, MergeDrafter(*pair), policy="fixed"), BIASED)
    assert [s.prompt for s in reading.states] == [s.prompt for s in writing.states]
    assert sorted(s.observed for s in reading.states) == sorted(texts.values())
    assert reading.biases == [{5: 2.0}] * 4
    for verdict in reading.seen:
        assert verdict.topk is not None and verdict.hidden is not None
        assert len(verdict.tokens) and np.isfinite(verdict.hidden).all()
        assert not (verdict.topk.tokens == 98).all()
    assert not recwarn.list


def test_a_drafter_may_write_into_the_text_of_an_offer(target: Target) -> None:
    """The text that goes with a draft from outside is not the engine's own."""

    class Writing(Scripted):
        external_drafts = "only"

        def add_external_draft(self, state: Any, text: Int32s, offer: ExternalDraft, /) -> int:
            text[:] = 1
            return 0

        def has_external_draft(self, state: Any, /) -> bool:
            return False

    engine = Engine(target, Writing({}), policy="fixed")
    (request,) = added(engine, FOUR[:1])
    engine.step()
    engine.add_external_draft(request, ExternalDraft(len(request), 0, Draft.chain([1, 2])))
    engine.run()
    assert request.prompt.tolist() == FOUR[0][0]
    assert known(target, FOUR[:1])[tuple(FOUR[0][0])] == request.token_ids
