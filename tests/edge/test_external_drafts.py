"""Drafts from outside in the server's tree: they change the speed, and never the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.asking import STOPS, prompts, wanted
from engine.drafters import Recycling
from explore import examples
from foresay import Draft, SamplingParams, Verdict
from foresay.abilities import abilities_of
from foresay.draft import DraftBatch
from foresay.drafter import ExternalDraft, Source
from foresay.drafters import MergeDrafter, NgramDrafter, RecycleDrafter, SuffixDrafter
from foresay.drafters.external import hash_after
from foresay.drafters.lineup import with_external_drafts
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.errors import StateError
from foresay.models.target import Target
from models import zoo
from models.quick import quick_target

pytestmark = pytest.mark.filterwarnings("error")  # a drafter that is given up warns

OWN: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "suffix": SuffixDrafter,
    "ngram": NgramDrafter,
    "recycle": RecycleDrafter,
    "merge": lambda: MergeDrafter(SuffixDrafter(), NgramDrafter()),
    "merge with recycle": lambda: MergeDrafter(SuffixDrafter(), RecycleDrafter()),
    "numbering": Recycling,
}
TEXTS = prompts(3, seed=11)


def strict(own: Any) -> Any:
    """It checks what is proposed."""
    drafter: Any = with_external_drafts(own)
    propose = drafter.propose

    def checked(states: Sequence[Any], budgets: Sequence[int], /) -> Sequence[Draft]:
        drafts = propose(states, budgets)
        DraftBatch.of(drafts).check()
        for draft, budget in zip(drafts, budgets, strict=True):
            check(draft, budget)
        return drafts  # type: ignore[no-any-return]

    drafter.propose = checked
    return drafter


def check(draft: Draft, budget: int) -> None:
    assert len(draft) <= budget
    nodes = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    assert len(set(nodes)) == len(nodes), "a sibling is there twice"
    assert all(-1 <= parent < at for at, (parent, _) in enumerate(nodes))
    if draft.scores is not None:
        scores = draft.scores.tolist()
        for at, (parent, _) in enumerate(nodes):
            assert 0 <= scores[at] <= (scores[parent] if parent >= 0 else 1.0)


@pytest.fixture(scope="module")
def target() -> Target:
    return quick_target(seed=3)  # of its answers some are stopped, some are as long as they may be


@pytest.fixture(scope="module")
def known(target: Target) -> dict[float, list[list[int]]]:
    """The answers of the plain loop, by temperature."""
    return {
        heat: wanted(target, [(p, SamplingParams(temperature=heat, max_tokens=24)) for p in TEXTS])
        for heat in (0.0, 0.8)
    }


def some_offer(draw: np.random.Generator, request: Request, answer: list[int]) -> ExternalDraft:
    """Right, wrong, late, ahead, foreign: a tree along the answer, spoiled here and there."""
    prompt = request.prompt.tolist()
    done = int(np.clip(len(request.token_ids) + draw.integers(-3, 6), 0, len(answer)))
    tokens, parents, above = list[int](), list[int](), -1
    for token in answer[done : done + int(draw.integers(0, 12))]:
        for _ in range(int(draw.integers(0, 3))):
            tokens.append(int(draw.integers(zoo.VOCABULARY)))
            parents.append(
                int(draw.integers(-1, len(tokens) - 1)) if draw.random() < 0.5 else above
            )
        tokens.append(token if draw.random() < 0.9 else int(draw.integers(zoo.VOCABULARY)))
        parents.append(above)
        above = len(tokens) - 1
    prefix = hash_after([*prompt, *answer[:done]])
    if draw.random() < 0.2:
        prefix = int(draw.integers(2**32))
    return ExternalDraft(len(prompt) + done, prefix, Draft(tokens, parents))


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("name", list(OWN))
@examples(4)
@given(seed=st.integers(0, 2**32 - 1), policy=st.sampled_from(["fixed", "none"]))
def test_whatever_is_offered_the_text_is_the_same(
    target: Target,
    known: dict[float, list[list[int]]],
    name: str,
    heat: float,
    seed: int,
    policy: str,
) -> None:
    draw, own = np.random.default_rng(seed), OWN[name]()
    drafter = strict(own)
    engine = Engine(target, drafter, policy=policy, with_sources=True)
    params = SamplingParams(temperature=heat, max_tokens=24)
    requests = [engine.add(p, params, seed=n, stops=STOPS) for n, p in enumerate(TEXTS)]
    offered = list[ExternalDraft]()
    while engine.busy:
        for at in (0, 1):  # the last one gets none
            if requests[at].finished:
                continue
            for _ in range(int(draw.integers(0, 4))):
                offer = some_offer(draw, requests[at], known[heat][at])
                offered.append(offer)
                engine.add_external_draft(requests[at], offer)
                if draw.random() < 0.3:  # again, or that of another text
                    engine.add_external_draft(
                        requests[at], offered[int(draw.integers(len(offered)))]
                    )
        engine.step()
        for request in requests:
            if request.begun and name not in ("none", "numbering"):
                assert drafter.text(request.state).tolist() == request.tokens.tolist()
    assert [request.token_ids for request in requests] == known[heat]
    if isinstance(own, Recycling):
        for _, draft, verdict in own.told:
            path = verdict.path.tolist()
            assert draft.tokens[path].tolist() == verdict.tokens[: len(path)].tolist()
            assert draft.parents[path].tolist() == [-1, *path][:-1] or not path


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("ahead", [False, True])
def test_right_offers_are_used(
    target: Target, known: dict[float, list[list[int]]], heat: float, ahead: bool
) -> None:
    """Once, before anything began, or after each step: without them a token takes a step."""
    engine = Engine(target, strict(None), policy="fixed", with_sources=True)
    params = SamplingParams(temperature=heat, max_tokens=24)
    prompt, answer = TEXTS[1], known[heat][1]
    request = engine.add(prompt, params, seed=1, stops=STOPS)
    assert len(answer) > 12
    if ahead:  # in pieces that continue each other, the later ones first
        for first in reversed(range(0, len(answer), 5)):
            prefix = hash_after([*prompt, *answer[:first]])
            piece = Draft.chain(answer[first : first + 5])
            engine.add_external_draft(request, ExternalDraft(len(prompt) + first, prefix, piece))
    while engine.busy:
        if not ahead:
            done = len(request.token_ids)
            offer = ExternalDraft(
                len(request), hash_after(request.tokens), Draft.chain(answer[done:])
            )
            engine.add_external_draft(request, offer)
        engine.step()
    assert request.token_ids == answer
    assert request.stats.steps <= -(-len(answer) // 9) + 2  # fixed: 8 nodes in a step
    assert request.sources.count(Source.EDGE) == request.stats.accepted > len(answer) // 2


@pytest.mark.parametrize("name", ["suffix", "ngram", "merge"])
def test_who_has_no_offers_is_drafted_for_as_without_this_drafter(name: str) -> None:
    """Also beside one that has, from step 10 on: only the others are compared then. In a merge of
    several the weights learn from that one, too."""
    own: Any = OWN[name]()
    inside, outside = with_external_drafts(OWN[name]()), own
    texts = [np.array(p, np.int32) for p in TEXTS]
    mine, theirs = ([drafter.begin(text) for text in texts] for drafter in (inside, outside))
    takes = abilities_of(inside).external
    assert takes is not None
    draw = np.random.default_rng(3)
    mixed = 0
    for step in range(10 if name == "merge" else 30):
        if step >= 10:
            text = own.text(theirs[0])
            draft = ExternalDraft(len(text), hash_after(text), Draft.chain([3, 4]))
            assert takes.add_external_draft(mine[0], text, draft) == 2
        assert takes.has_external_draft(mine[0]) == (step >= 10)
        found, wanted_ = inside.propose(mine, [8] * 3), outside.propose(theirs, [8] * 3)
        for one, other in list(zip(found, wanted_, strict=True))[step >= 10 :]:
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.parents.tolist() == other.parents.tolist()
            if other.scores is not None:
                assert one.scores is not None and one.scores.tolist() == other.scores.tolist()
            mixed += step >= 10 and len(one) > 0
        tokens = [text[step % len(text)] for text in TEXTS]
        if draw.random() < 0.5:
            tokens = [tokens[0], 5, 6]
        verdicts = [Verdict([], [token]) for token in tokens]
        inside.observe(mine, verdicts)
        outside.observe(theirs, verdicts)
    assert mixed > 10 if name != "merge" else mixed == 0


def test_sources() -> None:
    drafter: Any = with_external_drafts(SuffixDrafter())
    text = np.array([1, 2, 3, 4, 1, 2], np.int32)
    state = drafter.begin(text)
    for tree in (Draft([3, 9], [-1, -1]), Draft([8], [-1])):
        drafter.add_external_draft(state, text, ExternalDraft(6, hash_after(text), tree))
    (draft,) = drafter.propose([state], [12])
    nodes = zip(draft.parents.tolist(), draft.tokens.tolist(), drafter.sources(state), strict=True)
    said = {token: its for parent, token, its in nodes if parent < 0}
    assert draft.tokens.tolist()[0] == 3 and Source.EDGE in said[3] and len(said[3]) == 2
    assert said[9] == said[8] == (Source.EDGE,)
    drafter.observe([state], [Verdict([0], [3, 7])])
    assert not drafter.has_external_draft(state)
    drafter.finish(state)
    with pytest.raises(StateError):
        drafter.has_external_draft(state)
