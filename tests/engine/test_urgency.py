"""Where all are waited for, guesses go to those who will end last; the texts stay what they are."""

from __future__ import annotations

import numpy as np
import pytest

from foresay import Draft, DraftBatch, SamplingParams
from foresay.drafters import SuffixDrafter
from foresay.engine.adaptive import Adaptive
from foresay.engine.cost import StepCost
from foresay.engine.engine import Engine
from foresay.engine.load import Load
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.engine.urgency import urgency
from foresay.models.load import target_of
from models import zoo


def flat() -> StepCost:
    """A machine on which rows cost next to nothing."""
    return StepCost.measured((r, r * 64, 0.01 + 1e-6 * r, 64) for r in (1, 2, 8, 64, 256))


def request(room: int, tokens: int, steps: int) -> Request:
    params = SamplingParams(max_tokens=room + tokens)
    made = Request(0, np.ones(3, np.int32), params, 1, (), None, None, None, together=True)
    made.append(np.ones(tokens, np.int32))
    made.stats.steps = steps
    return made


def test_who_needs_most_passes_counts_most() -> None:
    slow, fast, ending = request(40, 20, 20), request(40, 24, 20), request(5, 20, 20)
    worth = urgency([fast, slow, ending])
    assert worth is not None
    assert worth[1] == 1
    assert 0.2 < worth[0] < 1
    assert worth[2] == 0
    assert urgency([slow]) is None
    slow.together = False
    assert urgency([fast, slow, ending]) is None


def test_a_policy_asks_for_nobody_without_weight_and_prefers_the_heavy() -> None:
    contexts, room = np.full(3, 50, np.int64), np.full(3, 50, np.int64)
    load = Load(contexts, room, weights=np.array([0.0, 0.3, 1.0]))
    policy = Adaptive(flat(), total=12)
    budgets = policy.budgets(load)
    assert budgets[0] == 0
    assert min(budgets[1:]) > 0
    same = Draft.chain([1, 2], scores=[0.5, 0.4])
    drafts = DraftBatch.of([Draft.empty(), same, same])
    order, gains = policy._ranked(drafts, load, None)
    assert order.tolist() == [2, 3, 0, 1]  # its 0.3 is less than any of the others
    assert gains == pytest.approx([0.5, 0.4, 0.15, 0.12])
    alike, _ = policy._ranked(drafts, Load(contexts, room), None)
    assert alike.tolist() == [0, 2, 1, 3]


def test_a_step_that_serves_nobody_who_waits_is_not_made_longer() -> None:
    """A guess for the light request pays if all count alike, and not by its weight."""
    contexts, room = np.full(2, 64, np.int64), np.full(2, 64, np.int64)
    steep = StepCost.measured((r, r * 64, 0.01 * (1 + 0.2 * (r - 1)), 64) for r in (1, 2, 4, 8, 64))
    drafts = DraftBatch.of([Draft.empty(), Draft.chain([1], scores=[0.9])])
    for weights, nodes in ((None, 1), (np.array([1.0, 0.2]), 0)):
        policy = Adaptive(steep, share=0.0)
        load = Load(contexts, room, weights=weights)
        policy.budgets(load)
        assert len(policy.choose(drafts, load).kept) == nodes


@pytest.mark.parametrize("together", [False, True])
def test_short_answers_are_drafted_for_only_where_somebody_reads_along(together: bool) -> None:
    target = target_of(zoo.make("llama"))
    asked = [
        (np.tile(np.arange(start, start + 6), 5).tolist(), tokens)
        for start, tokens in ((3, 12), (20, 60))
    ]
    engine = Engine(target, SuffixDrafter(), policy=Adaptive(flat()))
    params = [SamplingParams(temperature=0, max_tokens=tokens) for _, tokens in asked]
    requests = [
        engine.add(prompt, each, seed=seed, together=together)
        for seed, ((prompt, _), each) in enumerate(zip(asked, params, strict=True))
    ]
    engine.run()
    short, long = requests
    assert (short.stats.drafted > 0) != together
    assert long.stats.drafted > 0
    row = logits_of(target)
    for seed, made in enumerate(requests):
        assert made.token_ids == plain(row, asked[seed][0], params[seed], seed, ())


def test_who_waits_makes_every_token_count() -> None:
    """While somebody waits for a place, short answers are drafted for, to make it free."""
    target = target_of(zoo.make("llama"))
    engine = Engine(target, SuffixDrafter(), policy=Adaptive(flat()), max_running=2)
    prompt = np.tile(np.arange(3, 9), 5).tolist()
    short, long, _ = (
        engine.add(prompt, SamplingParams(temperature=0, max_tokens=tokens), seed=0, together=True)
        for tokens in (12, 60, 60)
    )
    while not short.finished:
        engine.step()
    assert short.stats.drafted > 0
    assert not long.finished
    engine.run()
    engine.check_integrity()
