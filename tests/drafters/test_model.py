"""ModelDrafter in the engine: the text is that of the plain loop, whatever the model drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from drafters.small_models import draft_model
from eagle.heads import random_head
from engine.asking import ASKED, GREEDY, STOPS, answers, prompts, rows_of, wanted
from foresay import SamplingParams
from foresay.arrays import Int32s
from foresay.budget.load import Load
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, ModelDrafter, SelfDrafter, SuffixDrafter
from foresay.drafters.decoding.state import RequestState
from foresay.drafters.eagle import EagleDrafter
from foresay.drafters.model import Dynamic
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import plain
from foresay.engine.request import Request
from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from models import zoo
from models.targets import zoo_target
from pairs import pairs

SHAPES: dict[str, Any] = {"chain": 5, "tree": (3, 2, 1), "dynamic": Dynamic(width=3, depth=4)}
MANY = list(zip(prompts(len(ASKED)), ASKED, strict=True))
SAMPLED = SamplingParams(temperature=0.8, max_tokens=40)
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


@pytest.fixture(scope="module")
def target() -> Target:
    return draft_model("same")


@pytest.fixture(scope="module")
def answered(target: Target) -> list[list[int]]:
    return wanted(target, MANY)


def counts(requests: list[Request]) -> tuple[int, int]:
    """Drafted and accepted tokens."""
    return sum(r.stats.drafted for r in requests), sum(r.stats.accepted for r in requests)


@pytest.mark.parametrize(("kind", "shape", "k"), pairs(["same", "near", "strange"], SHAPES, [8, 3]))
def test_the_text_is_that_of_the_plain_loop(
    target: Target, answered: list[list[int]], kind: str, shape: str, k: int
) -> None:
    drafter = ModelDrafter(draft_model(kind), shape=SHAPES[shape])
    engine = Engine(target, drafter, policy=Fixed(k=k), max_running=4, max_rows=32)
    requests = answers(engine, MANY)
    assert [request.token_ids for request in requests] == answered
    assert drafter.tokens_held() == drafter.bytes_used() == 0
    assert counts(requests)[1] > {"same": 50, "near": 10, "strange": -1}[kind]


def test_the_same_model_drafts_what_the_target_samples(target: Target) -> None:
    asked = [(p, replace(a, min_tokens=0)) for p, a in MANY]
    expected = wanted(target, asked, stops=())
    found = {}
    for choice in ("coupled", "likeliest"):
        drafter = ModelDrafter(target, shape=5, choice=choice)
        engine = Engine(target, drafter, policy=Fixed(k=8), max_running=7)
        requests = [engine.add(p, params, seed=i) for i, (p, params) in enumerate(asked)]
        engine.run()
        assert [request.token_ids for request in requests] == expected
        drafted, accepted = counts(requests)
        found[choice] = accepted / drafted
    assert found["coupled"] == 1.0
    assert found["likeliest"] < 0.8


class EveryOther(Fixed):
    """Nothing is drafted in every other step: requests sit out."""

    def budgets(self, load: Load) -> list[int]:
        self.steps = getattr(self, "steps", 0) + 1
        return super().budgets(load) if self.steps % 2 else [0] * len(load)


def test_keeping_rejected_tokens_is_found(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: after a verdict the keys and values of rejected tokens stay, as if they were
    those of the committed ones. The text stays right, and less is accepted."""
    texts = prompts(8, seed=4)
    expected = [plain(rows_of(target), p, SAMPLED, i) for i, p in enumerate(texts)]

    def share() -> float:
        drafter = ModelDrafter(target, shape=4, choice="likeliest")
        engine = Engine(target, drafter, policy=EveryOther(k=4))
        requests = [engine.add(p, SAMPLED, seed=i) for i, p in enumerate(texts)]
        engine.run()
        assert [request.token_ids for request in requests] == expected
        drafted, accepted = counts(requests)
        return accepted / drafted

    right, commit = share(), RequestState.commit

    def wrong(state: RequestState, tokens: Int32s) -> None:
        state._ahead = tokens.tolist()
        commit(state, tokens)

    monkeypatch.setattr(RequestState, "commit", wrong)
    assert share() < 0.75 * right


@every_shape
def test_requests_that_join_and_leave(target: Target, shape: Any) -> None:
    asked = list(zip(prompts(16, seed=11), ASKED * 2, strict=True))
    expected = wanted(target, asked)
    random = np.random.default_rng(0)
    drafter = ModelDrafter(draft_model("near"), shape=shape)
    engine = Engine(target, drafter, policy="threshold", max_running=9, max_rows=20)
    waiting = list(enumerate(asked))
    requests: dict[int, Request] = {}
    noise: list[Request] = []
    while waiting or engine.busy:
        if waiting and random.random() < 0.4:
            seed, (prompt, params) = waiting.pop(int(random.integers(len(waiting))))
            requests[seed] = engine.add(prompt, params, seed=seed, stops=STOPS)
        if waiting and random.random() < 0.3:
            noise.append(engine.add(prompts(1, seed=len(noise))[0], GREEDY, seed=1))
        if noise and random.random() < 0.3:
            engine.cancel(noise[int(random.integers(len(noise)))])
        engine.step()
    assert [requests[seed].token_ids for seed in range(len(asked))] == expected
    assert drafter.tokens_held() == drafter.bytes_used() == 0


LITTLE: dict[str, Callable[[], Any]] = {
    **{
        name: partial(ModelDrafter, draft_model("near"), shape=shape)
        for name, shape in SHAPES.items()
    },
    "the target's own layers": partial(SelfDrafter, shape=(2, 1)),
    "a head": lambda: EagleDrafter(random_head(zoo.make("llama"), drafted=100)),
}


@pytest.mark.parametrize("name", LITTLE)
def test_little_memory_preempts(target: Target, name: str) -> None:
    """Also where requests share the beginning of their prompts."""
    texts = prompts(4, seed=1) * 2
    asked = [(p, replace(GREEDY, max_tokens=60)) for p in texts]
    asked += [(p, replace(SAMPLED, max_tokens=60)) for p in prompts(6, seed=2)]
    expected = wanted(target, asked, stops=())
    memory = 5 * PAGE * target.bytes_per_token
    engine = Engine(target, LITTLE[name](), policy="fixed", memory=memory, max_rows=32)
    requests = [engine.add(p, params, seed=i) for i, (p, params) in enumerate(asked)]
    engine.run()
    assert sum(request.stats.preemptions for request in requests) > 3
    assert [request.token_ids for request in requests] == expected


@every_shape
@pytest.mark.parametrize("context", [16, 60, 256])
def test_the_end_of_the_draft_models_context(target: Target, context: int, shape: Any) -> None:
    """Drafts get short before it and end there; nothing is raised, and no warning is given."""
    model = draft_model("same", max_position_embeddings=context)
    params = replace(GREEDY, max_tokens=100)
    engine = Engine(target, ModelDrafter(model, shape=shape), policy=Fixed(k=20))
    requests = [engine.add([3] * size, params, seed=0) for size in (1, 14, 40, 58, 230, 250)]
    engine.run()
    for request in requests:
        left = 256 - len(request.prompt)
        bounded = replace(params, max_tokens=min(100, left))
        expected = plain(rows_of(target), request.prompt.tolist(), bounded, 0)
        assert request.token_ids == expected
    assert counts(requests[:1])[1] > 0
    assert (counts(requests[4:])[0] > 0) == (context == 256)


def test_weights_of_the_draft_model_that_are_replaced() -> None:
    """What was computed with the old ones is not used: the same weights draft as the target."""
    target = zoo_target("llama")
    drafter = ModelDrafter(target_of(zoo.make("llama", seed=1)), shape=4)
    engine = Engine(target, drafter, policy="fixed")
    params = replace(SAMPLED, max_tokens=80)
    (prompt,) = prompts(1, seed=31)
    request = engine.add(prompt, params, seed=2)
    for _ in range(10):
        engine.step()
    before = request.stats.accepted, request.stats.drafted
    assert before[0] < before[1] / 2 and not request.finished
    drafter.model.replace_weights(dict(zoo.make("llama").named_parameters()))
    engine.run()
    assert request.token_ids == plain(rows_of(target), prompt, params, 2)
    after = request.stats.accepted - before[0], request.stats.drafted - before[1]
    assert after[0] == after[1] > 0


def test_weights_of_the_target_that_are_replaced() -> None:
    """By an engine whose target drafts for itself."""
    target = target_of(zoo.make("llama", seed=1))
    engine = Engine(target, ModelDrafter(target, shape=4), policy="fixed")
    request = engine.add(prompts(1, seed=31)[0], replace(SAMPLED, max_tokens=60), seed=2)
    for _ in range(3):
        engine.step()
    engine.replace_weights(dict(zoo.make("llama").named_parameters()))
    engine.run()
    assert request.stats.accepted == request.stats.drafted > 20


def test_beside_other_drafters(target: Target, answered: list[list[int]]) -> None:
    """Also of requests under rule rejection, whose drafts have probs."""
    drafter = MergeDrafter(ModelDrafter(draft_model("near"), shape=(2, 2)), SuffixDrafter())
    engine = Engine(target, drafter, policy="fixed")
    others = [engine.add(p, replace(SAMPLED, rule="rejection"), seed=1) for p in prompts(3)]
    assert [request.token_ids for request in answers(engine, MANY)] == answered
    assert all(len(request.token_ids) == 40 for request in others)
