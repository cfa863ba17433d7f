"""The theory against simulation within 2 %, against its own bounds, and what it refuses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foresay.errors import InputError
from foresay.sampling import theory
from foresay.sampling.theory import (
    CostByLength,
    acceptance,
    acceptance_chosen,
    acceptance_coupled_bound,
    acceptance_floor,
    best_length,
    beta_by_depth,
    bretagnolle_huber,
    expected_tokens,
    expected_tokens_of_tree,
    kl,
    pinsker,
    speedup,
    total_variation,
)

STEPS = 400_000
WITHIN = 0.02
Probs = list[float]


def pair(alpha: float) -> tuple[Probs, Probs]:
    """p and q with sum min(p, q) = alpha: one coin that is fair to no one, one sure, one unseen."""
    return [alpha / 2, alpha / 2, 1 - alpha], [1 - alpha / 2, alpha / 2, 0.0]


def simulated(
    curve: list[float], rng: np.random.Generator, steps: int = STEPS
) -> tuple[list[int], list[int]]:
    """(reached, accepted) at each depth of `steps` steps: draw y from q, toss min(1, p/q)."""
    reached, accepted, alive = [], [], steps
    for alpha in curve:
        p, q = map(np.array, pair(alpha))
        y = rng.choice(3, alive, p=q)
        reached.append(alive)
        alive = int(np.count_nonzero(rng.random(alive) < p[y] / q[y]))
        accepted.append(alive)
    return reached, accepted


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Probs, Probs]:
    """Two probs over the same tokens: with zeros, one-hot, equal, far apart or nearly equal."""
    size = draw(st.integers(1, 6))
    weight = st.sampled_from([0.0, 0.0, 1.0, 1e-9, 1e-300]) | st.floats(0, 1)
    rows = st.lists(weight, min_size=size, max_size=size).filter(lambda row: sum(row) > 1e-3)
    p, q = ([w / sum(row) for w in row] for row in (draw(rows), draw(rows)))
    return (p, p) if draw(st.integers(0, 9)) == 0 else (p, q)


# One position


@given(pairs())
def test_acceptance_is_one_minus_total_variation(probs: tuple[Probs, Probs]) -> None:
    p, q = probs
    assert acceptance(p, q) == pytest.approx(1 - total_variation(p, q), abs=1e-12)
    assert acceptance(p, q) == pytest.approx(acceptance(q, p), abs=1e-12)
    assert acceptance(p, p) == pytest.approx(1, abs=1e-12) and kl(p, p) == 0
    assert 0 <= acceptance(p, q) <= 1 and kl(p, q) >= 0


@pytest.mark.parametrize("seed", range(4))
def test_acceptance_is_the_rate_of_real_coins(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(50, 0.5), 2)
    q = 0.6 * p + 0.4 * q
    q[::7] = 0
    q /= q.sum()
    y = rng.choice(50, STEPS, p=q)
    rate = np.mean(rng.random(STEPS) < p[y] / q[y])
    assert acceptance(p, q) == pytest.approx(rate, rel=WITHIN)


def test_chosen_children_are_accepted_where_the_target_draws_one_of_them() -> None:
    rng = np.random.default_rng(1)
    p = rng.dirichlet(np.ones(20))
    children = [3, 7, 7, 12]
    rate = np.isin(rng.choice(20, STEPS, p=p), children).mean()
    assert acceptance_chosen(p, children) == pytest.approx(rate, rel=WITHIN)
    assert acceptance_chosen(p, []) == 0
    assert acceptance_chosen(p, range(20)) == pytest.approx(1)
    one_hot = np.eye(20)[7]
    assert acceptance_chosen(p, [7]) == pytest.approx(acceptance(p, one_hot))


@given(pairs())
def test_coupling_lies_between_its_bound_and_acceptance(probs: tuple[Probs, Probs]) -> None:
    p, q = map(np.array, probs)
    both = (p > 1e-200) & (q > 1e-200)  # the exact chance: sum_x 1 / sum_y max(p_y/p_x, q_y/q_x)
    exact = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in np.flatnonzero(both))
    assert acceptance_coupled_bound(p, q) - 1e-9 <= exact <= acceptance(p, q) + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_shared_gumbel_noise_matches_at_least_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p, q = rng.dirichlet(np.full(8, 0.7), 2)
    noise = rng.gumbel(size=(STEPS, 8))
    rate = np.mean((np.log(p) + noise).argmax(1) == (np.log(q) + noise).argmax(1))
    sigma = 0.5 / math.sqrt(STEPS)
    assert acceptance_coupled_bound(p, q) - 4 * sigma <= rate <= acceptance(p, q) + 4 * sigma


# Bounds


@given(pairs())
@example(([0.5, 0.5], [0.6, 0.4]))
@example(([1.0, 0.0], [0.0, 1.0]))
@example(([1.0, 0.0], [1.0, 0.0]))
@example(([0.5, 0.5, 0.0], [0.0, 0.5, 0.5]))
def test_every_bound_holds_in_both_directions(probs: tuple[Probs, Probs]) -> None:
    p, q = probs
    beta = acceptance(p, q)
    for divergence in (kl(p, q), kl(q, p)):
        wide, tight = (bretagnolle_huber(divergence, tight=t) for t in (False, True))
        # A KL that is 1e-16 off is 1e-8 off under the root.
        assert max(pinsker(divergence), wide, tight) <= beta + 3e-8
        assert acceptance_floor(divergence) == max(pinsker(divergence), wide, tight)
        assert wide <= tight <= 2 * wide


def test_the_bounds_at_known_points() -> None:
    assert kl([0.5, 0.5], [0.6, 0.4]) == pytest.approx(0.0204, abs=5e-5)
    assert kl([1, 0], [0, 1]) == math.inf and kl([1, 0], [0.5, 0.5]) == pytest.approx(math.log(2))
    assert (pinsker(0), bretagnolle_huber(0), acceptance_floor(0)) == (1, 0.5, 1)
    assert pinsker(math.inf) == bretagnolle_huber(math.inf) == acceptance_floor(math.inf) == 0
    assert pinsker(0.5) == 0.5 and pinsker(8) == 0
    assert bretagnolle_huber(1, tight=True) == pytest.approx(1 - math.sqrt(1 - math.exp(-1)))
    assert acceptance_floor(0.5) == pinsker(0.5)
    assert acceptance_floor(3) == bretagnolle_huber(3, tight=True) > bretagnolle_huber(3) > 0


def test_one_over_one_plus_kl_is_no_bound() -> None:
    p, q = [0.5, 0.5], [0.6, 0.4]
    assert acceptance(p, q) == pytest.approx(0.9)
    assert 1 / (1 + kl(p, q)) > 0.97 > acceptance(p, q) > acceptance_floor(kl(p, q))


# Tokens per step


@pytest.mark.parametrize(("alpha", "k"), [(0.3, 2), (0.6, 3), (0.8, 4), (0.8, 12), (0.95, 24)])
def test_tokens_per_step_of_equal_depths(alpha: float, k: int) -> None:
    _, accepted = simulated([alpha] * k, np.random.default_rng(k))
    assert acceptance(*pair(alpha)) == pytest.approx(alpha)
    assert expected_tokens([alpha] * k) == pytest.approx(1 + sum(accepted) / STEPS, rel=WITHIN)
    closed = (1 - alpha ** (k + 1)) / (1 - alpha)
    assert expected_tokens([alpha] * k) == pytest.approx(closed, rel=1e-12)


def test_tokens_per_step_of_a_curve() -> None:
    curve = [0.9, 0.5, 0.7, 0.95, 0.2, 1.0, 0.6]
    _, accepted = simulated(curve, np.random.default_rng(7))
    assert expected_tokens(curve) == pytest.approx(1 + sum(accepted) / STEPS, rel=WITHIN)


def test_tokens_per_step_at_the_edges() -> None:
    assert expected_tokens([]) == 1 and expected_tokens([0.0, 1.0]) == 1
    assert expected_tokens([1.0] * 5) == 6
    assert expected_tokens([0.8] * 4) == pytest.approx(3.3616)  # and not 1 + 4 * 0.8 = 4.2


def test_a_tree_of_chosen_tokens() -> None:
    """The target draws at each node and goes on where the child exists: the walk of rule match."""
    rng = np.random.default_rng(3)
    parents = [-1, -1, 0, 0, 1, 2, 5]
    tokens = [0, 1, 0, 2, 1, 1, 0]
    probs = rng.dirichlet([4.0, 2.0, 1.0], len(parents) + 1)  # the last is the root's
    arrived = [0] * len(parents) + [STEPS]
    for node in [-1, *range(len(parents))]:
        sampled = rng.multinomial(arrived[node], probs[node])
        for child in range(len(parents)):
            if parents[child] == node:
                arrived[child] = int(sampled[tokens[child]])
    chances = [acceptance_chosen(probs[n], [t]) for n, t in zip(parents, tokens, strict=True)]
    assert expected_tokens_of_tree(parents, chances) == pytest.approx(
        sum(arrived) / STEPS, rel=WITHIN
    )


@given(st.lists(st.floats(0, 1), max_size=12))
def test_a_chain_is_a_tree(curve: list[float]) -> None:
    tree = expected_tokens_of_tree(range(-1, len(curve) - 1), curve)
    assert tree == pytest.approx(expected_tokens(curve), rel=1e-12)


# Speed


@pytest.mark.parametrize(
    ("rho", "best"), [(0.1, [3, 4, 6, 10]), (0.05, [4, 6, 8, 13]), (0.01, [7, 9, 14, 24])]
)
def test_the_known_optima(rho: float, best: list[int]) -> None:
    cost = CostByLength.constant(rho)
    for alpha, k in zip([0.6, 0.7, 0.8, 0.9], best, strict=True):
        found, gain = best_length(alpha, cost)
        assert found == k and gain == pytest.approx(speedup(alpha, cost, k))
        closed = (1 - alpha ** (k + 1)) / ((1 - alpha) * (k * rho + 1))
        assert gain == pytest.approx(closed, rel=1e-12)


VERIFY = [20.0, 20.4, 20.5, 21.0, 24.0, 24.2, 25.0, 27.0, 33.0, 34.0, 35.0, 37.0, 40.0]
DRAFT = [0.0, 2.0, 3.0, 4.1, 5.0, 6.2, 7.0, 8.1, 9.0, 10.0, 11.3, 12.0, 13.1]


@pytest.mark.parametrize("curve", [[0.8] * 12, [0.9, 0.85, 0.8, *[0.6] * 9], [0.05] * 12])
def test_speedup_and_best_length_against_a_simulated_clock(curve: list[float]) -> None:
    rng, cost = np.random.default_rng(11), CostByLength(VERIFY, DRAFT)
    clock = []
    for k in range(13):  # every length is a run of its own
        _, accepted = simulated(curve[:k], rng)
        plain = (STEPS + sum(accepted)) * VERIFY[0]
        clock.append(plain / (STEPS * (VERIFY[k] + DRAFT[k])))
        assert speedup(curve, cost, k) == pytest.approx(clock[k], rel=WITHIN)
    k, gain = best_length(curve, cost)
    assert gain == pytest.approx(speedup(curve, cost, k)) and gain >= 1
    assert gain * (1 - WITHIN) <= speedup(curve, cost, int(np.argmax(clock))) <= gain * (1 + 1e-12)
    assert gain == pytest.approx(max(clock), rel=WITHIN)


def test_to_draft_nothing_is_a_choice() -> None:
    assert best_length(0.05, CostByLength.constant(0.1)) == (0, 1.0)
    assert best_length([], CostByLength.constant(0.1)) == (0, 1.0)
    assert best_length(0.9, CostByLength([1.0], [0.0])) == (0, 1.0)
    assert best_length(1, CostByLength.constant(0.0, longest=8)) == (8, 9.0)
    crowded = CostByLength.constant(
        0.01, lambda k: 1.0 + k
    )  # a large batch: every row costs a pass
    assert best_length(0.9, crowded) == (0, 1.0)
    assert speedup(0.8, CostByLength.constant(0.1, lambda k: 1 + 0.05 * k), 4) == pytest.approx(
        3.3616 / 1.6
    )


def test_a_cost_is_linear_between_lengths_and_ends_at_the_last() -> None:
    cost = CostByLength([10.0, 12.0, 20.0], [0.0, 2.0, 4.0], lengths=[0, 2, 6])
    assert [cost.relative(k) for k in range(7)] == pytest.approx(
        [1, 1.2, 1.4, 1.65, 1.9, 2.15, 2.4]
    )
    with pytest.raises(InputError, match="k is 7; expected 0 to 6"):
        cost.relative(7)
    k, gain = best_length([1.0] * 50, cost)
    assert k == 6 and gain == pytest.approx(7 / 2.4)


# Counts


def test_the_curve_comes_back_from_counts() -> None:
    curve = [0.9, 0.5, 0.7, 0.95]
    reached, accepted = simulated(curve, np.random.default_rng(5))
    found = beta_by_depth(reached, accepted, level=0.999)
    assert found.rate == pytest.approx(curve, rel=WITHIN)
    assert (found.low < curve).all() and (curve < found.high).all()
    alike = beta_by_depth(*simulated([0.8] * 4, np.random.default_rng(6)))
    assert alike.overall[0] == pytest.approx(0.8, rel=WITHIN)
    assert sum(accepted) / (4 * STEPS) < 0.6  # accepted / drafted is no chance of any depth


def test_no_drafts_are_no_error() -> None:
    for counts in ([], [0], [0, 0, 0]):
        found = beta_by_depth(counts, counts)
        assert np.isnan(found.rate).all() and len(found.rate) == len(counts)
        assert not found.low.any() and (found.high == 1).all()
        assert math.isnan(found.overall[0]) and found.overall[1:] == (0, 1)
    found = beta_by_depth([5, 0], [0, 0])
    assert found.rate[0] == 0 and np.isnan(found.rate[1]) and found.overall[0] == 0


@given(st.integers(1, 10**6), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_the_interval_is_wilsons(n: int, share: float, level: float) -> None:
    """Its ends are where the normal test just does not reject: (a/n - x)² = z² x (1 - x) / n."""
    a = int(share * n)
    found = beta_by_depth([n], [a], level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    for x in (float(found.low[0]), float(found.high[0])):
        assert (a / n - x) ** 2 == pytest.approx(z * z * x * (1 - x) / n, rel=1e-6, abs=1e-15)
    assert 0 <= found.low[0] <= found.rate[0] <= found.high[0] <= 1
    assert (found.rate[0], found.low[0], found.high[0]) == found.overall


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(8)
    for alpha in (0.3, 0.8):
        drawn = rng.binomial(200, alpha, 1000)
        found = [beta_by_depth([200], [a]) for a in drawn]
        inside = np.mean([f.low[0] <= alpha <= f.high[0] for f in found])
        assert 0.93 <= inside <= 0.97


# Refusals


COST = CostByLength.constant(0.1, longest=4)
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: acceptance([0.5, 0.6], [0.5, 0.5]), r"p sums to 1\.1; expected 1"),
    (lambda: acceptance([0.5, 0.5], [1.5, -0.5]), r"q\[0\] is 1\.5; expected chances from 0 to 1"),
    (lambda: acceptance([math.nan, 1], [0.5, 0.5]), r"p\[0\] is nan"),
    (lambda: acceptance([0.5, 0.5], [1.0]), "q has 1 entries; expected 2"),
    (lambda: acceptance([], []), r"p sums to 0\.0"),
    (lambda: acceptance(np.eye(1), [1.0]), r"p is array\(\[\[1\.\]\]\); expected a row of"),
    (lambda: acceptance([[1.0], [0.5, 0.5]], [1.0]), "expected a row of"),  # type: ignore[list-item]
    (lambda: acceptance(["1"], [1.0]), "expected a row of"),  # type: ignore[list-item]
    (lambda: acceptance_chosen([0.5, 0.5], [2]), r"tokens\[0\] is 2; expected token ids below 2"),
    (lambda: acceptance_chosen([0.5, 0.5], [-1]), r"tokens\[0\] is -1"),
    (lambda: acceptance_chosen([0.5, 0.5], [0.5]), r"tokens is \[0\.5\]"),  # type: ignore[list-item]
    (lambda: pinsker(-0.1), r"kl is -0\.1; expected 0 to inf"),
    (lambda: acceptance_floor(math.nan), "kl is nan"),
    (
        lambda: expected_tokens([0.5, 1.2]),
        r"acceptances\[1\] is 1\.2; expected chances from 0 to 1",
    ),
    (lambda: expected_tokens_of_tree([0], [0.5]), r"parents\[0\] is 0; expected -1 to -1"),
    (lambda: expected_tokens_of_tree([-2], [0.5]), r"parents\[0\] is -2; expected earlier"),
    (lambda: expected_tokens_of_tree([-1, 0], [0.5]), "acceptances has 1 entries"),
    (
        lambda: expected_tokens_of_tree([-1, 0, 0], [1, 0.6, 0.6]),
        r"below node 0 sum to 1\.2; expected at most 1",
    ),
    (lambda: CostByLength([], []), r"lengths \[\]"),
    (
        lambda: CostByLength([1.0, 1.0], [0.5, 1.0]),
        r"draft \[0\.5 1\. \]; expected both to begin with 0",
    ),
    (lambda: CostByLength([1.0, 1.0], [0.0, 1.0], [0, 0]), r"lengths \[0 0\]"),
    (lambda: CostByLength([1.0], [0.0], [1]), r"lengths \[1\]"),
    (lambda: CostByLength([1.0, 0.0], [0.0, 1.0]), r"verify\[1\] is 0\.0; expected finite"),
    (lambda: CostByLength([1.0, 1.0], [0.0, math.inf]), r"draft\[1\] is inf"),
    (lambda: CostByLength.constant(-0.1), r"draft\[1\] is -0\.1"),
    (lambda: CostByLength.constant(math.inf), r"draft\[0\] is nan"),
    (lambda: CostByLength.constant(0.1, lambda k: 2.0), r"verify\(0\) is 2\.0; expected 1"),
    (lambda: speedup(0.5, COST, 5), "k is 5; expected 0 to 4"),
    (lambda: speedup(0.5, COST, -1), "k is -1"),
    (lambda: speedup([0.5], COST, 2), "k is 2; expected at most 1"),
    (lambda: speedup(1.5, COST, 0), r"acceptances\[0\] is 1\.5"),
    (lambda: best_length(-0.5, COST), r"acceptances\[0\] is -0\.5"),
    (lambda: beta_by_depth([3], [4]), r"in turn are \[3, 4\]; expected numbers that never rise"),
    (lambda: beta_by_depth([9, 5], [4, 2]), r"\[9, 4, 5, 2\]"),
    (lambda: beta_by_depth([-1], [0]), r"reached\[0\] is -1; expected whole numbers"),
    (lambda: beta_by_depth([1], [1, 1]), "accepted has 2 entries"),
    (lambda: beta_by_depth([1], [1], 1.0), r"level is 1\.0; expected"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_refusals(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()


def test_every_function_says_its_formula_and_when_it_holds() -> None:
    for name in theory.__all__:
        thing = getattr(theory, name)
        if inspect.isfunction(thing):
            doc = " ".join((thing.__doc__ or "").split())
            assert "=" in doc and "olds" in doc, name


def test_rows_of_float32_are_probs() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 150_000)).astype(np.float32)
    p, q = (np.exp(row) / np.exp(row).sum() for row in logits)
    assert p.dtype == np.float32 and 0 < acceptance(p, q) < 1
    assert acceptance(p, q) == pytest.approx(1 - total_variation(p, q), abs=1e-12)
