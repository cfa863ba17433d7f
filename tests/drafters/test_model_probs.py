"""ModelDrafter under rule rejection: the texts have the target's distribution."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest

from engine.test_rejection import LENGTH, PROMPT, SAMPLED, SIZE, p_value, texts_of
from foresay import DraftBatch, SamplingParams, SeededParams
from foresay.budget.policy import Fixed
from foresay.drafters import ModelDrafter
from foresay.drafters.decoding import next_tokens, state
from foresay.drafters.model import Dynamic
from foresay.engine import request as request_module
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.models.target import Target
from foresay.sampling.noise import Stream
from models.quick import quick_target

MANY = 600  # texts: the wrong variants below are found by p values under 1e-12
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, rule="rejection")


@pytest.fixture(scope="module")
def target() -> Target:
    return quick_target(vocab_size=SIZE)


@pytest.fixture(scope="module")
def model() -> Target:
    """Another model: what it likes is not what the target likes."""
    return quick_target(1, vocab_size=SIZE)


@pytest.fixture(autouse=True)
def _numbered_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of drafts is the same in every run of the tests."""
    monkeypatch.setattr(state, "new_seed", partial(next, count(1 << 40)))


@pytest.mark.parametrize("shape", [2, (2, 2), (4, 1), Dynamic(width=2, depth=2)], ids=str)
def test_the_distribution_of_texts(target: Target, model: Target, shape: Any) -> None:
    requests = texts_of(target, ModelDrafter(model, shape=shape), Fixed(k=5), many=MANY)
    assert p_value(target, requests) > 1e-3
    accepted = sum(request.stats.accepted for request in requests)
    assert accepted > 0.2 * len(requests)


def _same_seed(target: Target, model: Target, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Answers to one seed. The engine's noise is new for each, as it always is."""
    monkeypatch.setattr(request_module, "new_seed", count(1 << 20).__next__)
    engine = Engine(target, ModelDrafter(model, shape=2), policy=Fixed(k=2), max_running=32)
    requests = [engine.add(PROMPT, SAMPLED, seed=1) for _ in range(MANY)]
    engine.run()
    return requests


def test_a_seed_that_comes_back_draws_new_drafts(
    target: Target, model: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert p_value(target, _same_seed(target, model, monkeypatch)) > 1e-3


def test_drafts_that_depend_on_the_seed_alone_are_found(
    target: Target, model: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: the drafter samples with the request's own seed, which comes back."""
    monkeypatch.setattr(state, "new_seed", lambda: 1)
    assert p_value(target, _same_seed(target, model, monkeypatch)) < 1e-6


def test_dropping_unlikely_samples_is_found(
    target: Target, model: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation: a sampled token is left out because of what it is."""
    right = next_tokens._sampled

    def wrong(*given: Any) -> list[next_tokens.NextTokens]:
        found = right(*given)
        return [
            next_tokens.NextTokens([], [], []) if min(one.chances) < 0.3 else one for one in found
        ]

    monkeypatch.setattr(next_tokens, "_sampled", wrong)
    requests = texts_of(target, ModelDrafter(model, shape=2), Fixed(k=5), many=MANY)
    assert p_value(target, requests) < 1e-6


def test_greedy_requests_under_rule_rejection(target: Target) -> None:
    """All mass is on one token: the same model has all of its drafts accepted."""
    requests = texts_of(target, ModelDrafter(target, shape=(3, 2)), Fixed(k=9), GREEDY, many=3)
    drafted = sum(request.stats.drafted for request in requests)
    assert drafted == sum(request.stats.accepted for request in requests) == 3 * (LENGTH - 1)


def test_probs_are_what_tokens_were_sampled_from(model: Target) -> None:
    drafter = ModelDrafter(model, shape=(3, 2))
    prompt = np.array(PROMPT, np.int32)
    params = SamplingParams(temperature=1.7, max_tokens=9, rule="rejection")
    counts, told = np.zeros((SIZE, SIZE)), np.zeros(SIZE)
    states = [drafter.begin(prompt, sampling=SeededParams(params, seed)) for seed in range(1000)]
    for draft in drafter.propose(states, [9] * 1000):
        assert draft.parents.tolist() == [-1, -1, -1, 0, 0, 1, 1, 2, 2] and draft.probs is not None
        np.testing.assert_allclose(draft.probs.sum(1), 1, atol=1e-6)
        first, second = draft.tokens[:2].tolist()
        assert draft.probs[1, first] == 0  # without replacement
        rest = draft.probs[0].copy()
        rest[first] = 0
        np.testing.assert_allclose(draft.probs[1], rest / rest.sum(), atol=1e-6)
        told, counts[first, second] = draft.probs[0], counts[first, second] + 1
    np.testing.assert_allclose(counts.sum(1) / 1000, told, atol=0.05)
    for first in np.flatnonzero(counts.sum(1) > 200):
        rest = np.where(np.arange(SIZE) == first, 0, told)
        np.testing.assert_allclose(counts[first] / counts[first].sum(), rest / rest.sum(), atol=0.1)


def test_budgets_cut_sampled_trees_before_they_are_sampled(model: Target) -> None:
    """The first nodes, whatever their tokens are."""
    whole = [-1, -1, -1, 0, 0, 1, 1, 2, 2]
    params = SamplingParams(temperature=1.7, max_tokens=9, rule="rejection")
    drafter = ModelDrafter(model, shape=(3, 2))
    for budget in range(1, 10):
        state = drafter.begin(np.array(PROMPT, np.int32), sampling=SeededParams(params, 4))
        drafts = DraftBatch.of(drafter.propose([state], [budget]))
        assert drafts[0].parents.tolist() == whole[:budget]
        again = DraftBatch.of(drafter.propose([state], [budget]))
        assert drafts == again


def test_drafts_have_streams_of_their_own(model: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    choose = next_tokens._choose

    def noted(values: Any, temperatures: Any, asks: Any, stream: int, threads: int) -> Any:
        used.append(stream)
        return choose(values, temperatures, asks, stream, threads)

    monkeypatch.setattr(next_tokens, "_choose", noted)
    params = SamplingParams(temperature=1.7, max_tokens=9, rule="rejection")
    drafter = ModelDrafter(model, shape=(3,))
    state = drafter.begin(np.array(PROMPT, np.int32), sampling=SeededParams(params, 4))
    drafter.propose([state], [3])
    assert used == [Stream.DRAFT, Stream.DRAFT + 1, Stream.DRAFT + 2]
