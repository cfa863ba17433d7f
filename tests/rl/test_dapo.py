"""DAPO's parts against cases computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from foresay.errors import InputError
from foresay.rl.dapo import (
    advantages,
    entropies,
    fill_batch,
    informative,
    overlong_penalty,
    policy_terms,
    token_logprobs,
    token_mean,
)
from foresay.rl.mismatch import difference


@pytest.mark.parametrize(
    ("length", "penalty"),
    [
        (0, 0.0),
        (79, 0.0),
        (80, 0.0),
        (81, -0.05),
        (90, -0.5),
        (99, -0.95),
        (100, -1.0),
        (101, -1.0),
    ],
)
def test_overlong_shaping_at_its_borders(length: int, penalty: float) -> None:
    assert overlong_penalty(length, cap=100, buffer=20) == pytest.approx(penalty)


def test_overlong_shaping_without_a_buffer() -> None:
    assert overlong_penalty(100, cap=100, buffer=0) == 0.0
    assert overlong_penalty(101, cap=100, buffer=0) == -1.0
    with pytest.raises(InputError, match="below the cap of 100"):
        overlong_penalty(1, cap=100, buffer=100)


def test_advantages_are_normalised_by_group() -> None:
    deviation = math.sqrt((3 * 0.25**2 + 0.75**2) / 3)
    expected = [0.75 / deviation] + [-0.25 / deviation] * 3
    assert advantages([1.0, 0.0, 0.0, 0.0]) == pytest.approx(expected, rel=1e-5)
    assert advantages([0.5] * 4).tolist() == [0.0] * 4
    assert informative([1.0, 0.0]) and not informative([1.0, 1.0]) and not informative([0.0])


def test_dynamic_sampling() -> None:
    calls = []

    def draw(groups: list[list[float]]) -> Sequence[float]:
        calls.append(1)
        return groups.pop(0)

    def keep(value: float) -> bool:
        return 0 < value < 1

    rounds = [[0.0, 0.5, 1.0], [0.25, 1.0, 0.75], [0.1, 0.2, 0.3]]
    waiting = list(rounds)
    assert fill_batch(lambda: draw(waiting), keep, wanted=2, rounds=3) == (
        [0.5, 0.25],  # the first two; no third round
        [0.0, 0.5, 1.0, 0.25, 1.0, 0.75],
    )
    waiting = list(rounds)
    assert fill_batch(lambda: draw(waiting), keep, wanted=9, rounds=2) == (
        [0.5, 0.25, 0.75],
        [0.0, 0.5, 1.0, 0.25, 1.0, 0.75],
    )
    assert len(calls) == 4
    with pytest.raises(InputError, match="wanted"):
        fill_batch(lambda: [1], bool, wanted=0, rounds=1)


@pytest.mark.parametrize(
    ("ratio", "gain", "loss", "slope"),
    [
        (1.00, 2.0, -2.0, True),
        (1.27, 2.0, -2.54, True),  # below 1 + high: not clipped, though above 1 + low
        (1.50, 2.0, -2.56, False),  # clipped at 1.28
        (0.50, 2.0, -1.0, True),  # a good token that became rare is pulled back
        (0.81, -1.0, 0.81, True),
        (0.50, -1.0, 0.8, False),  # clipped at 0.8
        (1.50, -1.0, 1.5, True),  # a bad token that became frequent is pushed down
    ],
)
def test_clip_higher_on_both_sides(ratio: float, gain: float, loss: float, slope: bool) -> None:
    old = torch.tensor([[-1.5]])
    new = (old + math.log(ratio)).requires_grad_()
    terms = policy_terms(new, old, torch.tensor([gain]), low=0.2, high=0.28)
    assert terms.losses.item() == pytest.approx(loss, rel=1e-5)
    terms.losses.sum().backward()
    assert new.grad is not None and bool(new.grad.item()) == slope
    assert bool(terms.clipped_low) == (not slope and gain < 0)
    assert bool(terms.clipped_high) == (not slope and gain > 0)


def test_token_mean_is_not_the_mean_of_samples() -> None:
    losses = torch.tensor([[4.0, 100.0, 100.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    mean = token_mean(losses, mask, tokens=4)
    assert mean.item() == pytest.approx((4 + 1 + 1 + 1) / 4)  # of samples it would be (4 + 1) / 2
    parts = [token_mean(losses[at : at + 1], mask[at : at + 1], tokens=4) for at in range(2)]
    assert sum(part.item() for part in parts) == pytest.approx(mean.item())
    with pytest.raises(InputError, match="tokens"):
        token_mean(losses, mask, tokens=0)


def test_logprobs_and_entropies() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [0.0, 0.0]]])
    tokens = torch.tensor([[1, 0]])
    found = token_logprobs(logits, tokens)[0].tolist()
    assert found == pytest.approx([math.log(0.75), math.log(0.5)])
    cold = token_logprobs(logits, tokens, temperature=0.5)[0].tolist()
    assert cold == pytest.approx([math.log(0.9), math.log(0.5)])
    spread = entropies(logits)[0].tolist()
    assert spread == pytest.approx(
        [-0.75 * math.log(0.75) - 0.25 * math.log(0.25), math.log(2.0)], rel=1e-5
    )


def test_the_difference_of_logprobs() -> None:
    found = difference([-1.0, -2.0], np.array([-1.0, -2.5]))
    assert found == {
        "mean": pytest.approx(0.25),
        "max": pytest.approx(0.5),
        "ratio": pytest.approx((1 + math.exp(-0.5)) / 2),
    }
    assert difference([], []) == {"mean": 0.0, "max": 0.0, "ratio": 1.0}
    with pytest.raises(InputError, match="for every token"):
        difference([1.0], [1.0, 2.0])
    with pytest.raises(InputError, match="0 is nan; expected"):
        difference([1.0], [float("nan")])
