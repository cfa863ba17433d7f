"""What the rules gain is what theory says: acceptance rates, bounds, tokens per step and the best
length of a draft. The rules are run themselves, over every outcome with rational numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
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


def test_one_over_one_plus_kl_is_no_bound() -> None:
    p, q = [F(1, 2), F(1, 2)], [F(3, 5), F(2, 5)]
    assert kl(p, q) == pytest.approx(0.0204, abs=5e-5)
    assert 1 / (1 + kl(p, q)) > 0.97 > float(accepted(p, q)) == 0.9


@given(pairs)
def test_coupled_choices_agree_between_their_bound_and_acceptance(
    probs: tuple[Probs, Probs],
) -> None:
    """Of Gumbel noise: P(both choose x) = 1 / sum over y of max(p(y) / p(x), q(y) / q(x))."""
    p, q = (np.array(row, float) for row in probs)
    both = np.flatnonzero((p > 0) & (q > 0))
    agree = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in both)
    tv = float(total_variation(*probs))
    assert (1 - tv) / (1 + tv) - 1e-9 <= agree <= 1 - tv + 1e-9


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


def expected_tokens(chances: Sequence[float]) -> float:
    """E = 1 + sum_i prod_{j <= i} beta_j."""
    return 1 + float(np.cumprod(chances).sum())


def best_length(chances: Sequence[float], cost: Sequence[float]) -> tuple[int, float]:
    """(k, speed-up) with k = argmax E(k) cost(0) / cost(k)."""
    gains = [expected_tokens(chances[:k]) * cost[0] / seconds for k, seconds in enumerate(cost)]
    return int(np.argmax(gains)), max(gains)


def test_a_tree_of_chosen_tokens() -> None:
    """E = 1 + sum over nodes of the product of beta on the way from the root to the node."""
    p = [F(1, 2), F(3, 10), F(1, 5)]
    tokens, parents = [0, 1, 0, 2, 1], [-1, -1, 0, 0, 2]
    reach: dict[int, Fraction] = {-1: F(1)}
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        reach[node] = reach[parent] * p[token]
    walk: Any = lambda chance: follow_match(tokens, parents, lambda node: chance.pick(p))  # noqa: E731
    assert mean(lambda chance: len(walk(chance)[1])) == sum(reach.values())


OPTIMA = {0.1: [3, 4, 6, 10], 0.05: [4, 6, 8, 13], 0.01: [7, 9, 14, 24]}


@pytest.mark.parametrize(
    ("rho", "alpha", "best"),
    [
        (rho, a, k)
        for rho, ks in OPTIMA.items()
        for a, k in zip((0.6, 0.7, 0.8, 0.9), ks, strict=True)
    ],
)
def test_the_best_length_is_that_of_a_simulated_clock(rho: float, alpha: float, best: int) -> None:
    steps, longest = 200_000, 40
    cost = [1 + rho * k for k in range(longest + 1)]
    k, gain = best_length([alpha] * longest, cost)
    assert k == best
    assert gain == pytest.approx((1 - alpha ** (k + 1)) / ((1 - alpha) * cost[k]), rel=1e-12)
    rejected_at = np.random.default_rng(best).geometric(1 - alpha, steps)
    clock = [np.minimum(rejected_at, n + 1).mean() / cost[n] for n in range(longest + 1)]
    assert gain == pytest.approx(max(clock), rel=0.02)
    assert clock[k] == pytest.approx(max(clock), rel=0.02)


def test_to_draft_nothing_is_a_choice() -> None:
    assert best_length([0.05] * 4, [1 + 0.1 * k for k in range(5)]) == (0, 1.0)
    crowded = [1 + k + 0.01 * k for k in range(5)]  # a large batch: every row costs a pass
    assert best_length([0.9] * 4, crowded) == (0, 1.0)
    for alpha, rho in product((0.3, 0.9), (0.0, 0.2)):
        assert best_length([alpha] * 4, [1 + rho * k for k in range(5)])[1] >= 1
