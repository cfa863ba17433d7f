"""Merging: each node keeps who proposed it, and the distribution that it was sampled from."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from doubles import Scripted, tokens
from foresay import Draft, Verdict
from foresay.drafters import MergeDrafter
from test_merge import trees


class Sampling(Scripted):
    """Samples its drafts, and gives what from."""

    def __init__(self, draft: Draft, seed: int) -> None:
        super().__init__({0: draft})
        rows = np.random.default_rng(seed).random((len(draft), 3)) + 0.1
        self.probs = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)

    def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
        return [
            Draft(draft.tokens, draft.parents, draft.scores, self.probs[: len(draft)])
            for draft in super().propose(states, budgets)
        ]


def in_order(draft: Draft) -> list[tuple[int, ...]]:
    """The path of each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return found


def told_by(members: list[Any], budget: int) -> dict[tuple[int, ...], list[tuple[Any, Any]]]:
    """By path: the drafters that have it, and the distribution that each sampled it from."""
    drafter = MergeDrafter(*members)
    state = drafter.begin(tokens(1))
    assert drafter.provenance(state) == []
    (union,) = drafter.propose([state], [budget])
    told = drafter.provenance(state)
    assert [tuple(sorted({p.drafter for p in each})) for each in told] == drafter.proposers(state)
    found = {
        path: [(members[p.drafter], None if p.q is None else p.q.tolist()) for p in each]
        for path, each in zip(in_order(union), told, strict=True)
    }
    drafter.observe([state], [Verdict([], [1])])
    assert drafter.provenance(state) == []
    return found


@given(st.lists(trees(), min_size=1, max_size=3), st.integers(0, 12), st.randoms())
def test_each_node_keeps_what_it_was_sampled_from(
    drafts: list[Draft], budget: int, random: Any
) -> None:
    members: list[Any] = [Sampling(draft, seed) for seed, draft in enumerate(drafts)]
    members[0] = Scripted({0: drafts[0]})  # chooses
    found = told_by(members, budget)
    for member, draft in zip(members, drafts, strict=True):
        for node, path in enumerate(in_order(draft)):
            q = None if member is members[0] else member.probs[node].tolist()
            assert path not in found or (member, q) in found[path]
    assert sum(map(len, found.values())) <= sum(map(len, drafts))
    random.shuffle(members)
    other = told_by(members, budget)
    assert {path: sorted(map(str, each)) for path, each in found.items()} == {
        path: sorted(map(str, each)) for path, each in other.items()
    }


def test_a_drafter_that_is_there_twice_is_told_twice() -> None:
    draft = Draft([5, 6], [-1, 0], [0.5, 0.4])
    once = told_by([Sampling(Draft([1, 2], [-1, 0], [0.5, 0.4]), 1)], 4)
    member = Sampling(Draft([1, 2], [-1, 0], [0.5, 0.4]), 1)
    twice = told_by([member, member], 4)
    assert list(once) == list(twice) == [(1,), (1, 2)]
    for path, ((_, q),) in once.items():
        assert [law for _, law in twice[path]] == [q, q] and q is not None
    assert told_by([Scripted({0: draft})], 1)[(5,)][0][1] is None
