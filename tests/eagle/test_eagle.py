"""EagleDrafter: its trees are those of the definition, and its state is what was committed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from eagle.heads import (
    HeadRequest,
    alone,
    assert_same,
    commit,
    random_head,
    reference_tree,
)
from foresay import Draft, DraftBatch, SamplingParams, Verdict
from foresay.arrays import Floats
from foresay.drafters.eagle import EagleDrafter
from foresay.drafters.eagle.head import EagleHead
from foresay.drafters.head import drafter as module
from foresay.drafters.head.drafter import HeadState
from foresay.errors import InputError, StateError
from foresay.sampling.noise import gumbel
from foresay.sampling.processors import scores
from foresay.sampling.verification import VerificationInput

SETTINGS: dict[str, Any] = {"topk": 3, "depth": 4, "shortlist": 128}


class Asked(HeadRequest):
    """Of a head of EAGLE, with made-up features."""

    drafter: EagleDrafter

    def law(self, path: Any) -> Floats:
        """Log probabilities by token id, -inf for those that are never drafted."""
        head = self.drafter.head
        logits = alone(head, self.features, self.tokens, path).double().numpy()
        if self.params != SamplingParams(temperature=self.temperature):
            full = np.full(128, -np.inf, np.float32)
            full[head.tokens.numpy()] = logits
            ask = VerificationInput(
                self.params, self.seed, self.prompt, np.array(self.tokens, np.int32)
            )
            logits = scores(full, ask, path)[head.tokens.numpy()].astype(np.float64)
            logits *= self.temperature or 1
        if self.temperature:
            at = len(self.prompt) + len(self.tokens) + len(path)
            logits = logits + self.temperature * gumbel(self.seed, at, head.tokens.numpy())
        row = np.full(128, -np.inf)
        row[head.tokens.numpy()] = logits - np.logaddexp.reduce(logits)
        return row


@pytest.fixture(scope="module", params=[128, 50], ids=["all tokens", "50 tokens"])
def head(request: pytest.FixtureRequest) -> EagleHead:
    return random_head(drafted=request.param)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_tree_is_that_of_the_definition(head: EagleHead, temperature: float) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    asked = [Asked(drafter, seed, temperature if seed != 1 else 0.0) for seed in range(4)]
    commit(asked, 1, 3, 2, 7)
    for counts, budgets in [((2, 1, 4, 1), (12, 3, 1, 30)), ((1, 1, 1, 2), (5, 40, 7, 2))]:
        drafts = drafter.propose([one.state for one in asked], budgets)
        for one, budget, draft in zip(asked, budgets, drafts, strict=True):
            wanted = reference_tree(one.law, budget, min(3, max(budgets)), 4)
            assert_same(draft, wanted)
            assert len(draft) == min(budget, 3 + 3 * 9)
        commit(asked, *counts)


PROCESSED: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"repetition_penalty": 1.5, "presence_penalty": 0.7},
    {"frequency_penalty": 1.9},
    {"logit_bias": {3: 9.0, 70: -9.0, 71: 5.0}, "top_k": 4},
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_processors_change_the_ranking(head: EagleHead, temperature: float) -> None:
    """Each tree is that of the definition after the request's own processors."""
    drafter = EagleDrafter(head, **SETTINGS)
    asked = [Asked(drafter, at, temperature, **more) for at, more in enumerate(PROCESSED)]
    asked.append(Asked(drafter, 9, temperature))  # one without them, in the same batch
    commit(asked, *range(1, 1 + len(asked)))
    plain = EagleDrafter(head, **SETTINGS)
    others = [Asked(plain, one.seed, temperature) for one in asked]
    commit(others, *range(1, 1 + len(asked)))
    drafts = drafter.propose([one.state for one in asked], [10] * len(asked))
    without = plain.propose([one.state for one in others], [10] * len(asked))
    for one, draft in zip(asked, drafts, strict=True):
        wanted = reference_tree(one.law, 10, 3, 4)
        assert wanted.scores is not None
        there = int((wanted.scores > 0).sum())  # impossible ones come last, and are not drafted
        possible = Draft(wanted.tokens[:there], wanted.parents[:there], wanted.scores[:there])
        assert_same(draft, possible)
    same = [a == b for a, b in zip(drafts, without, strict=True)]
    cut = 0 if temperature else 3  # greedy requests are not cut
    assert not any(same[3:-1]) and same[-1] and all(same[:cut])


def test_tokens_that_no_vocabulary_has_are_not_processed(head: EagleHead) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    one = Asked(drafter, 0, logit_bias={500: 1.0})
    commit([one], 2)
    assert len(drafter.propose([one.state], [4])[0]) == 4


def test_features_that_nobody_reads_do_not_pile_up(
    head: EagleHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNREAD", 12)
    monkeypatch.setattr(module, "_LATEST", 6)
    drafter = EagleDrafter(head, **SETTINGS)
    one = Asked(drafter, 0)
    commit([one], 3)
    drafter.propose([one.state], [4])
    keys = most = drafter.bytes_used() - 4 * drafter.tokens_held()
    for _ in range(200):
        commit([one], 1)
        most = max(most, drafter.bytes_used() - 4 * drafter.tokens_held())
    assert most <= 12 * 4 * head.shape.features + keys  # 200 rows would be 16 times as much
    assert 6 <= one.state.unread <= 12 and one.state.read == 0
    (draft,) = drafter.propose([one.state], [6])
    kept = one.state.read
    one.features, told = one.features[-kept:], one.tokens
    one.tokens = told[-kept:]
    assert_same(draft, reference_tree(one.law, 6, 3, 4))
    assert drafter.text(one.state).tolist() == one.prompt.tolist() + told


def test_a_chain_of_one_budget(head: EagleHead) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    one = Asked(drafter, 3)
    commit([one], 4)
    (draft,) = drafter.propose([one.state], [1])
    assert_same(draft, reference_tree(one.law, 1, 1, 1))


def test_a_tree_ends_early_where_nothing_can_follow() -> None:
    """Where no grandchild is as likely as a child, only the first level is expanded."""
    head = random_head()
    head.output = 0.05 * head.output  # nearly uniform
    drafter = EagleDrafter(head, topk=8, depth=6)
    one = Asked(drafter, 0)
    commit([one], 2)
    rows: list[int] = []
    complete = head.complete
    head.complete = lambda *given: rows.append(1) or complete(*given)  # type: ignore[method-assign,func-returns-value]
    (draft,) = drafter.propose([one.state], [8])
    assert len(rows) == 2  # what was committed, and the first level
    assert set(draft.parents.tolist()) == {-1}
    assert_same(draft, reference_tree(one.law, 8, 8, 3))


def test_proposing_changes_nothing(head: EagleHead) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    asked = [Asked(drafter, seed, 0.8) for seed in range(3)]
    states = [one.state for one in asked]
    assert [len(draft) for draft in drafter.propose(states, [5, 5, 5])] == [0, 0, 0]  # no feature
    commit(asked, 1, 2, 3)
    first = drafter.propose(states, [9, 0, 4])
    assert [len(draft) for draft in first] == [9, 0, 4]
    drafter.propose(states[:1], [2])
    assert drafter.propose(states, [9, 0, 4]) == first
    checked = DraftBatch(first.tokens, first.parents, first.offsets, first.scores)
    assert checked == first


def test_when_it_is_asked_does_not_matter(head: EagleHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was not asked for long is read in pieces, to the same drafts."""
    drafters = [EagleDrafter(head, **SETTINGS) for _ in range(2)]
    often, seldom = (Asked(drafter, 5) for drafter in drafters)
    monkeypatch.setattr(module, "_PIECE", 4)
    for count in (3, 1, 2, 5, 1, 1, 6):
        commit([often], count)
        commit([seldom], count)
        drafters[0].propose([often.state], [6])
    one, two = (
        d.propose([a.state], [6])[0] for d, a in zip(drafters, (often, seldom), strict=True)
    )
    assert_same(one, two)
    assert_same(one, reference_tree(often.law, 6, 3, 4))


def test_the_text_and_its_memory(head: EagleHead) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    asked = [Asked(drafter, seed) for seed in range(2)]
    commit(asked, 4, 2)
    drafter.propose([asked[0].state], [4])
    for one in asked:
        assert drafter.text(one.state).tolist() == one.prompt.tolist() + one.tokens
    assert drafter.tokens_held() == sum(len(one.prompt) + len(one.tokens) for one in asked)
    assert drafter.bytes_used() > 0
    for one in asked:
        drafter.finish(one.state)
    assert drafter.tokens_held() == drafter.bytes_used() == 0
    with pytest.raises(StateError, match="finished before"):
        drafter.propose([asked[0].state], [1])


def test_a_verdict_without_features_begins_again(head: EagleHead) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    one = Asked(drafter, 2)
    commit([one], 3)
    drafter.observe([one.state], [Verdict([], [7, 8])])
    assert len(drafter.propose([one.state], [4])[0]) == 0
    before = len(one.tokens) + 2
    one.features, one.tokens = one.features[:0], []
    one.prompt = drafter.text(one.state)
    assert len(one.prompt) == 5 + 2 + before
    commit([one], 2)
    assert_same(drafter.propose([one.state], [4])[0], reference_tree(one.law, 4, 3, 4))


def test_features_that_are_no_numbers_draft_nothing(head: EagleHead) -> None:
    drafter = EagleDrafter(head, **SETTINGS)
    bad, good = Asked(drafter, 0), Asked(drafter, 1)
    verdicts = [one.commits(2) for one in (bad, good)]
    verdicts[0] = Verdict([], verdicts[0].tokens, hidden=np.full((2, 32), np.nan, np.float32))
    drafter.observe([bad.state, good.state], verdicts)
    drafts = drafter.propose([bad.state, good.state], [4, 4])
    assert len(drafts[0]) == 0
    assert_same(drafts[1], reference_tree(good.law, 4, 3, 4))


def test_refused(head: EagleHead) -> None:
    drafter, other = EagleDrafter(head), EagleDrafter(head)
    state = drafter.begin([1, 2])
    with pytest.raises(InputError, match="of a model of 128 tokens, but the target has 99; expec"):
        drafter.fit(SimpleNamespace(vocabulary=99))
    with pytest.raises(InputError, match="hidden states are 3 wide; expected 32"):
        drafter.observe([state], [Verdict([], [1], hidden=np.zeros((1, 3), np.float32))])
    with pytest.raises(InputError, match="a token is 128; expected 0 to 127"):
        drafter.observe([state], [Verdict([], [128])])
    with pytest.raises(StateError, match="another drafter"):
        other.propose([state], [1])
    assert drafter.text(state).tolist() == [1, 2]
    assert isinstance(state, HeadState) and torch.is_tensor(head.fc.weight)
