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
from foresay.draft import DraftBatch
from foresay.drafter import Offer, Source
from foresay.drafters import MergeDrafter, NgramDrafter, RecycleDrafter, SuffixDrafter
from foresay.edge.prefix import hash_after
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.errors import StateError
from foresay.models.target import Target
from foresay.serve.edge.offered import MAX_OFFERED, OfferedDrafter, Offers
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


class Strict(OfferedDrafter):
    """Checks what is proposed, and that the inner drafter knows the text."""

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> Sequence[Draft]:
        drafts = super().propose(states, budgets)
        batch = drafts if isinstance(drafts, DraftBatch) else DraftBatch.of(list(drafts))
        batch.check()
        for state, draft, budget in zip(states, drafts, budgets, strict=True):
            check(draft, budget)
            offers = state.offers
            if offers is not None:
                kept = sum(map(len, offers._places.values()))
                assert offers._size == kept <= MAX_OFFERED
                assert all(at >= offers._position for at, _ in offers._places)
        return drafts


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


def some_offer(draw: np.random.Generator, request: Request, answer: list[int]) -> Offer:
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
    return Offer(len(prompt) + done, prefix, Draft(tokens, parents))


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
    engine = Engine(target, Strict(own), policy=policy, with_sources=True)
    params = SamplingParams(temperature=heat, max_tokens=24)
    requests = [engine.add(p, params, seed=n, stops=STOPS) for n, p in enumerate(TEXTS)]
    offered = list[Offer]()
    while engine.busy:
        for at in (0, 1):  # the last one gets none
            if requests[at].finished:
                continue
            for _ in range(int(draw.integers(0, 4))):
                offer = some_offer(draw, requests[at], known[heat][at])
                offered.append(offer)
                engine.offer(requests[at], offer)
                if draw.random() < 0.3:  # again, or that of another text
                    engine.offer(requests[at], offered[int(draw.integers(len(offered)))])
        engine.step()
        for request in requests:
            if request.begun and hasattr(own, "text"):
                assert own.text(request.state.own).tolist() == request.tokens.tolist()
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
    engine = Engine(target, Strict(None), policy="fixed", with_sources=True)
    params = SamplingParams(temperature=heat, max_tokens=24)
    prompt, answer = TEXTS[1], known[heat][1]
    request = engine.add(prompt, params, seed=1, stops=STOPS)
    assert len(answer) > 12
    if ahead:  # in pieces that continue each other, the later ones first
        for first in reversed(range(0, len(answer), 5)):
            prefix = hash_after([*prompt, *answer[:first]])
            piece = Draft.chain(answer[first : first + 5])
            engine.offer(request, Offer(len(prompt) + first, prefix, piece))
    while engine.busy:
        if not ahead:
            done = len(request.token_ids)
            offer = Offer(len(request), hash_after(request.tokens), Draft.chain(answer[done:]))
            engine.offer(request, offer)
        engine.step()
    assert request.token_ids == answer
    assert request.stats.steps <= -(-len(answer) // 9) + 2  # fixed: 8 nodes in a step
    assert request.sources.count(Source.EDGE) == request.stats.accepted > len(answer) // 2


def twins(name: str) -> tuple[OfferedDrafter, Any, list[Any], list[Any]]:
    inside, outside = OfferedDrafter(OWN[name]()), OWN[name]()
    texts = [np.array(p, np.int32) for p in TEXTS]
    return (
        inside,
        outside,
        [inside.begin(text) for text in texts],
        [outside.begin(text) for text in texts],
    )


@pytest.mark.parametrize("name", ["suffix", "ngram", "merge"])
def test_who_has_no_offers_is_drafted_for_as_without_this_drafter(name: str) -> None:
    inside, outside, mine, theirs = twins(name)
    own: Any = inside._own
    draw = np.random.default_rng(3)
    mixed = 0
    for step in range(30):
        if step == 10:  # from here on the first one has offers, and only the others are compared
            inside.offer(mine[0], own.text(mine[0].own), Offer(0, 0, Draft.empty()))
        if step >= 10:
            text = own.text(mine[0].own)
            inside.offer(mine[0], text, Offer(len(text), hash_after(text), Draft.chain([3, 4])))
        found, given_ = inside.propose(mine, [8] * 3), outside.propose(theirs, [8] * 3)
        first = 0 if step < 10 else 1
        if step < 10:
            assert type(found) is type(given_)
        for one, other in list(zip(found, given_, strict=True))[first:]:
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
    assert mixed > 10


def test_sources() -> None:
    drafter = OfferedDrafter(SuffixDrafter())
    text = np.array([1, 2, 3, 4, 1, 2], np.int32)
    state = drafter.begin(text)
    for tree in (Draft([3, 9], [-1, -1]), Draft([8], [-1])):
        drafter.offer(state, text, Offer(6, hash_after(text), tree))
    (draft,) = drafter.propose([state], [8])
    said = drafter.sources(state)
    assert len(said) == len(draft) and draft.tokens.tolist()[:3] == [3, 9, 8]
    assert Source.EDGE in said[0] and len(said[0]) == 2  # both say it
    assert said[1] == said[2] == (Source.EDGE,)
    assert all(Source.EDGE not in its for its in said[3:]) and len(said) > 3
    drafter.observe([state], [Verdict([0], [3, 7])])
    assert not drafter.offered(state)
    drafter.finish(state)
    with pytest.raises(StateError):
        drafter.offered(state)
    with pytest.raises(AttributeError):
        OfferedDrafter(Recycling()).sources  # noqa: B018 - it says nothing of its own


Node = tuple[int, ...]


@examples(40)
@given(st.data())
def test_offers_are_the_tree_of_what_may_still_come(data: st.DataObject) -> None:
    """Against a set of whole texts."""
    tokens = st.integers(0, 2)
    text = tuple(data.draw(st.lists(tokens, min_size=1, max_size=3)))
    offers, nodes = Offers(list(text)), set[Node]()
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(0, 8))
            parents = [data.draw(st.integers(-1, at - 1)) for at in range(size)]
            drafted = [data.draw(tokens) for _ in range(size)]
            cut = data.draw(st.integers(0, len(text)))
            base = (
                text[:cut]
                if data.draw(st.booleans())
                else (*text, *data.draw(st.lists(tokens, max_size=3)))
            )
            paths = list[Node]()
            for token, parent in zip(drafted, parents, strict=True):
                above = base if parent < 0 else paths[parent]
                paths.append((*above, token))
                if len(above) > len(text) or above == text:
                    nodes.add(paths[-1])
            before = offers._size
            offer = Offer(len(base), hash_after(list(base)), Draft(drafted, parents))
            assert offers.add(offer) == offers._size - before
        else:
            new = tuple(data.draw(st.lists(tokens, min_size=1, max_size=3)))
            offers.advance(np.array(new, np.int32))
            text = (*text, *new)
        wanted_, level = set[Node](), {text}
        while level:
            level = {node for node in nodes if node[:-1] in level}
            wanted_ |= level
        found, seen = list[Node](), offers.tree(1000)
        for token, parent, _ in seen:
            found.append((*(text if parent < 0 else found[parent]), token))
        assert set(found) == wanted_ and len(found) == len(wanted_)
        assert offers.here == bool(wanted_)
        assert offers._size == sum(map(len, offers._places.values()))
        for most in (1, 2, 5):
            assert offers.tree(most) == seen[:most]


def test_no_more_nodes_than_a_bound() -> None:
    draw, offers = np.random.default_rng(1), Offers([1, 2])
    for _ in range(50):
        drafted = draw.integers(0, 1000, 255).tolist()
        offers.add(Offer(2, hash_after([1, 2]), Draft(drafted, [-1] * 255)))
        offers.add(Offer(9, int(draw.integers(2**32)), Draft.chain(drafted)))
    assert offers._size == sum(map(len, offers._places.values())) == MAX_OFFERED
    offers.advance(np.array([5] * 300, np.int32))
    assert offers._size == 0 and not offers._places


def test_wrong_drafts_do_not_take_the_room_of_later_ones() -> None:
    """64 tokens after each commit, none of them right: the next draft still has all its nodes."""
    text, offers = [1, 2], Offers([1, 2])
    for step in range(60):
        offers.add(Offer(len(text), hash_after(text), Draft.chain([step + 10] * 64)))
        offers.advance(np.array([3], np.int32))
        text.append(3)
        assert offers._size == 0
    assert offers.add(Offer(len(text), hash_after(text), Draft.chain([7] * 64))) == 64


def test_scores_follow_what_became_true() -> None:
    text, drafter = [1], OfferedDrafter(None)
    state = drafter.begin(np.array(text, np.int32))
    for right in (True, False):
        for _ in range(200):
            drafter.offer(state, text, Offer(len(text), hash_after(text), Draft.chain([4])))
            drafter.propose([state], [4])
            new = 4 if right else 5
            drafter.observe([state], [Verdict([0] if right else [], [4, 9] if right else [5])])
            text += [4, 9] if right else [new]
        drafter.offer(state, text, Offer(len(text), hash_after(text), Draft.chain([4, 4])))
        (draft,) = drafter.propose([state], [9])
        assert draft.scores is not None
        first, second = draft.scores.tolist()
        assert first > 0.9 if right else first < 0.1
        assert second == pytest.approx(first * first)
        drafter.observe([state], [Verdict([], [6])])
        text.append(6)


def test_a_node_that_both_have_has_the_servers_chance() -> None:
    class Half(NgramDrafter):
        def propose(self, states: Any, budgets: Any, /) -> DraftBatch:
            return DraftBatch.of([Draft.chain([4, 4], [0.5, 0.125])])

    drafter = OfferedDrafter(Half())
    state = drafter.begin(np.array([1], np.int32))
    drafter.offer(state, [1], Offer(1, hash_after([1]), Draft.chain([4, 4, 8])))
    (draft,) = drafter.propose([state], [9])
    assert draft.scores is not None
    assert draft.tokens.tolist() == [4, 4, 8]
    assert draft.scores.tolist() == pytest.approx([0.5, 0.125, 0.0625])
