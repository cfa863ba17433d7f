"""The nodes of a batch: which can be committed, which are chosen, and the way back."""

from __future__ import annotations

import numpy as np
import pytest

from budget.batches import check_subset, depth_by_hand, facts, load_of, selected, trees
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import within_max_tokens
from foresay.budget.policy import Fixed
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError
from foresay.verdict import TopK, Verdict, VerdictBatch


def test_depths_by_hand() -> None:
    rng = np.random.default_rng(0)
    for requests in (0, 1, 2, 7):
        batch = trees(rng, requests, 20)
        assert batch.depths.tolist() == [d for draft in batch for d in depth_by_hand(draft)]


def test_keep_by_hand() -> None:
    batch = DraftBatch.of(
        [
            Draft([10, 11, 12, 13], [-1, 0, -1, 2], [0.9, 0.8, 0.1, 0.05]),
            Draft.empty(),
            Draft([20, 21], [-1, 0], [0.5, 0.4]),
        ]
    )
    chosen = selected(batch, [2, 3, 4])
    assert chosen.drafts == DraftBatch.of(
        [Draft([12, 13], [-1, 0], [0.1, 0.05]), Draft.empty(), Draft([20], [-1], [0.5])]
    )
    assert chosen.nodes.tolist() == [2, 3, 0]
    assert selected(batch).drafts is batch
    assert selected(batch).nodes.tolist() == [0, 1, 2, 3, 0, 1]
    assert len(selected(batch, []).drafts.tokens) == 0


def test_a_node_is_not_kept_without_its_parent() -> None:
    batch = DraftBatch.of([Draft.empty(), Draft([1, 2, 3], [-1, 0, -1])])
    with pytest.raises(InputError, match="node 1 of a proposal is kept without its parent"):
        _ = selected(batch, [1, 2]).drafts


def test_probs_are_kept_with_their_nodes() -> None:
    probs = np.eye(3, dtype=np.float32)
    batch = DraftBatch([0, 1, 2], [-1, -1, 1], [0, 3], probs=probs)
    kept = selected(batch, [1, 2]).drafts.probs
    assert kept is not None and kept.tolist() == probs[1:].tolist()


def topk(*tokens: int) -> TopK:
    """A row for each token, which has as log probability its negative."""
    column = np.array([tokens]).T
    return TopK(column.astype(np.int32), -column.astype(np.float32))


def test_paths_go_back_to_the_drafters_numbers() -> None:
    batch = DraftBatch.of(
        [Draft([10, 11, 12, 13], [-1, 0, -1, 2]), Draft.empty(), Draft([20, 21], [-1, -1])]
    )
    chosen = selected(batch, [2, 3, 5])
    verdicts = [
        Verdict([0, 1], [12, 13, 7], topk(1, 2, 3)),
        Verdict([], [8], topk(4)),
        Verdict([0], [21, 9], topk(5, 6)),
    ]
    back = chosen.numbered(verdicts)
    assert [v.path.tolist() for v in back] == [[2, 3], [], [1]]
    assert [v.tokens.tolist() for v in back] == [[12, 13, 7], [8], [21, 9]]
    found = [None if v.topk is None else v.topk.tokens.ravel().tolist() for v in back]
    assert found == [[1, -1, -1, 2, 3], [4], [5, -1, 6]]
    found = [None if v.topk is None else v.topk.logprobs.ravel().tolist() for v in back]
    assert found == [[-1, -np.inf, -np.inf, -2, -3], [-4], [-5, -np.inf, -6]]
    VerdictBatch(
        back.tokens, back.offsets, back.path, back.path_offsets, back.topk, back.topk_offsets
    )
    with pytest.raises(InputError, match="2 verdicts but 3 drafts"):
        chosen.numbered(verdicts[:2])
    short = [Verdict([], [1], topk(1))] * 3
    with pytest.raises(InputError, match="topk has 3 rows for 3 nodes"):
        chosen.numbered(short)


def test_paths_go_back_in_random_trees() -> None:
    rng = np.random.default_rng(1)
    for _ in range(100):
        batch = trees(rng, 4, 9)
        load = load_of(5, 6, 7, 8, tokens_left=rng.integers(1, 6, 4).tolist())
        chosen = Fixed(k=9).choose(batch, load)
        check_subset(batch, chosen, load)
        verdicts = []
        for draft in chosen.drafts:
            path: list[int] = []
            if len(draft):
                node = int(rng.integers(len(draft)))
                while node >= 0:
                    path.insert(0, node)
                    node = int(draft.parents[node])
            verdicts.append(Verdict(path, [*draft.tokens[path].tolist(), 0]))
        back = chosen.numbered(verdicts)
        for old, new, verdict in zip(batch, back, verdicts, strict=True):
            assert old.tokens[new.path].tolist() == verdict.tokens[:-1].tolist()
            above = [-1, *new.path.tolist()]
            assert old.parents[new.path].tolist() == above[: len(new.path)]


def test_only_some_requests_keep_their_nodes() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        batch = trees(rng, 3, 6)
        load = load_of(5, 5, 5, tokens_left=4)
        chosen = Fixed().choose(batch, load)
        some = chosen.only(np.repeat([True, False, True], np.diff(batch.offsets)))
        check_subset(batch, some, load)
        assert [len(d) for d in some.drafts] == [len(chosen.drafts[0]), 0, len(chosen.drafts[2])]


def test_the_policy_bears_a_choice_that_was_cut() -> None:
    policy = Adaptive(StepCost(), share=0.9)
    rng = np.random.default_rng(7)
    for _ in range(100):
        load = load_of(5, 5, 5)
        policy.budgets(load)
        batch = trees(rng, 3, 6)
        first = np.arange(len(batch.tokens)) < batch.offsets[1]
        chosen = policy.choose(batch, load).only(first)
        plain = policy._step_of(load).plain
        policy.observe(facts(load, chosen, [[], [], []]))
        assert -0.5 * plain <= policy._account.balance  # what was cut is not charged


def test_facts_say_which_nodes_were_accepted() -> None:
    batch = DraftBatch.of([Draft.chain([1, 2, 3]), Draft.empty(), Draft.chain([4, 5])])
    load = load_of(9, 9, 9)
    step = facts(load, selected(batch), [[0, 1], [], [0]])
    assert step.accepted.tolist() == [True, True, False, True, False]
    assert step.committed == 6


def test_the_number_of_drafts_must_fit() -> None:
    with pytest.raises(InputError, match="1 drafts for 2 requests"):
        within_max_tokens(DraftBatch.of([Draft.empty()]), load_of(3, 3))


# All policies
