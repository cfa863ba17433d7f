"""What the engine tells its policy of requests: who is who, and who is waited for. Where the caller
waits for all, drafts go to requests that end last; answers do not change.
"""

from __future__ import annotations

import numpy as np
import pytest

from foresay import SamplingParams
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load
from foresay.budget.policy import Fixed
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.engine.scheduler import ScheduledRequest
from foresay.engine.step import load_of
from foresay.models.load_transformers import target_of
from models import zoo


def flat() -> StepCost:
    """A machine on which rows cost next to nothing."""
    return StepCost.measured((r, r * 64, 0.01 + 1e-6 * r, 64) for r in (1, 2, 8, 64, 256))


def turn(
    max_tokens: int, *, together: bool = True, tenant: str | None = None, whole: bool = True
) -> ScheduledRequest:
    params = SamplingParams(max_tokens=max_tokens)
    made = Request(0, np.ones(3, np.int32), params, 1, (), None, tenant, None, together=together)
    return ScheduledRequest(made, 3, whole)


def test_weights_are_for_several_that_are_waited_for_together() -> None:
    load = load_of([turn(40), turn(5)], waiting=False)
    assert load.weights is not None and load.weights.tolist() == [1, 0]
    assert (load.tokens_left.tolist(), load.contexts.tolist()) == ([40, 5], [3, 3])
    assert load.other_rows == 4
    for turns, waits in (
        ([turn(40), turn(5)], True),
        ([turn(40), turn(5, together=False)], False),
        ([turn(40)], False),
    ):
        assert load_of(turns, waiting=waits).weights is None


def test_the_load_names_the_tenants_of_decoding_requests() -> None:
    turns = [turn(9, tenant="a"), turn(9, tenant="b", whole=False), turn(9)]
    assert load_of(turns, waiting=False).tenants == ["a", None]


@pytest.mark.parametrize("together", [False, True])
def test_short_answers_are_drafted_for_only_where_they_are_streamed(together: bool) -> None:
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
    """While a request waits, short answers are drafted for, so that it is admitted sooner."""
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


def test_the_policy_tells_requests_apart() -> None:
    """Each has a number of its own in all of its steps, and nobody gets it again."""

    class Seen(Fixed):
        def __init__(self) -> None:
            super().__init__()
            self.ids: list[list[int]] = []

        def budgets(self, load: Load) -> list[int]:
            assert load.ids is not None
            self.ids.append(load.ids.tolist())
            return super().budgets(load)

    engine = Engine(target_of(zoo.make("llama")), SuffixDrafter(), policy=(policy := Seen()))
    params = SamplingParams(temperature=0, max_tokens=6)
    for _ in range(2):
        made = [engine.add([3, 4, 5, 3, 4], params, seed=seed) for seed in range(3)]
        engine.run()
        assert all(request.finished for request in made)
    first, second = policy.ids[0], policy.ids[-1]
    assert len(first) == 3 and len({*first, *second}) == 3 + len(second)
    assert all(set(ids) <= set(first) or not set(ids) & set(first) for ids in policy.ids)
