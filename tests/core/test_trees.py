"""Draft trees: their shape, their scores, and where their tokens come from."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.brute import int32s
from core.frozen_files import corpus_of
from core.texts import Texts
from explore import tries
from foresay import Draft, DraftBatch, Verdict
from foresay.drafters import CorpusDrafter, SuffixDrafter

BUDGETS = (0, 1, 2, 3, 5, 8, 16, 33, 64, 200)
Rule = Literal["blend", "sam"]


def prose(rng: random.Random, length: int, words: int) -> list[int]:
    """Text that repeats itself now and then."""
    text: list[int] = []
    while len(text) < length:
        if text and rng.random() < 0.3:
            at = rng.randrange(len(text))
            text += text[at : at + rng.randrange(1, 20)]
        else:
            text.append(rng.randrange(words))
    return text[:length]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(3)
    path = tmp_path_factory.mktemp("trees") / "prose.foresay"
    return corpus_of(path, *(prose(rng, 200, 30) for _ in range(20)))


def check_tree(draft: Draft, budget: int) -> None:
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    assert len(tokens) == len(parents) <= budget
    assert all(-1 <= parent < node for node, parent in enumerate(parents)), "parents come first"
    pairs = list(zip(parents, tokens, strict=True))
    assert len(set(pairs)) == len(pairs), "two siblings have the same token"
    if draft.scores is not None:
        scores = draft.scores
        assert np.isfinite(scores).all() and (scores >= 0).all() and (scores <= 1).all()
        # Best first: each next node is at most as likely, so the first n are a tree as well.
        assert (np.diff(scores) <= 0).all()


def check_batch(drafts: DraftBatch, budgets: list[int]) -> None:
    assert len(drafts) == len(budgets)
    for draft, budget in zip(drafts, budgets, strict=True):
        check_tree(draft, budget)
    # Through the validating constructor, and apart and together again.
    again = DraftBatch(drafts.tokens, drafts.parents, drafts.offsets, drafts.scores)
    assert again == drafts == DraftBatch.of(list(drafts))
    assert [d.tokens.tolist() for d in again] == [d.tokens.tolist() for d in drafts]


@pytest.mark.parametrize("chain", [False, True], ids=["trees", "chains"])
@pytest.mark.parametrize("rule", ["blend", "sam"])
@pytest.mark.parametrize("words", [1, 3, 30, 3000])
def test_shape(corpus: Path, chain: bool, rule: Rule, words: int) -> None:
    """A dozen requests with groups, history and a corpus, step by step."""
    rng = random.Random(words)
    drafter = SuffixDrafter(corpus=corpus, chain=chain, rule=rule)
    for _ in range(2):
        states = [
            drafter.begin(
                int32s(prose(rng, rng.randrange(1, 150), words)), group=rng.choice([None, "g"])
            )
            for _ in range(12)
        ]
        for _ in range(10):
            budgets = [rng.choice(BUDGETS) for _ in states]
            drafts = drafter.propose(states, budgets)
            check_batch(drafts, budgets)
            assert drafts == drafter.propose(states, budgets), "proposing is repeatable"
            if chain or rule == "sam":
                for draft in drafts:
                    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
            drafter.observe(
                states, [Verdict([], prose(rng, rng.randrange(1, 4), words)) for _ in states]
            )
        for state in states:
            drafter.finish(state)


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    more=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    budget=st.sampled_from(BUDGETS),
    chain=st.booleans(),
)
@settings(max_examples=tries(60))
def test_shape_after_anything(text: list[int], more: list[int], budget: int, chain: bool) -> None:
    drafter = SuffixDrafter(chain=chain)
    one, two = (drafter.begin(int32s(text), group="g") for _ in range(2))
    for token in more:
        check_batch(drafter.propose([one, two], [budget, budget]), [budget] * 2)
        drafter.observe([one], [Verdict([], [token])])
    assert set(drafter.propose([two], [budget])[0].tokens.tolist()) <= {*text, *more}
    drafter.check_integrity()


def test_a_budget_of_zero_comes_first() -> None:
    """Before anything has been grown there is nothing to look back at."""
    for chain in (False, True):
        drafter = SuffixDrafter(chain=chain)
        states = [drafter.begin(int32s([1, 2, 1])) for _ in range(9)]
        assert [len(draft) for draft in drafter.propose(states, [0] * 9)] == [0] * 9


def test_the_largest_tree_and_the_deepest_chain() -> None:
    for chain in (False, True):
        drafter = SuffixDrafter(chain=chain)
        state = drafter.begin(np.ones(30_000, np.int32))
        draft = drafter.propose([state], [4096])[0]
        check_tree(draft, 4096)
        assert len(draft) > 100 and set(draft.tokens.tolist()) == {1}


def test_asking_for_less_loses_nothing() -> None:
    """The tree of n nodes is mostly, not always, the first n nodes of a larger one.

    Evidence that seems too weak for the room that is left is passed over, by a bound
    with some slack, and less room means a tighter bound. What holds always is that the first n
    nodes of any tree are a tree; what must hold nearly is that asking for less loses nothing. Nor
    are the scores of one path always the same: with less room fewer of the usual tokens are looked
    at, which for several sources is evidence as well.
    """
    rng = random.Random(8)
    same = trees = 0
    small_sum = large_sum = 0.0
    for _ in range(120):
        drafter = Texts()
        for _ in range(3):
            drafter.write(prose(rng, 30, 20), prose(rng, 40, 20), group="g")
        state = drafter.begin(int32s(prose(rng, 120, 20)), group="g")
        large = drafter.propose([state], [64])[0]
        assert large.scores is not None
        for budget in (1, 2, 4, 8, 16, 32):
            small = drafter.propose([state], [budget])[0]
            assert small.scores is not None and len(small) == min(budget, len(large))
            n = len(small)
            trees += 1
            same += bool(
                np.array_equal(small.tokens, large.tokens[:n])
                and np.array_equal(small.parents, large.parents[:n])
            )
            small_sum += float(small.scores.sum())
            large_sum += float(large.scores[:n].sum())
    assert same >= 0.5 * trees
    assert 0.9 * large_sum <= small_sum <= 1.1 * large_sum


def test_the_likeliest_continuations_are_kept() -> None:
    """With room for 16 nodes or more everything that may follow the text is looked at, so a tree
    has what a larger one has, as far as it is likelier than the tree's own last node; in the same
    order, also where scores are equal. Few nodes and many are queued in different ways.
    """
    rng = random.Random(5)
    left_out = equal = 0
    for _ in range(60):
        drafter = SuffixDrafter(history=False)
        state = drafter.begin(int32s(prose(rng, 300, 60)))

        def following(budget: int) -> tuple[list[tuple[int, float]], float]:
            """What the tree says may come next, and the score of its last node."""
            draft = drafter.propose([state], [budget])[0]  # noqa: B023
            assert draft.scores is not None
            rows = zip(draft.tokens.tolist(), draft.scores.tolist(), draft.parents, strict=True)
            first = [(token, score) for token, score, parent in rows if parent == -1]
            return first, draft.scores[-1]

        many, _ = following(200)
        for budget in (16, 17, 20, 40):
            few, last = following(budget)
            likelier = [(token, score) for token, score in many if score > last]
            assert few[: len(likelier)] == likelier
            left_out += len(few) < len(many)
            equal += len({score for _, score in likelier}) < len(likelier)
    assert left_out > 100 and equal > 100


def test_sources_are_named(tmp_path: Path) -> None:
    """One context, and a continuation that only one kind of text has; then one that all have."""
    path = corpus_of(tmp_path / "one.foresay", [7, 8, 9, 104], [7, 8, 9, 105])
    drafter = Texts(corpus=path)
    for token in (103, 105):
        drafter.write([7, 8, 9], [token])
    for token in (102, 105):  # what a group's member leaves unfinished is not in the history
        drafter.commit(drafter.start(7, 8, 9, group="g"), token)
    # A group is shown the last 32 tokens of a prompt; what only the request has is further back.
    prompt = [5, 7, 8, 9, 101, 7, 8, 9, 105, *range(200, 232), 7, 8, 9]
    state = drafter.begin(int32s(prompt), group="g")
    draft = drafter.propose([state], [16])[0]
    sources = drafter.sources(state)
    assert len(sources) == len(draft)
    of = {t: s for t, p, s in zip(draft.tokens, draft.parents, sources, strict=True) if p == -1}
    assert of[101] == ("own",)
    assert of[102] == ("group",)
    assert of[103] == ("history",)
    assert of[104] == ("corpus",)
    assert of[105] == ("own", "group", "history", "corpus")
    alone = CorpusDrafter(path)
    state = alone.begin(int32s([7, 8, 9]))
    assert set(alone.propose([state], [4])[0].tokens.tolist()) == {104, 105}
    assert alone.sources(state) == [("corpus",), ("corpus",)]


def test_sources_have_seen_what_is_said_of_them(tmp_path: Path) -> None:
    """Whatever a node's sources are, each of them holds the token; a token has at least one."""
    rng = random.Random(21)
    for round_ in range(10):
        documents = [[t + 40 * (t % 2) for t in prose(rng, 150, 20)] for _ in range(3)]
        path = corpus_of(tmp_path / f"{round_}.foresay", *documents)
        drafter = Texts(corpus=path)
        held: dict[str, set[int]] = {k: set() for k in ("own", "group", "history", "corpus")}
        held["corpus"].update(t for d in documents for t in d)
        for _ in range(4):
            finished = prose(rng, 60, 20)
            output = [t + 80 * (t % 2) for t in finished[20:]]
            drafter.write(finished[:20], output)
            held["history"].update(finished[:20], output)
            sibling = drafter.start(*finished[:20], group="g")
            drafter.commit(sibling, *(t + 120 * (t % 2) for t in finished[20:]))
            held["group"].update(drafter.text(sibling).tolist())
        state = drafter.begin(int32s(prose(rng, 80, 20)), group="g")
        held["own"].update(drafter.text(state).tolist())
        held["group"].update(drafter.text(state).tolist()[-32:])
        draft = drafter.propose([state], [64])[0]
        sources = drafter.sources(state)
        assert len(sources) == len(draft) == 64
        for token, kinds in zip(draft.tokens.tolist(), sources, strict=True):
            assert kinds, "a token that nobody has seen"
            assert all(token in held[kind] for kind in kinds)


def test_sources_belong_to_the_state_and_its_last_draft() -> None:
    drafter = Texts()
    states = [drafter.start(1, 2, 1, 2) for _ in range(3)]
    drafts = drafter.propose(states, [2, 0, 3])
    assert [len(drafter.sources(state)) for state in states] == [len(draft) for draft in drafts]
    drafter.propose(states[:1], [1])
    assert len(drafter.sources(states[0])) == 1 and len(drafter.sources(states[2])) == 3
    drafter.commit(states[2], 9)
    assert drafter.sources(states[2]) == []


def test_many_segments_of_history_without_own_text() -> None:
    """Several automata of one kind, none of them the request's own: each keeps its own states."""
    rng = random.Random(8)
    drafter = SuffixDrafter(own=False, history_bytes=120_000)
    for _ in range(40):
        state = drafter.begin(int32s([rng.randrange(12) for _ in range(30)]))
        for _ in range(15):
            drafter.propose([state], [24])
            drafter.observe([state], [Verdict([], [rng.randrange(12) for _ in range(12)])])
        drafter.finish(state)
    drafter.check_integrity()


def test_without_its_own_text() -> None:
    drafter = Texts(own=False)
    state = drafter.start(1, 2, 1, 2, 1)
    assert drafter.drafted(state) == []
    drafter.commit(state, 2)
    drafter.finish(state)
    state = drafter.start(1, 2, 1, 2, 1)
    assert drafter.drafted(state, 1) == [2]
    assert drafter.sources(state) == [("history",)]
