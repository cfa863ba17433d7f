"""Structured answers in the engine: the text of the plain loop under the same grammar, whatever is
drafted, beside requests without a form."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from engine.asking import ASKED, GREEDY, Asked, prompts, rows_of, tokens_of
from engine.drafters import Coupled, Drawing, Scripted, near
from foresay import Draft, DraftBatch, SamplingParams, StructuredOutputs
from foresay.budget.policy import Fixed
from foresay.drafters import (
    GrammarDrafter,
    MergeDrafter,
    NgramDrafter,
    RecycleDrafter,
    SuffixDrafter,
)
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import plain
from foresay.engine.proposal import Proposal
from foresay.engine.structured import with_forms
from foresay.errors import InputError, LogitsError
from foresay.models.target import Target
from structured.words import END, FORMS, WORDS, grammars

STOPS = (END,)


def asked_of(count: int, seed: int = 0) -> Asked:
    """Requests with and without a form, mixed."""
    forms = [*FORMS, None, None]
    return [
        (prompt, replace(ASKED[at % len(ASKED)], max_tokens=60, structured_outputs=form))
        for at, prompt in enumerate(prompts(count, seed=seed))
        for form in [forms[(at + seed) % len(forms)]]
    ]


def wanted(target: Target, asked: Asked, stops: tuple[int, ...] = STOPS) -> list[list[int]]:
    """What the plain loop answers under the same grammars."""
    texts = list[list[int]]()
    for seed, (prompt, params) in enumerate(asked):
        form = params.structured_outputs
        grammar = None if form is None else grammars().compile(form)
        texts.append(plain(rows_of(target), prompt, params, seed, stops, grammar))
    return texts


def engine_of(target: Target, drafter: Any = None, policy: Any = "fixed", **given: Any) -> Engine:
    return Engine(target, drafter, policy=policy, grammars=grammars(), **given)


def answered(engine: Engine, asked: Asked, stops: tuple[int, ...] = STOPS) -> list[Any]:
    requests = [
        engine.add(prompt, params, seed=seed, stops=stops)
        for seed, (prompt, params) in enumerate(asked)
    ]
    engine.run()
    engine.check_integrity()
    return requests


def scripted(target: Target, asked: Asked, wrong: float, seed: int = 0) -> Scripted:
    texts = {tuple(p): text for (p, _), text in zip(asked, wanted(target, asked), strict=True)}
    return Scripted(texts, wrong, seed=seed)


DRAFTERS: dict[str, Any] = {
    "none": lambda target, asked: None,
    "right": lambda target, asked: scripted(target, asked, 0.0),
    "trees": lambda target, asked: scripted(target, asked, 0.4),
    "mostly wrong": lambda target, asked: scripted(target, asked, 0.9, 1),
    "coupled": lambda target, asked: Coupled(near(rows_of(target), 0.5)),
    "suffix": lambda target, asked: SuffixDrafter(),
    "suffix in chains": lambda target, asked: SuffixDrafter(chain=True),
    "merge": lambda target, asked: MergeDrafter(SuffixDrafter(), NgramDrafter()),
    "recycle": lambda target, asked: RecycleDrafter(),
    "grammar": lambda target, asked: GrammarDrafter(),
    "grammar beside suffix": lambda target, asked: MergeDrafter(SuffixDrafter(), GrammarDrafter()),
}


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_same_texts(target: Target, name: str) -> None:
    count = 9 if name == "coupled" else 18  # each of its drafts is a run of the model
    asked = asked_of(count, seed=len(name))
    requests = answered(engine_of(target, DRAFTERS[name](target, asked)), asked)
    assert [request.error for request in requests] == [None] * count
    assert tokens_of(requests) == wanted(target, asked)
    assert {request.finish_reason for request in requests} <= {"stop", "length"}
    if name in ("right", "trees", "grammar"):
        formed = [r for r in requests if r.params.structured_outputs is not None]
        assert sum(r.stats.accepted for r in formed) > len(formed)


@pytest.mark.parametrize("seed", range(4))
def test_while_requests_wait_and_are_preempted(target: Target, seed: int) -> None:
    asked = asked_of(14, seed=seed)
    memory = 12 * PAGE * target.bytes_per_token
    engine = engine_of(
        target, scripted(target, asked, 0.3), memory=memory, max_running=5, max_rows=40
    )
    assert tokens_of(answered(engine, asked)) == wanted(target, asked)


def test_with_the_adaptive_policy_and_replaced_weights(target: Target) -> None:
    asked = asked_of(9, seed=5)
    engine = engine_of(target, SuffixDrafter(), "adaptive")
    requests = [engine.add(p, params, seed=s, stops=STOPS) for s, (p, params) in enumerate(asked)]
    for _ in range(4):
        engine.step()
    engine._computed_with -= 1  # as after `replace_weights`: all is computed again
    engine.run()
    assert tokens_of(requests) == wanted(target, asked)


def test_a_finished_answer_has_its_form(target: Target) -> None:
    params = replace(GREEDY, max_tokens=120, temperature=1.0)
    asked = [
        (prompt, replace(params, structured_outputs=form))
        for prompt, form in zip(prompts(len(FORMS)), FORMS, strict=True)
    ]
    for request in answered(engine_of(target), asked):
        form = request.params.structured_outputs
        assert form is not None
        matcher = grammars().compile(form).matcher(STOPS)
        told = [token for token in request.token_ids if token not in STOPS]
        assert all(matcher.advance(token) for token in told)
        assert matcher.accepts or request.finish_reason == "length" or matcher.free


def test_it_ends_where_the_form_ends(target: Target) -> None:
    """Without a token of its own for that, also if the ends of the model are ignored, or are not
    allowed yet."""
    params = replace(GREEDY, structured_outputs=StructuredOutputs(choice=["yes"]), max_tokens=9)
    for stops, least in ((STOPS, 0), ((), 0), (STOPS, 9)):
        asked = [([5, 6, 7], replace(params, min_tokens=least))]
        for drafter in (None, Scripted({(5, 6, 7): [*WORDS.encode("yes"), 9, 9]}, 0.0)):
            (request,) = answered(engine_of(target, drafter), asked, stops)
            assert request.finish_reason == "stop" and request.error is None
            assert WORDS.decode(request.token_ids) == "yes"


def test_a_stop_within_the_form_ends_the_answer(target: Target) -> None:
    form = StructuredOutputs(regex="ab(x|y)")
    (own,) = WORDS.encode("ab")
    params = replace(GREEDY, structured_outputs=form, stop=[own])
    (request,) = answered(engine_of(target), [([5, 6], params)])
    assert (request.finish_reason, request.token_ids) == ("stop", [own])
    (request,) = answered(engine_of(target), [([5, 6], replace(params, stop=(), max_tokens=1))])
    assert (request.finish_reason, request.token_ids) == ("length", [own])


def test_illegal_drafts_cost_no_budget(target: Target) -> None:
    """The policy never sees them; drafts of others and sampled ones stay whole."""
    engine = engine_of(target, None)
    params = replace(GREEDY, structured_outputs=StructuredOutputs(choice=["yes", "no"]))
    requests = [engine.add([5], params, stops=STOPS), engine.add([5], GREEDY, stops=STOPS)]
    (yes,), wrong = WORDS.encode("yes"), WORDS.encode("<")[0]
    draft = Draft([wrong, yes, wrong, wrong], [-1, -1, 0, 1])
    given = Proposal(DraftBatch.of([draft, draft]), known=np.array([True] * 6 + [False, True]))
    found = with_forms(requests, given, [4, 4])
    assert list(found.drafts) == [Draft([yes], [-1]), draft]
    assert found.known is not None and found.known.tolist() == [True] * 3 + [False, True]
    sampled = Proposal(given.drafts, {0: np.ones((4, 128), np.float32)})
    assert with_forms(requests, sampled, [4, 4]) is sampled


@pytest.mark.parametrize("seed", range(3))
def test_on_a_device_the_others_run_ahead(device: Any, seed: int) -> None:
    """A mask needs the token before it: a step with a structured request waits for that."""
    asked = asked_of(10, seed=seed)
    engine = engine_of(device, SuffixDrafter() if seed else None, "none")
    requests = answered(engine, asked)
    assert tokens_of(requests) == wanted(device.target, asked)
    assert not any(r.foreseeable for r in requests if r.params.structured_outputs is not None)
    before = device.ahead
    answered(engine, [(prompt, GREEDY) for prompt, _ in asked])
    assert device.ahead > before


def test_rejection_keeps_to_the_form(target: Target) -> None:
    """Sampled drafts are not cut, and what the form forbids has no chance."""
    asked = [(p, replace(params, rule="rejection")) for p, params in asked_of(9, seed=1)]
    for drafter in (Drawing(near(rows_of(target), 1.0)), scripted(target, asked_of(9, 1), 0.3)):
        for request in answered(engine_of(target, drafter), asked):
            assert request.error is None
            form = request.params.structured_outputs
            if form is not None:
                matcher = grammars().compile(form).matcher(STOPS)
                told = [token for token in request.token_ids if token not in STOPS]
                assert all(matcher.advance(token) for token in told)


def test_sampled_drafts_of_forms_are_verified(target: Target) -> None:
    """Beside those of requests without a form, in one batch: neither is given up."""
    asked = [(p, replace(params, rule="rejection")) for p, params in asked_of(9, seed=1)]
    requests = answered(engine_of(target, Drawing(near(rows_of(target), 0.5))), asked)
    assert [request.error for request in requests] == [None] * len(asked)
    with_form = [r for r in requests if r.params.structured_outputs is not None]
    without = [r for r in requests if r.params.structured_outputs is None]
    assert all(sum(r.stats.drafted for r in some) > len(some) for some in (with_form, without))


def test_a_request_that_fails_harms_no_other(target: Target) -> None:
    bias = dict.fromkeys(range(128), -np.inf)
    form = StructuredOutputs(regex="x+")
    lost = replace(GREEDY, structured_outputs=form, logit_bias=bias)
    asked = [([5, 6], lost), ([7], replace(GREEDY, structured_outputs=form)), ([8, 9], GREEDY)]
    requests = answered(engine_of(target, SuffixDrafter()), asked)
    assert isinstance(requests[0].error, LogitsError) and "forbidden" in str(requests[0].error)
    alone = answered(engine_of(target), asked[1:])
    assert tokens_of(requests[1:]) == tokens_of(alone) and alone[0].error is None


class _Tires:
    """The library's matcher, which takes too much work behind these tokens, or for a mask."""

    def __init__(self, inner: Any, beyond: list[int], mask: bool) -> None:
        self._inner, self._beyond, self._mask = inner, beyond, mask
        self._path, self._over = list[int](), False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deep_copy(self) -> _Tires:
        made = _Tires(self._inner.deep_copy(), self._beyond, self._mask)
        made._path, made._over = [*self._path], self._over
        return made

    def _there(self) -> bool:
        return self._path[-len(self._beyond) :] == self._beyond

    def try_consume_tokens(self, tokens: list[int]) -> int:
        for count, token in enumerate(tokens):
            self._path.append(token)
            over = self._there() and not self._mask
            if self._over or over or self._inner.try_consume_tokens([token]) < 1:
                self._over |= over
                self._path.pop()
                return count
        return len(tokens)

    def rollback(self, tokens: int) -> None:
        del self._path[len(self._path) - tokens :]
        if not self._over:
            self._inner.rollback(tokens)

    def compute_bitmask(self) -> Any:
        # Where one text is forced, that is the library's mask: it does no more work for it.
        self._over |= self._mask and self._there() and not self._inner.compute_ff_tokens()
        return self._inner.compute_bitmask()

    def compute_ff_tokens(self) -> list[int]:
        found: list[int] = [] if self._over else self._inner.compute_ff_tokens()
        return found

    def is_stopped(self) -> bool:
        return self._over or bool(self._inner.is_stopped())

    def is_error(self) -> bool:
        return self._over

    def get_error(self) -> str:
        return "too much"


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_too_much_work_where_only_a_draft_goes_harms_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch, mask: bool, greedy: bool
) -> None:
    """And where the answer goes it fails there, with the same tokens before as without drafts."""
    (ab,), (x,) = WORDS.encode("ab"), WORDS.encode("x")
    params = replace(GREEDY if greedy else ASKED[1], logprobs=None, max_tokens=40)
    params = replace(params, structured_outputs=StructuredOutputs(regex="(ab|x){30}y"))
    asked = [(prompt, params) for prompt in prompts(8, seed=3)]
    right = wanted(target, asked)
    texts = {tuple(p): text for (p, _), text in zip(asked, right, strict=True)}
    found = list[Any]()
    for drafter in (None, Scripted(texts, 0.5, seed=1), GrammarDrafter()):
        engine = engine_of(target, drafter)
        requests = [engine.add(p, params, seed=s, stops=STOPS) for s, (p, _) in enumerate(asked)]
        for request in requests:
            assert request.matcher is not None
            grammar = copy(request.matcher.grammar)
            tires = partial(_Tires, beyond=[x, ab, x], mask=mask)
            renew = type(grammar).renew.__get__(grammar)
            monkeypatch.setattr(grammar, "renew", lambda r=renew, t=tires: t(r()))
            request.matcher.grammar = grammar
            request.matcher._inner = tires(request.matcher._inner)  # type: ignore[assignment]
            begin = type(grammar).beginning.__get__(grammar)
            monkeypatch.setattr(grammar, "beginning", lambda b=begin, t=tires: t(b()))
            request.matcher._kept = request.matcher._inner.deep_copy()
        engine.run()
        engine.check_integrity()
        found.append([(r.token_ids, str(r.error)) for r in requests])
    assert found[1] == found[0] and found[2] == found[0]
    assert [said for _, said in found[0]] != ["None"] * 8


def test_a_form_that_cannot_be_followed_to_where_it_was_fails_alone(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a draft of one request: not the step of all."""
    params = replace(GREEDY, structured_outputs=StructuredOutputs(regex="(ab|x){30}y"))
    asked = [([5, 6], params), ([7], GREEDY)]
    right = wanted(target, asked)
    (ab,), (x,) = WORDS.encode("ab"), WORDS.encode("x")
    wrong = x if right[0][6] == ab else ab
    texts = {(5, 6): [*right[0][:6], wrong, *right[0][7:]], (7,): right[1]}
    engine = engine_of(target, Scripted(texts, 0.0), Fixed(k=3))
    requests = [engine.add(p, params, seed=s, stops=STOPS) for s, (p, params) in enumerate(asked)]
    engine.step()
    matcher = requests[0].matcher
    assert matcher is not None
    matcher.grammar = copy(matcher.grammar)
    begun: Any = matcher._inner
    matcher._inner = _Tires(begun, [wrong], mask=False)  # type: ignore[assignment]
    lost = _Tires(begun.deep_copy(), [], mask=False)
    lost._over = True
    matcher._kept = lost  # type: ignore[assignment]
    monkeypatch.setattr(matcher.grammar, "renew", lambda: lost)
    engine.run()
    engine.check_integrity()
    assert "cannot be followed further" in str(requests[0].error)
    assert requests[0].token_ids == right[0][:4] and requests[1].token_ids == right[1]


def test_an_engine_without_grammars_refuses(target: Target) -> None:
    form = SamplingParams(structured_outputs=StructuredOutputs(regex="x"))
    with pytest.raises(InputError, match="an engine without grammars"):
        Engine(target, None, policy=Fixed()).add([5], form)
    with pytest.raises(InputError, match="unclosed group"):
        wrong = StructuredOutputs(regex="(x")
        engine_of(target).add([5], replace(form, structured_outputs=wrong))
