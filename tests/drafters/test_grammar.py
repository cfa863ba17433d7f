"""Forced text as drafts: what a form leaves one way to write, also behind another's nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foresay import Draft, DraftBatch, SamplingParams, StructuredOutputs, Verdict
from foresay.drafter import SeededParams, Source
from foresay.drafters import GrammarDrafter, NgramDrafter, RecycleDrafter, SuffixDrafter
from foresay.errors import InputError
from foresay.structured.grammars import Grammars
from structured.words import END, WORDS, grammars

FORM = StructuredOutputs(regex=r"\(name: (ab|xy)+, yes: (true|false)\)")
PROMPT = np.array([1, 2, 3], np.int32)


def sampling(form: StructuredOutputs | None) -> SeededParams:
    return SeededParams(SamplingParams(structured_outputs=form), 1)


def ids(text: str) -> list[int]:
    return WORDS.encode(text)


class Told:
    """An inner drafter with one draft, which notes what it is told."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.verdicts = draft, list[Verdict]()
        self.wants = NgramDrafter().wants

    def begin(self, prompt: Any, /, **about: Any) -> Any:
        return object()

    def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
        return [self.draft for _ in states]

    def observe(self, states: Any, verdicts: Any, /) -> None:
        self.verdicts += verdicts

    def finish(self, state: Any, /) -> None: ...

    def sources(self, state: Any, /) -> list[tuple[Source, ...]]:
        return [(Source.OWN,)] * len(self.draft)


def begun(inner: Any = None) -> tuple[GrammarDrafter, Any]:
    drafter = GrammarDrafter(inner)
    drafter.use_grammars(grammars())
    grammars().compile(FORM)  # as the engine does before
    return drafter, drafter.begin(PROMPT, sampling=sampling(FORM))


def text_of(draft: Draft) -> str:
    return WORDS.decode(draft.tokens.tolist())


def test_the_forced_text_is_drafted_where_there_is_one() -> None:
    drafter, state = begun()
    (draft,) = drafter.propose([state], [16])
    assert text_of(draft) == "(name: " and draft.parents.tolist() == list(range(-1, len(draft) - 1))
    assert drafter.sources(state) == [(Source.GRAMMAR,)] * len(draft)
    (again,) = drafter.propose([state], [16])
    assert again == draft
    assert len(drafter.propose([state], [3])[0]) == 3 and not len(drafter.propose([state], [0])[0])
    drafter.observe([state], [Verdict([], ids("(name: ab"))])
    assert not len(drafter.propose([state], [16])[0])  # it may go on in several ways
    drafter.observe([state], [Verdict([], ids(","))])
    assert text_of(drafter.propose([state], [16])[0]) == " yes: "
    drafter.observe([state], [Verdict([], [*ids(" yes: true)"), END])])
    assert not len(drafter.propose([state], [16])[0])
    drafter.finish(state)


def test_between_and_behind_the_nodes_of_another() -> None:
    lead, (ab,), (comma,), (wrong,) = ids("(name: "), ids("ab"), ids(","), ids("<")
    chain, last = [*lead, ab, wrong, comma], len(lead)
    parents = [*range(-1, last), last, last]
    scores = (0.9 ** np.arange(1, len(chain) + 1)).astype(np.float32)
    inner = Told(Draft(chain, parents, scores))
    drafter, state = begun(inner)
    (draft,) = drafter.propose([state], [30])
    assert wrong not in draft.tokens.tolist()
    assert text_of(draft) == "(name: ab, yes: "
    said = drafter.sources(state)
    assert said[0] == (Source.OWN, Source.GRAMMAR) and said[last + 1] == (Source.OWN,)
    assert said[-1] == (Source.GRAMMAR,)
    assert draft.scores is not None and (np.diff(draft.scores) <= 0).all()
    (short,) = drafter.propose([state], [4])
    assert text_of(short) == "(name: "[: len(text_of(short))] and len(short) == 4


def test_the_inner_drafter_is_told_in_its_own_numbers() -> None:
    lead, (own,) = ids("(name: "), ids("<")
    inner = Told(Draft([own, lead[0]], [-1, -1]))
    drafter, state = begun(inner)
    (draft,) = drafter.propose([state], [30])
    assert draft.tokens.tolist() == lead
    drafter.observe([state], [Verdict([0, 1, 2], [*lead[:3], lead[3]])])
    assert inner.verdicts == [Verdict([1], lead[:4])]
    drafter.propose([state], [30])
    with pytest.raises(InputError, match="a path has node 99"):
        drafter.observe([state], [Verdict([99], [4, 5])])


def test_nothing_is_done_without_a_form() -> None:
    given = DraftBatch.of([Draft.chain([5, 6])])
    inner = Told(given[0])
    inner.propose = lambda states, budgets, /: given  # type: ignore[method-assign,assignment,return-value]
    drafter = GrammarDrafter(inner)
    drafter.use_grammars(grammars())
    state = drafter.begin(PROMPT, sampling=sampling(None))
    assert drafter.propose([state], [8]) is given
    unknown = GrammarDrafter(inner)  # of no tokenizer's grammars
    state = unknown.begin(PROMPT, sampling=sampling(FORM))
    assert unknown.propose([state], [8]) is given


def test_a_form_is_not_compiled_to_draft_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes time, and may be refused: a request must not fail for its drafts."""
    drafter, _ = begun()
    monkeypatch.setattr(Grammars, "compile", lambda *given: pytest.fail("it was compiled"))
    for form, drafts in ((FORM, True), (StructuredOutputs(regex="(x"), False)):
        state = drafter.begin(PROMPT, sampling=sampling(form))
        assert bool(len(drafter.propose([state], [8])[0])) == drafts
        drafter.finish(state)


def test_forced_tokens_are_worth_what_they_were_worth() -> None:
    drafter, state = begun()

    def first_score() -> float:
        (draft,) = drafter.propose([state], [8])
        assert draft.scores is not None
        return float(draft.scores[0])

    before = first_score()
    drafter.observe([state], [Verdict([0, 1], ids("(name:")[:3])])
    right = first_score()
    assert right > before
    drafter.observe([state], [Verdict([], ids("<"))])  # the target wrote something else
    other = drafter.begin(PROMPT, sampling=sampling(FORM))
    state = other
    assert first_score() < right


def test_what_the_inner_drafter_can_do_it_can_do() -> None:
    drafter = GrammarDrafter(SuffixDrafter(history=True))
    state = drafter.begin(PROMPT, group="g", tenant="t", sampling=sampling(FORM))
    assert drafter.text(state).tolist() == PROMPT.tolist() and drafter.bytes_used() > 0
    assert drafter.looks_up
    drafter.finish(state)
    drafter.drop_group("g", "t")
    with pytest.raises(InputError, match="the inner drafter wants"):
        GrammarDrafter(RecycleDrafter())
