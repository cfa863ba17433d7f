"""The keys and values of a draft model: bounded in bytes, and forgotten without a trace."""

from __future__ import annotations

import numpy as np
import pytest

from drafters.small_models import Watched, draft_model
from engine.asking import ASKED, answers, prompts, wanted
from foresay import Verdict
from foresay.arrays import Int32s
from foresay.budget.policy import Fixed
from foresay.drafters import ModelDrafter
from foresay.engine.engine import Engine
from foresay.models.target import Target


@pytest.fixture(scope="module")
def model() -> Target:
    return draft_model("same")


def texts(count: int, length: int = 30) -> list[Int32s]:
    random = np.random.default_rng(0)
    return [random.integers(0, 128, length).astype(np.int32) for _ in range(count)]


def held(drafter: ModelDrafter) -> int:
    """Bytes of keys and values."""
    return drafter.bytes_used() - 4 * drafter.tokens_held()


def test_memory_is_bounded(model: Target) -> None:
    free, memory = ModelDrafter(model), 400 * model.bytes_per_token
    drafter = ModelDrafter(model, memory=memory)
    begun = [(drafter.begin(text), free.begin(text)) for text in texts(20)]
    for step in range(3):
        for own, other in begun:  # each is asked alone: it is the one used last
            (draft,), (expected,) = drafter.propose([own], [5]), free.propose([other], [5])
            assert len(draft) == 5 and draft.tokens.tolist() == expected.tokens.tolist()
            assert 0 < held(drafter) <= memory
            verdict = Verdict([0], [*draft.tokens[:1].tolist(), step])
            drafter.observe([own], [verdict])
            free.observe([other], [verdict])
    assert held(free) > 2 * memory


def test_the_least_recently_used_is_forgotten() -> None:
    model = Watched(draft_model("same"))
    drafter = ModelDrafter(model, memory=250 * model.bytes_per_token, shape=1)
    states = [drafter.begin(text) for text in texts(4)]
    for at in (0, 1, 2, 0, 3):
        drafter.propose([states[at]], [1])
        drafter.observe([states[at]], [Verdict([], [1])])
    assert [state.stored > 0 for state in states] == [True, False, False, True]
    model.passes.clear()
    drafter.propose([states[0]], [1])
    assert model.passes == [[1]]  # of what is stored nothing is computed again


def test_requests_of_one_call_do_not_displace_each_other() -> None:
    model = Watched(draft_model("same"))
    memory = 400 * model.bytes_per_token
    drafter = ModelDrafter(model, memory=memory, shape=2)
    states = [drafter.begin(text) for text in texts(10)]
    before: list[bool] = []
    settled = 0
    for _ in range(6):
        model.passes.clear()
        drafts = drafter.propose(states, [2] * 10)
        again = drafter.propose(states, [2] * 10)
        assert [list(d.tokens) for d in drafts] == [list(d.tokens) for d in again]
        assert 0 < held(drafter) <= memory
        drafted = [len(draft) > 0 for draft in drafts]
        assert 0 < sum(drafted) < 10
        # Memory is doubled where it grows, so that more may fit than was thought; but none is lost.
        assert all(now for was, now in zip(before, drafted, strict=False) if was)
        if drafted == before:  # nothing is computed again
            assert sum(map(sum, model.passes)) <= 3 * sum(drafted)
            settled += 1
        before = drafted
        drafter.observe(states, [Verdict([], [3])] * 10)
    assert settled >= 2


def test_what_is_not_asked_gives_way(model: Target) -> None:
    drafter = ModelDrafter(model, memory=150 * model.bytes_per_token)
    first, second = (drafter.begin(text) for text in texts(2))
    assert len(drafter.propose([first], [3])[0]) == 3
    drafts = drafter.propose([first, second], [0, 3])
    assert [len(draft) for draft in drafts] == [0, 3]
    assert first.stored == 0 < second.stored
    long = drafter.begin(texts(1, 400)[0])  # more than there is memory for
    assert [len(draft) for draft in drafter.propose([long], [3])] == [0]


def test_texts_stay_the_same_with_little_memory(model: Target) -> None:
    many = list(zip(prompts(len(ASKED)), ASKED, strict=True))
    drafter = ModelDrafter(model, memory=500 * model.bytes_per_token)
    engine = Engine(model, drafter, policy=Fixed(k=4), max_running=5)
    requests = answers(engine, many)
    assert [request.token_ids for request in requests] == wanted(model, many)
    assert sum(request.stats.accepted for request in requests) > 20
