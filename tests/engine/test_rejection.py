"""Rule rejection in the engine: the exact distribution for sampled drafts, with any policy.

The distribution of a text of three tokens is known in full: the model has five. Many requests, each
with its own seed, are answered by the real engine, and their texts are tested against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, product
from typing import Any

import numpy as np
import pytest

from engine.asking import rows_of
from engine.drafters import Drawing, Near, near
from foresay import Draft, DraftBatch, SamplingParams
from foresay.arrays import Floats
from foresay.budget.load import Load
from foresay.budget.policy import Fixed, Policy
from foresay.budget.selected import SelectedNodes
from foresay.drafters import SuffixDrafter
from foresay.engine import proposal as proposal_module
from foresay.engine import request as request_module
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.engine.proposal import Proposal, with_all_sampled
from foresay.engine.request import Request
from foresay.lossless.gtest import g_test
from foresay.models.target import Target
from foresay.sampling.processors import probabilities, scores
from foresay.sampling.verification import VerificationInput
from models.quick import quick_target

PROMPT, SIZE, LENGTH, MANY = [3, 1, 4], 5, 3, 1000
SAMPLED = SamplingParams(temperature=1.7, max_tokens=LENGTH, rule="rejection")


@pytest.fixture(scope="module")
def target() -> Target:
    return quick_target(vocab_size=SIZE)


class ByScore(Fixed):
    """Verifies only likely nodes: what no sampled token may be subject to."""

    def choose(self, drafts: DraftBatch, load: Load) -> SelectedNodes:
        scores = np.zeros(len(drafts.tokens)) if drafts.scores is None else drafts.scores
        return SelectedNodes(drafts, scores >= 0.3)


@contextmanager
def numbered_noise() -> Iterator[None]:
    """Requests that are added meanwhile have noise of the seeds 0, 1, …: tests give the same
    results every time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_module, "new_seed", count().__next__)
        yield


def texts_of(
    target: Target, drafter: Any, policy: Policy, params: SamplingParams = SAMPLED, many: int = MANY
) -> list[Request]:
    engine = Engine(target, drafter, policy=policy, max_running=32)
    with numbered_noise():
        requests = [engine.add(PROMPT, params, seed=seed) for seed in range(many)]
    engine.run()
    engine.check_integrity()
    return requests


def p_value(target: Target, requests: Sequence[Request], params: SamplingParams = SAMPLED) -> float:
    """How well the texts agree with the target's distribution."""
    rows, chances = near(rows_of(target), 0.0), dict[tuple[int, ...], float]()
    for text in product(range(SIZE), repeat=LENGTH):
        chance = 1.0
        for at, token in enumerate(text):
            ask = VerificationInput(params, 0, PROMPT, list(text[:at]))
            row = scores(rows([*PROMPT, *text[:at]], len(PROMPT)), ask)
            chance *= float(probabilities(row, params.greedy)[token])
        chances[text] = chance
    counts = dict.fromkeys(chances, 0)
    for request in requests:
        counts[tuple(request.token_ids)] += 1
    return g_test(list(counts.values()), list(chances.values())).p_value


@pytest.fixture(scope="module")
def rows(target: Target) -> Near:
    return near(rows_of(target), 1.5)


@pytest.mark.parametrize(
    ("policy", "says"),
    [(ByScore(k=3), True), (Fixed(k=2), True), (ByScore(k=3), False)],
    ids=["sampled", "sampled, two", "chosen, by score"],
)
def test_the_distribution_of_texts(target: Target, rows: Near, policy: Policy, says: bool) -> None:
    requests = texts_of(target, Drawing(rows, says), policy)
    assert p_value(target, requests) > 1e-3
    accepted = sum(request.stats.accepted for request in requests)
    assert accepted > (0.5 if says else 0.2) * len(requests)


def test_dropping_sampled_tokens_by_score_is_found(
    target: Target, rows: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine guards against: the texts are no samples of the target then."""
    monkeypatch.setattr(proposal_module, "with_all_sampled", lambda chosen, proposal, load: chosen)
    assert p_value(target, texts_of(target, Drawing(rows), ByScore(k=3))) < 1e-6


def test_probs_that_were_not_sampled_from_are_found(target: Target, rows: Near) -> None:
    class Lying(Drawing):
        def _chain(self, state: Any, budget: int) -> Draft:
            draft = super()._chain(state, budget)
            flat = np.full((len(draft), SIZE), 1 / SIZE, np.float32)
            return Draft(draft.tokens, draft.parents, draft.scores, flat)

    assert p_value(target, texts_of(target, Lying(rows), Fixed(k=3), many=300)) < 1e-9


def asked_twice(target: Target, many: int) -> list[Request]:
    """Second answers, each drafted from the first answer to the same prompt and seed, which alone
    is known: with a history, what is usual in all answers would count for more.
    """
    engine = Engine(target, SuffixDrafter(history=False), policy=Fixed(k=3), max_running=64)
    for _ in range(2):
        requests = [engine.add(PROMPT, SAMPLED, seed=seed, group=f"{seed}") for seed in range(many)]
        engine.run()
    assert sum(request.stats.accepted for request in requests) > many / 4
    return requests


def test_a_seed_that_comes_back_meets_new_noise(target: Target) -> None:
    """Else a draft that is remembered from the first answer would be judged by the noise that made
    that answer, and the second answers would be no samples of the target."""
    with numbered_noise():
        assert p_value(target, asked_twice(target, 600)) > 1e-3
    with pytest.MonkeyPatch.context() as patch:
        numbers = count()
        patch.setattr(request_module, "new_seed", lambda: next(numbers) % 600)
        assert p_value(target, asked_twice(target, 600)) < 1e-6


def test_a_seed_does_not_repeat_an_answer(target: Target) -> None:
    engine = Engine(target, None)
    requests = [engine.add(PROMPT, SAMPLED, seed=1) for _ in range(20)]
    engine.run()
    assert len({tuple(request.token_ids) for request in requests}) > 1
    assert all(request.seed == 1 for request in requests)


def test_each_request_has_its_own_rule(
    target: Target, rows: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one step both kinds, in any order; rule match gives the tokens of the plain loop, and rule
    rejection those that it gives alone."""
    params = [
        SamplingParams(temperature=1.7, max_tokens=9, rule=rule)
        for rule in ("match", "rejection", "match", "rejection", "rejection", "match")
    ]
    for drafter in (Drawing(rows), Drawing(rows, says=False)):
        engine = Engine(target, drafter, policy=Fixed(k=3))
        monkeypatch.setattr(request_module, "new_seed", lambda: 77)
        together = [engine.add(PROMPT, p, seed=seed) for seed, p in enumerate(params)]
        engine.run()
        assert all(request.stats.accepted for request in together)
        for seed, (request, own) in enumerate(zip(together, params, strict=True)):
            if own.rule == "match":
                expected = plain(logits_of(target), PROMPT, own, seed)
            else:
                alone = engine.add(PROMPT, own, seed=seed)
                engine.run()
                expected = alone.token_ids
            assert request.token_ids == expected


SPOILED: dict[str, Callable[[Floats], Any]] = {
    "negative": lambda probs: np.subtract(probs, 0.5, dtype=np.float32),
    "nothing": np.zeros_like,
    "narrow": lambda probs: np.array(probs[:, :-1], np.float32),
    "wide": lambda probs: probs.astype(np.float64),
    "objects": lambda probs: probs.astype(object),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_bad_probs_cost_the_drafts_and_nothing_else(target: Target, rows: Near, spoil: Any) -> None:
    class Bad(Drawing):
        def _chain(self, state: Any, budget: int) -> Draft:
            draft = super()._chain(state, budget)
            probs = None if draft.probs is None else spoil(draft.probs)
            return Draft._trusted(draft.tokens, draft.parents, draft.scores, probs)

    with pytest.warns(UserWarning, match=r"is not asked again.*probs"):
        requests = texts_of(target, Bad(rows), Fixed(k=3), many=20)
    undrafted = texts_of(target, None, Fixed(k=3), many=20)
    assert [r.token_ids for r in requests] == [r.token_ids for r in undrafted]
    assert all(request.error is None for request in requests)


def test_probs_follow_the_nodes_that_are_left() -> None:
    """Beyond max_tokens there is nothing to verify, also of a sampled draft."""
    probs = np.arange(4 * SIZE, dtype=np.float32).reshape(4, SIZE)
    drafts = DraftBatch.of([Draft([1, 2, 3, 4], [-1, 0, 1, -1]), Draft.chain([1, 2])])
    proposal = Proposal(drafts, {0: probs})
    load = Load(np.array([3, 3]), np.array([3, 9]))
    likely = np.array([True, False, False, False, True, False])
    chosen = with_all_sampled(SelectedNodes(drafts, likely), proposal, load)
    assert chosen.drafts[0].tokens.tolist() == [1, 2, 4] and len(chosen.drafts[1]) == 1
    assert proposal.probs_of(chosen)[0].tolist() == probs[[0, 1, 3]].tolist()


class Crowded(Drawing):
    """Notes the budgets that it is given."""

    def __init__(self, rows: Near) -> None:
        super().__init__(rows)
        self.budgets: list[int] = []

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> list[Draft]:
        self.budgets += budgets
        return super().propose(states, budgets)


def test_memory_is_reserved_before_tokens_are_sampled(
    target: Target, rows: Near, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is none, nothing is drafted: to drop a draft later, because of its size, would
    change the distribution."""
    drafter = Crowded(rows)
    engine = Engine(target, drafter, policy=Fixed(k=3))
    for seed in range(6):
        engine.add(PROMPT, SAMPLED, seed=seed)
    asked: list[int] = []

    def none_left(requests: Sequence[Request], nodes: Sequence[int]) -> list[bool]:
        asked.extend(nodes)
        return [False] * len(requests)

    monkeypatch.setattr(engine.scheduler, "reserve", none_left)
    engine.run()
    assert any(asked) and not any(drafter.budgets)
