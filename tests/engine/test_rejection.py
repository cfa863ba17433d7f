"""Rule rejection in the engine: the exact distribution for sampled drafts, with any policy.

The distribution of a text of three tokens is known in full: the model has five. Many requests, each
with its own seed, are answered by the real engine, and their texts are tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from engine.drafters import Drawing, near
from foresay import Draft, DraftBatch, SamplingParams
from foresay.arrays import Floats
from foresay.budget.load import Chosen, Load, choose_nodes
from foresay.budget.policy import Fixed, Policy
from foresay.engine import engine as engine_module
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.lossless.gtest import g_test
from foresay.models.load import target_of
from foresay.models.target import Target
from foresay.sampling.ask import Ask
from foresay.sampling.processors import probabilities, scores
from models import zoo

PROMPT, SIZE, LENGTH, MANY = [3, 1, 4], 5, 3, 1000
SAMPLED = SamplingParams(temperature=1.7, max_tokens=LENGTH, rule="rejection")


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(zoo.make("llama", vocab_size=SIZE))


class Rows:
    """Logits after a text, each computed once."""

    def __init__(self, target: Target, error: float) -> None:
        self.rows = near(logits_of(target), error)
        self.known: dict[tuple[int, ...], Floats] = {}

    def __call__(self, text: Sequence[int], prompt: int) -> Floats:
        key = tuple(text)
        if key not in self.known:
            self.known[key] = self.rows(text, prompt)
        return self.known[key]


class ByScore(Fixed):
    """Verifies only likely nodes: what no sampled token may be subject to."""

    def choose(self, drafts: DraftBatch, load: Load) -> Chosen:
        likely = drafts.scores is not None and drafts.scores >= 0.3
        return choose_nodes(drafts, np.flatnonzero(likely))


def texts_of(
    target: Target, drafter: Any, policy: Policy, params: SamplingParams = SAMPLED, many: int = MANY
) -> list[Request]:
    engine = Engine(target, drafter, policy=policy, max_running=32)
    requests = [engine.add(PROMPT, params, seed=seed) for seed in range(many)]
    engine.run()
    engine.check_integrity()
    return requests


def p_value(target: Target, requests: Sequence[Request], params: SamplingParams = SAMPLED) -> float:
    """How well the texts agree with the target's distribution."""
    rows, chances = Rows(target, 0.0), dict[tuple[int, ...], float]()
    for text in product(range(SIZE), repeat=LENGTH):
        chance = 1.0
        for at, token in enumerate(text):
            ask = Ask(params, 0, PROMPT, list(text[:at]))
            row = scores(rows([*PROMPT, *text[:at]], len(PROMPT)), ask)
            chance *= float(probabilities(row, params.greedy)[token])
        chances[text] = chance
    counts = dict.fromkeys(chances, 0)
    for request in requests:
        counts[tuple(request.token_ids)] += 1
    return g_test(list(counts.values()), list(chances.values())).p_value


@pytest.fixture(scope="module")
def rows(target: Target) -> Rows:
    return Rows(target, 1.5)


@pytest.mark.parametrize(
    ("policy", "says"),
    [(ByScore(k=3), True), (Fixed(k=2), True), (ByScore(k=3), False)],
    ids=["sampled", "sampled, two", "chosen, by score"],
)
def test_the_distribution_of_texts(target: Target, rows: Rows, policy: Policy, says: bool) -> None:
    requests = texts_of(target, Drawing(rows, says), policy)
    assert p_value(target, requests) > 1e-3
    accepted = sum(request.stats.accepted for request in requests)
    assert accepted > (0.5 if says else 0.2) * len(requests)


def test_dropping_sampled_tokens_by_score_is_found(
    target: Target, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine guards against: the texts are no samples of the target then."""
    monkeypatch.setattr(engine_module, "with_all_sampled", lambda chosen, proposal, load: chosen)
    assert p_value(target, texts_of(target, Drawing(rows), ByScore(k=3))) < 1e-6


def test_probs_that_were_not_sampled_from_are_found(target: Target, rows: Rows) -> None:
    class Lying(Drawing):
        def _chain(self, state: Any, budget: int) -> Draft:
            draft = super()._chain(state, budget)
            flat = np.full((len(draft), SIZE), 1 / SIZE, np.float32)
            return Draft(draft.tokens, draft.parents, draft.scores, flat)

    assert p_value(target, texts_of(target, Lying(rows), Fixed(k=3), many=300)) < 1e-9


def test_a_seed_repeats_given_the_same_drafts(target: Target, rows: Rows) -> None:
    first, again, other = (
        [request.token_ids for request in texts_of(target, drafter, Fixed(k=3), many=40)]
        for drafter in (Drawing(rows), Drawing(rows), None)
    )
    assert first == again != other


def test_each_request_has_its_own_rule(target: Target, rows: Rows) -> None:
    """In one step both kinds, in any order; rule match gives the tokens of the plain loop, and rule
    rejection those that it gives alone."""
    params = [
        SamplingParams(temperature=1.7, max_tokens=9, rule=rule)
        for rule in ("match", "rejection", "match", "rejection", "rejection", "match")
    ]
    for drafter in (Drawing(rows), Drawing(rows, says=False)):
        engine = Engine(target, drafter, policy=Fixed(k=3))
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


def _negative(probs: Floats) -> Floats:
    return np.subtract(probs, 0.5, dtype=np.float32)


def _nothing(probs: Floats) -> Floats:
    return np.zeros(probs.shape, np.float32)


def _narrow(probs: Floats) -> Floats:
    return np.array(probs[:, :-1], np.float32)


@pytest.mark.parametrize("spoil", [_negative, _nothing, _narrow])
def test_bad_probs_cost_the_drafts_and_nothing_else(target: Target, rows: Rows, spoil: Any) -> None:
    class Bad(Drawing):
        def _chain(self, state: Any, budget: int) -> Draft:
            draft = super()._chain(state, budget)
            probs = None if draft.probs is None else spoil(draft.probs)
            return Draft(draft.tokens, draft.parents, draft.scores, probs)

    with pytest.warns(UserWarning, match=r"is not asked again.*probs"):
        requests = texts_of(target, Bad(rows), Fixed(k=3), many=20)
    undrafted = texts_of(target, None, Fixed(k=3), many=20)
    assert [r.token_ids for r in requests] == [r.token_ids for r in undrafted]
    assert all(request.error is None for request in requests)
