"""Text that a form forces, as drafts: between and behind those of any drafter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.asking import GREEDY, prompts, tokens_of
from engine.test_structured import STOPS, answered, asked_of, engine_of, scripted, wanted
from foresay import Draft, DraftBatch, StructuredOutputs, Verdict, VerdictBatch
from foresay.drafter import Source
from foresay.drafters import GrammarDrafter, MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.proposal import Completion, Proposal
from foresay.engine.structured import with_forms
from foresay.models.target import Target
from foresay.verdict import TopK
from structured.words import WORDS

FORM = StructuredOutputs(regex=r"\(name: (ab|xy)+, yes: (true|false)\)")


def ids(text: str) -> list[int]:
    return WORDS.encode(text)


def text_of(draft: Draft) -> str:
    return WORDS.decode(draft.tokens.tolist())


def proposed(target: Target, draft: Draft, budget: int = 30, behind: str = "") -> Proposal:
    """What becomes of a draft of an answer that has been written up to here, beside one without a
    form."""
    engine = engine_of(target)
    formed = engine.add([5, 6], replace(GREEDY, structured_outputs=FORM), stops=STOPS)
    assert formed.matcher is not None and formed.matcher.follow(ids(behind))
    requests = [engine.add([5], GREEDY), formed]
    return with_forms(requests, Proposal(DraftBatch.of([draft, draft])), [len(draft), budget])


def test_the_forced_text_is_drafted_where_there_is_one(target: Target) -> None:
    for behind, text in (("", "(name: "), ("(name: ab", ""), ("(name: ab,", " yes: ")):
        found = proposed(target, Draft.empty(), behind=behind).drafts[1]
        assert text_of(found) == text
        assert found.parents.tolist() == list(range(-1, len(found) - 1))
    assert len(proposed(target, Draft.empty(), 3).drafts[1]) == 3
    assert not len(proposed(target, Draft.empty(), 0).drafts[1])


def test_between_and_behind_the_nodes_of_another(target: Target) -> None:
    lead, (ab,), (comma,), (wrong,) = ids("(name: "), ids("ab"), ids(","), ids("<")
    chain, last = [*lead, ab, wrong, comma], len(lead)
    parents = [*range(-1, last), last, last]
    scores = (0.9 ** np.arange(1, len(chain) + 1)).astype(np.float32)
    given = Draft(chain, parents, scores)
    found = proposed(target, given)
    assert found.drafts[0] == given
    draft, completion = found.drafts[1], found.completion
    assert text_of(draft) == "(name: ab, yes: " and wrong not in draft.tokens.tolist()
    assert completion is not None and draft.scores is not None
    own = completion.own[len(given) :].tolist()
    assert own == [*range(last), last, last + 2, *[-1] * (len(draft) - last - 2)]
    assert (draft.scores[:last] == 1).all()  # what is forced always comes
    assert draft.scores[last] == pytest.approx(0.9)
    assert draft.scores[last + 1] == pytest.approx(0.9 * 0.81)
    assert (draft.scores[last + 2 :] == draft.scores[last + 1]).all()
    assert len(proposed(target, given, 4).drafts[1]) == 4


def test_a_draft_without_scores_has_none_later(target: Target) -> None:
    (ab,), (wrong,) = ids("ab"), ids("<")
    found = proposed(target, Draft([wrong, ab], [-1, -1]), behind="(name: ")
    assert found.drafts.scores is None
    assert text_of(found.drafts[1]) == "ab"


def test_a_drafter_is_told_in_its_own_numbers() -> None:
    """Of its nodes up to the first that a form has added; with the rows of its own nodes."""
    given = np.array([0, 2, 5], np.int32)  # the second one has lost its first node, and got two
    offsets = np.array([0, 2, 6], np.int32)
    own = np.array([0, 1, 1, -1, -1, 2], np.int32)
    completion = Completion(given, offsets, own, own < 0)
    topk = TopK(np.arange(8, dtype=np.int32)[:, None], np.zeros((8, 1), np.float32))
    rows = np.array([0, 3, 8], np.int32)
    verdicts = VerdictBatch.of([Verdict([0, 1], [5, 6, 7]), Verdict([0, 1, 3], [1, 2, 3, 4])])
    seen = VerdictBatch._trusted(
        *(verdicts.tokens, verdicts.offsets, verdicts.path, verdicts.path_offsets), topk, rows
    )
    whole, told = completion.numbered(seen)
    assert [one.path.tolist() for one in whole] == [[0, 1], [1, -1, 2]]
    assert [one.path.tolist() for one in told] == [[0, 1], [1]]
    assert [one.tokens.tolist() for one in told] == [[5, 6, 7], [1, 2, 3, 4]]
    assert told.topk_offsets is not None and told.topk_offsets.tolist() == [0, 3, 7]
    assert told.topk is not None and told.topk.tokens[:, 0].tolist() == [0, 1, 2, 3, -1, 4, 7]


@pytest.mark.parametrize("drafter", ["grammar", "suffix", "merge", "trees"])
def test_what_is_forced_always_comes(
    target: Target, drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the node above is accepted: so its chance is 1."""
    asked = asked_of(18, seed=2)
    makes: dict[str, Any] = {
        "grammar": GrammarDrafter,
        "suffix": SuffixDrafter,
        "merge": lambda: MergeDrafter(SuffixDrafter(), NgramDrafter()),
        "trees": lambda: scripted(target, asked, 0.4),
    }
    tried = [0]
    commit = Engine._commit

    def committed(engine: Engine, step: Any, outcome: Any) -> VerdictBatch:
        verdicts = commit(engine, step, outcome)
        completion = step.completion
        for at, verdict in enumerate(verdicts if completion is not None else ()):
            draft, begin = step.chosen.proposal[at], step.chosen.proposal.offsets[at]
            places = {-1: 0} | {node: depth for depth, node in enumerate(verdict.path.tolist(), 1)}
            for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
                forced = completion.forced[begin + node] and step.chosen.keep[begin + node]
                if forced and places.get(parent, len(verdict.tokens)) < len(verdict.tokens):
                    tried[0] += 1
                    assert verdict.tokens[places[parent]] == token
        return verdicts

    monkeypatch.setattr(Engine, "_commit", committed)
    requests = answered(engine_of(target, makes[drafter]()), asked)
    assert tokens_of(requests) == wanted(target, asked) and tried[0] > 20


def test_where_its_tokens_come_from(target: Target) -> None:
    asked = [(p, replace(GREEDY, structured_outputs=FORM, max_tokens=40)) for p in prompts(4)]
    for drafter, others in ((GrammarDrafter(), set()), (SuffixDrafter(), {Source.OWN})):
        requests = answered(engine_of(target, drafter, with_sources=True), asked)
        assert tokens_of(requests) == wanted(target, asked)
        for request in requests:
            assert len(request.sources) == len(request.token_ids)
            # The name and what is behind it; the suffix drafter has nothing of it at the beginning.
            assert request.sources[: len(ids("(name: "))] == [Source.GRAMMAR] * len(ids("(name: "))
            assert {Source.MODEL, Source.GRAMMAR} <= set(request.sources)
            assert set(request.sources) <= {Source.MODEL, Source.GRAMMAR} | others


def test_an_answer_without_drafts_gets_none(target: Target) -> None:
    params = replace(GREEDY, structured_outputs=FORM, max_tokens=40)
    asked = [([5, 6, 7], replace(params, speculative=False)), ([5, 6, 8], params)]
    plainly, drafting = answered(engine_of(target, SuffixDrafter()), asked)
    assert plainly.stats.drafted == 0 < drafting.stats.drafted
    for policy in ("none", "fixed"):
        (request,) = answered(engine_of(target, None, policy), asked[1:])
        assert request.stats.drafted == 0
