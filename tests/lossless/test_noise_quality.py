"""The keyed noise has the distribution it should have, and the checks find noise that has not."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from foresay.draft import Draft
from foresay.lossless.gtest import g_test
from foresay.lossless.noise_quality import (
    NOISE_CONTROLS,
    Finding,
    Longs,
    Seeds,
    choices,
    coarse_sampler,
    noise_quality,
    reference_sampler,
    uniforms,
)
from foresay.sampling import SamplingParams, VerificationInput, noise
from foresay.sampling.noise import uniform
from foresay.sampling.reference import match


def wrong(checks: list[Finding]) -> set[str]:
    return {check.name for check in checks if not check.ok}


def test_the_reference_is_the_rule_match() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20, 16)).astype(np.float32)
    seeds, positions = rng.integers(0, 2**64, 20, np.uint64), rng.integers(0, 99, 20)
    chosen = reference_sampler(logits, seeds, positions)
    for row, seed, position, token in zip(logits, seeds, positions, chosen, strict=True):
        request = VerificationInput(SamplingParams(), int(seed), np.zeros(position, np.int32))
        assert match(Draft.empty(), row[np.newaxis], request).tokens.tolist() == [token]


def test_the_reference_passes() -> None:
    checks = noise_quality(reference_sampler, effort=0.002)
    assert len(checks) == 12 and not wrong(checks)
    assert all(0 <= check.p_value <= 1 and check.n > 0 for check in checks)


@pytest.mark.parametrize("only", ["distribution", "tail", "all"])
def test_a_right_sampler_passes_at_full_size(only: str) -> None:
    checks = choices(coarse_sampler(52), 0.1 if only == "distribution" else 1.0, only=only)
    assert checks and not wrong(checks)


def test_a_right_sampler_is_rarely_suspected() -> None:
    p_values = [
        check.p_value
        for seed in range(40)
        for check in choices(coarse_sampler(52), 0.01, seed, only="distribution of 8")
    ]
    assert 0.2 < np.mean(p_values) < 0.8 and min(p_values) > 1e-5


@pytest.mark.parametrize("name", NOISE_CONTROLS)
def test_wrong_noise_is_found(name: str) -> None:
    sampler, by, sentence = NOISE_CONTROLS[name]
    effort = 1.0 if by == "tail" else 0.01  # 24 bits are enough for a tail that is nearer
    checks = choices(sampler, effort, only=by)
    assert checks and wrong(checks) == {check.name for check in checks}, sentence
    assert checks[0].p_value < 1e-9


def test_a_bias_of_some_percent_is_found() -> None:
    def warm(logits: np.ndarray, seeds: Seeds, positions: Longs) -> Longs:
        return reference_sampler((logits / 1.15).astype(np.float32), seeds, positions)

    assert wrong(choices(warm, 0.01, only="distribution of 8")) == {"distribution of 8 tokens"}


def test_noise_that_is_shared_is_found() -> None:
    def half_a_seed(logits: np.ndarray, seeds: Seeds, positions: Longs) -> Longs:
        return reference_sampler(logits, seeds >> np.uint64(1), positions)

    def four_noises(logits: np.ndarray, seeds: Seeds, positions: Longs) -> Longs:
        added = noise.gumbel(seeds[:, None], positions[:, None], np.arange(logits.shape[1]) % 4)
        result: Longs = np.argmax(logits + added, axis=1)
        return result

    assert wrong(choices(half_a_seed, 0.01, only="next")) == {"next seed"}
    assert wrong(choices(four_noises, 0.01, only="other tokens")) == {"other tokens"}


def test_uniforms_that_are_none_are_found() -> None:
    def squared(seeds: Seeds, positions: Longs, tokens: Longs) -> noise.Doubles:
        return noise.uniform(seeds, positions, tokens) ** 1.05

    def diagonal(seeds: Seeds, positions: Longs, tokens: Longs) -> noise.Doubles:
        return noise.uniform(seeds, positions // 2, tokens // 2)

    assert "uniform distribution" in wrong(uniforms(squared, 0.01))
    assert wrong(uniforms(diagonal, 0.01)) == {
        "uniforms of next positions",
        "uniforms of next tokens",
    }


def test_purposes_are_independent() -> None:
    """The noise of two streams at the same place has nothing in common."""
    seeds, positions = np.arange(200)[:, None, None], np.arange(20)[None, :, None]
    of = {s: uniform(seeds, positions, np.arange(50), s).ravel() for s in (0, 1, 2, 3, 16, 17)}
    for a, b in combinations(of, 2):
        table = np.histogram2d(of[a], of[b], bins=8, range=((0, 1), (0, 1)))[0]
        assert g_test(table.astype(int).ravel(), np.full(64, 1 / 64)).p_value > 1e-6, (a, b)
