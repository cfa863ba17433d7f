"""What the rules gain is what theory says: acceptance rates, bounds and tokens per step. The rules
are run themselves, over every outcome with rational numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foresay.lossless.chance import Chance, outcomes
from foresay.sampling.reference import follow_match, follow_rejection

F = Fraction
Probs = list[Fraction]


def weights(size: int) -> st.SearchStrategy[Probs]:
    rows = st.lists(st.integers(0, 9), min_size=size, max_size=size).filter(any)
    return rows.map(lambda row: [F(w, sum(row)) for w in row])


pairs = st.integers(2, 5).flatmap(lambda size: st.tuples(weights(size), weights(size)))


def mean(function: Callable[[Chance], int]) -> Fraction:
    return sum((chance * value for value, chance in outcomes(function)), start=F(0))


def accepted(p: Probs, q: Probs, depth: int = 1) -> Fraction:
    """How many tokens of a sampled chain rule rejection accepts, if all positions are alike."""

    def step(chance: Chance) -> int:
        tokens = [chance.pick(q) for _ in range(depth)]
        parents = range(-1, depth - 1)
        path, emitted = follow_rejection(
            tokens, parents, lambda node: p, lambda node: q, chance, position=0
        )
        assert len(emitted) == len(path) + 1  # with the target's own token
        return len(path)

    return mean(step)


def total_variation(p: Probs, q: Probs) -> Fraction:
    return sum((abs(a - b) for a, b in zip(p, q, strict=True)), start=F(0)) / 2


def kl(p: Probs, q: Probs) -> float:
    parts = [(float(a), float(b)) for a, b in zip(p, q, strict=True) if a]
    return sum(a * math.log(a / b) for a, b in parts) if all(b for _, b in parts) else math.inf


@given(pairs)
@example(([F(1, 2), F(1, 2)], [F(3, 5), F(2, 5)]))
@example(([F(1), F(0)], [F(0), F(1)]))
def test_acceptance_is_one_minus_total_variation_and_above_its_bounds(
    probs: tuple[Probs, Probs],
) -> None:
    p, q = probs
    beta = accepted(p, q)
    assert beta == 1 - total_variation(p, q) == accepted(q, p)
    for divergence in (kl(p, q), kl(q, p)):
        pinsker = 1 - math.sqrt(divergence / 2)
        bretagnolle_huber = 1 - math.sqrt(1 - math.exp(-divergence))
        assert max(pinsker, bretagnolle_huber, math.exp(-divergence) / 2) <= float(beta) + 3e-8


@given(weights(4), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_a_set_of_chosen_tokens_is_accepted_where_the_target_draws_one(
    p: Probs, tokens: list[int]
) -> None:
    parents = [-1] * len(tokens)
    expected = sum((p[token] for token in set(tokens)), start=F(0))
    by_match = mean(lambda chance: len(follow_match(tokens, parents, lambda n: chance.pick(p))[0]))
    by_rejection = mean(
        lambda c: len(follow_rejection(tokens, parents, lambda n: p, lambda n: None, c, 0)[0])
    )
    assert by_match == by_rejection == expected


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_tokens_per_step(depth: int) -> None:
    """(1 - alpha^(k + 1)) / (1 - alpha) with the target's own token, and not 1 + k alpha."""
    p, q = [F(1, 2), F(1, 4), F(1, 4)], [F(1, 4), F(1, 2), F(1, 4)]
    alpha = accepted(p, q)
    assert 1 + accepted(p, q, depth) == (1 - alpha ** (depth + 1)) / (1 - alpha)


def test_a_tree_of_chosen_tokens() -> None:
    """E = 1 + sum over nodes of the product of beta on the way from the root to the node."""
    p = [F(1, 2), F(3, 10), F(1, 5)]
    tokens, parents = [0, 1, 0, 2, 1], [-1, -1, 0, 0, 2]
    reach: dict[int, Fraction] = {-1: F(1)}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        reach[node] = reach[parent] * p[token]
    walk: Any = lambda chance: follow_match(tokens, parents, lambda node: chance.pick(p))  # noqa: E731
    assert mean(lambda chance: len(walk(chance)[1])) == sum(reach.values())
