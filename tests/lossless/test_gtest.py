"""The statistics: calibrated, as strong as they say, and strict about what they are given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2, kstest  # type: ignore[import-untyped]

from foresay.errors import InputError
from foresay.lossless.gtest import (
    confirmed,
    detectable,
    g_test,
    pair_power,
    permutation,
    power,
    samples_needed,
    two_sample,
)

Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]
PROBS = np.array([0.3, 0.25, 0.2, 0.1, 0.08, 0.05, 0.015, 0.005])
EVEN = np.full(8, 1 / 8)
BIAS = np.array([1, -1] * 4) / 4  # times the total variation


def draws(probs: Doubles, n: int, runs: int, seed: int) -> Ints:
    return np.random.default_rng(seed).multinomial(n, probs, size=runs)


BIASES = (0.05, 0.02, 0.01, 0.005)
NEEDED = {  # by cells: the draws that find these biases with 99.9 % at 1e-6, rounded
    8: (8_200, 51_000, 206_000, 823_000),
    64: (14_000, 89_000, 355_000, 1_420_000),
    512: (31_000, 192_000, 767_000, 3_070_000),
    4096: (77_000, 479_000, 1_920_000, 7_700_000),
}


@pytest.mark.parametrize("cells", NEEDED)
def test_the_table_of_draws_needed(cells: int) -> None:
    for total_variation, n in zip(BIASES, NEEDED[cells], strict=True):
        needed = samples_needed(cells, total_variation, 1e-6, 0.999)
        assert abs(needed - n) <= max(0.01 * n, 50 if n < 10_000 else 500)
        assert power(needed, cells, total_variation, 1e-6) >= 0.999
        assert power(needed - 1, cells, total_variation, 1e-6) < 0.999


def test_the_power_is_the_share_of_biased_samplers_that_are_found() -> None:
    n, total_variation, alpha = 2_000, 0.06, 1e-3
    biased = draws(EVEN + total_variation * BIAS, n, 3_000, seed=1)
    found = np.mean([g_test(counts, EVEN).p_value <= alpha for counts in biased])
    assert found == pytest.approx(power(n, 8, total_variation, alpha), abs=0.03)
    # Spread evenly over a uniform distribution is the hardest: another bias of that size is found
    # at least as often.
    shifted = PROBS + total_variation * (np.eye(8)[5] - np.eye(8)[0])
    elsewhere = np.mean([g_test(c, PROBS).p_value <= alpha for c in draws(shifted, n, 500, seed=2)])
    assert elsewhere >= found


def test_two_samples_have_the_power_of_half_as_many_draws() -> None:
    n, total_variation = 4_000, 0.06
    a = draws(EVEN, n, 2_000, seed=3)
    b = draws(EVEN + total_variation * BIAS, n, 2_000, seed=4)
    found = np.mean([two_sample(x, y).p_value <= 1e-3 for x, y in zip(a, b, strict=True)])
    assert found == pytest.approx(power(n / 2, 8, total_variation, 1e-3), abs=0.03)


def test_detectable_turns_power_round() -> None:
    found = detectable(10_000, 20, 1e-3, 0.99)
    assert found is not None
    assert pair_power(10_000, 20, found, 1e-3) >= 0.99
    assert pair_power(10_000, 20, found - 1e-5, 1e-3) < 0.99
    assert detectable(2, 20, 1e-3, 0.99) is None


@pytest.mark.parametrize("n", [1_500, 20_000])
def test_p_values_of_correct_samplers_are_uniform(n: int) -> None:
    p = [g_test(counts, PROBS).p_value for counts in draws(PROBS, n, 1_500, seed=5)]
    assert kstest(p, "uniform").pvalue > 0.01
    pairs = zip(draws(PROBS, n, 1_500, seed=6), draws(PROBS, 2 * n, 1_500, seed=7), strict=True)
    assert kstest([two_sample(a, b).p_value for a, b in pairs], "uniform").pvalue > 0.01


def test_many_cells_with_few_draws_are_no_alarm() -> None:
    cells = 512
    runs = draws(np.full(cells, 1 / cells), 10 * cells, 1_000, seed=8)
    rejected = np.mean([g_test(c, np.full(cells, 1 / cells)).p_value <= 0.05 for c in runs])
    assert rejected < 0.065  # 0.085 without Williams's correction


def test_rare_cells_are_merged() -> None:
    probs = np.array([0.5, 0.4, 0.04, 0.03, 0.03])
    test = g_test(
        [50, 40, 5, 5, 0], probs
    )  # of 100, the last three expect 4, 3 and 3: one cell of 10
    assert (test.cells, test.df, test.n) == (3, 2, 100)
    assert test.statistic == 0 and test.p_value == 1
    # 1 is too few for a cell of its own, so it joins the next rarest.
    assert g_test([60, 39, 1], [0.6, 0.39, 0.01]).cells == 2
    assert two_sample([50, 40, 1, 0], [50, 40, 0, 1]).cells == 2
    assert two_sample([50, 0, 40], [50, 0, 40]).cells == 2  # what never came is no cell


def test_the_likelihood_ratio_by_hand() -> None:
    test = g_test([60, 40], [0.5, 0.5])
    g = 2 * (60 * math.log(60 / 50) + 40 * math.log(40 / 50))
    assert test.statistic == pytest.approx(g / (1 + 3 / (6 * 100)))
    assert test.p_value == pytest.approx(chi2.sf(test.statistic, 1))


def test_the_impossible_is_found_at_once() -> None:
    test = g_test([1_000_000, 1], [1.0, 0.0])
    assert (test.p_value, test.statistic) == (0.0, math.inf)
    assert g_test([10, 0], [1.0, 0.0]).p_value == 1.0
    assert power(samples_needed(1, 0.005, 1e-6, 0.999), 1, 0.005, 1e-6) >= 0.999


def test_everything_in_one_cell() -> None:
    assert g_test([7], [1.0]).p_value == 1.0
    assert g_test([2, 2], [0.5, 0.5]).df == 0  # four draws fill no second cell
    assert two_sample([0, 9], [0, 5]).p_value == 1.0


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_any_counts_give_a_p_value(counts: list[int]) -> None:
    if not any(counts):
        counts[0] = 1
    probs = np.arange(1, len(counts) + 1) / np.arange(1, len(counts) + 1).sum()
    for test in (g_test(counts, probs), two_sample(counts, counts[::-1])):
        assert 0 <= test.p_value <= 1 and test.df == test.cells - 1 and test.statistic >= 0
    assert two_sample(counts, counts).p_value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        ([1, 2], [1.0]),
        ([0, 0], [0.5, 0.5]),
        ([1, -1], [0.5, 0.5]),
        ([1.5, 2.0], [0.5, 0.5]),
        ([1, 2], [0.5, 0.6]),
        ([1, 2], [1.5, -0.5]),
        ([1, 2], [math.nan, 0.5]),
    ],
)
def test_what_is_no_table_is_refused(observed: list[int], expected: list[float]) -> None:
    with pytest.raises(InputError):
        g_test(observed, expected)


def test_arguments_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected [0-9]+ ints"):
        two_sample([1, 2], [1, 2, 3])
    for bad in ((100, 0, 0.1, 0.1), (100, 8, 0.0, 0.1), (100, 8, 0.1, 1.0)):
        with pytest.raises(InputError, match="expected at least"):
            power(*bad)
    with pytest.raises(InputError, match="power 1 "):
        samples_needed(8, 0.01, 1e-6, 1)
    with pytest.raises(InputError, match="family 0"):
        confirmed(lambda seed, n: [n], [1.0], family=0)
    with pytest.raises(InputError, match="gave 5 draws"):
        confirmed(lambda seed, n: [5], [1.0])


def sampler(probs: Doubles, asked: list[tuple[int, int]]) -> object:
    def sample(seed: int, n: int) -> Ints:
        asked.append((seed, n))
        return np.random.default_rng(seed).multinomial(n, probs)

    return sample


def test_a_correct_sampler_is_confirmed_in_one_test() -> None:
    asked: list[tuple[int, int]] = []
    outcome = confirmed(sampler(PROBS, asked), PROBS, seed=3)  # type: ignore[arg-type]
    assert outcome.equal and len(outcome.p_values) == 1
    assert asked == [(3, outcome.n)]
    assert outcome.power >= 0.999 and outcome.false_alarm <= 1e-9
    assert outcome.power == pair_power(outcome.n, 8, 0.005, 1e-5)
    assert str(outcome).startswith(f"equal, p = {outcome.p_values[0]:.2g} from {outcome.n} draws; ")


def test_a_biased_sampler_is_different_only_after_two_tests() -> None:
    asked: list[tuple[int, int]] = []
    biased = EVEN + 0.005 * BIAS
    outcome = confirmed(sampler(biased, asked), EVEN)  # type: ignore[arg-type]
    assert not outcome.equal and len(outcome.p_values) == 2
    assert asked[1][1] == 4 * asked[0][1] and asked[1][0] != asked[0][0]
    again: list[tuple[int, int]] = []
    assert confirmed(sampler(biased, again), EVEN) == outcome  # type: ignore[arg-type]
    assert again == asked


def test_one_rejection_is_not_enough() -> None:
    def unlucky_once(seed: int, n: int) -> Ints:
        probs = PROBS[::-1] if seed == 0 else PROBS
        return np.random.default_rng(seed).multinomial(n, probs)

    outcome = confirmed(unlucky_once, PROBS)
    assert outcome.equal and outcome.p_values[0] < 1e-5 < outcome.p_values[1]


def test_a_family_shares_its_false_alarms() -> None:
    outcome = confirmed(sampler(PROBS, []), PROBS, family=20)  # type: ignore[arg-type]
    assert outcome.alpha == 1e-5 / 20 and outcome.power >= 0.999
    assert 20 * outcome.false_alarm <= 1e-10


def test_permutation_is_exact_where_answers_of_a_request_are_copies() -> None:
    rng = np.random.default_rng(9)
    p = []
    for run in range(200):
        copies = 8 * rng.multinomial(1, [0.5, 0.3, 0.2], size=32)
        p.append(permutation([(copies[::2], copies[1::2])], permutations=200, seed=run))
    assert np.mean(np.array(p) <= 0.05) <= 0.1  # taken for independent, two of three would reject
    same = np.ones((20, 2), np.int64)
    assert permutation([(same, same)]) == 1.0
    apart = np.zeros((20, 2), np.int64)
    apart[:, 0] = 2
    assert permutation([(apart, apart[:, ::-1])]) == 1 / 10_001
