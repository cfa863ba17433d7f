"""The engine's text with EagleDrafter is that of the plain loop, whatever the head says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from eagle.heads import random_head
from engine.asking import ASKED, GREEDY, STOPS, answers, prompts, wanted
from foresay import SeededParams, Verdict, Wants
from foresay.drafter import Source
from foresay.drafters import MergeDrafter, ModelDrafter, NgramDrafter, RecycleDrafter
from foresay.drafters.eagle import EagleDrafter
from foresay.drafters.head.drafter import HeadState
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.target import SequenceInput, Target
from models import zoo

MANY = list(zip(prompts(len(ASKED)), ASKED, strict=True))


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(zoo.make("llama"))


@pytest.fixture(scope="module")
def answered(target: Target) -> list[list[int]]:
    return wanted(target, MANY)


def eagle(layers: tuple[int, ...] = (), drafted: int = 100, **settings: Any) -> EagleDrafter:
    head = random_head(zoo.make("llama"), layers=layers, drafted=drafted)
    return EagleDrafter(head, **settings)


DRAFTERS: dict[str, Callable[[], Any]] = {
    "trees": eagle,
    "chains": lambda: eagle(topk=1, depth=8),
    "two layers' features": lambda: eagle(layers=(0, 1)),
    "beside ngrams": lambda: MergeDrafter(eagle(), NgramDrafter()),
}


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_text_is_that_of_the_plain_loop(
    target: Target, answered: list[list[int]], name: str, policy: str
) -> None:
    drafter = DRAFTERS[name]()
    engine = Engine(target, drafter, policy=policy, max_running=4, max_rows=32)
    requests = answers(engine, MANY)
    assert [request.token_ids for request in requests] == answered
    for request in requests:
        ended = request.token_ids[-1] in STOPS
        assert request.finish_reason == ("stop" if ended else "length")
    if policy == "fixed":
        assert sum(request.stats.drafted for request in requests) > 100
    if isinstance(drafter, EagleDrafter):
        assert drafter.tokens_held() == drafter.bytes_used() == 0


class Watched(EagleDrafter):
    """Notes the features and tokens of each request."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.seen: dict[bytes, list[tuple[Any, Any]]] = {}

    def observe(self, states: Any, verdicts: Any, /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            assert isinstance(state, HeadState) and isinstance(verdict, Verdict)
            key = state.texts[0].tobytes()
            self.seen.setdefault(key, []).append((verdict.hidden, verdict.tokens))
        super().observe(states, verdicts)


@pytest.mark.parametrize("make", [target_of, plain_target_of])
def test_the_features_are_what_goes_into_the_layers(make: Callable[..., Target]) -> None:
    """Side by side, for each committed token those of the token before it."""
    plain_model, layers = zoo.make("llama", num_hidden_layers=4), (3, 1)
    target = make(zoo.make("llama", num_hidden_layers=4))
    drafter = Watched(random_head(layers=layers))
    engine = Engine(target, drafter, policy="fixed", max_rows=24)
    asked = list(zip(prompts(5, seed=4), ASKED, strict=False))
    requests = answers(engine, asked)
    for request in requests:
        found = drafter.seen[request.prompt.tobytes()]
        text = [*request.prompt.tolist(), *request.token_ids]
        with torch.inference_mode():
            out = plain_model(input_ids=torch.tensor([text]), output_hidden_states=True)
        every = torch.cat([out.hidden_states[layer][0] for layer in layers], 1)
        own = every[len(request.prompt) - 1 : -1].numpy()
        given = np.concatenate([hidden for hidden, _ in found])
        np.testing.assert_allclose(given, own, atol=1e-3)


def test_layers_that_a_target_has_not(target: Target) -> None:
    with pytest.raises(InputError, match=r"layers \[0, 2\]; expected 0 to 1, the target's"):
        Engine(target, eagle(layers=(0, 2)))
    stored: Any = target_of(zoo.make("llama"))
    stored.depth = 0
    with pytest.raises(InputError, match=r"layers \[0, 1\], but this target gives the last ones"):
        Engine(stored, eagle(layers=(0, 1)))
    part = SequenceInput.of(target, target.open(), np.array([1], np.int32))
    with pytest.raises(InputError, match=r"layers \[7\] are asked for; expected 0 to 1"):
        target.forward([part], hidden=(7,))


def test_wants() -> None:
    assert eagle().wants == Wants(hidden=True)
    assert eagle(layers=(0, 1)).wants == Wants(hidden=True, hidden_layers=(0, 1))
    with pytest.raises(InputError, match=r"hidden_layers is \(1,\), but hidden is False"):
        Wants(hidden_layers=(1,))
    with pytest.raises(InputError, match="hidden_layers is '1'; expected a tuple"):
        Wants(hidden=True, hidden_layers="1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="different layers"):
        MergeDrafter(eagle(), eagle(layers=(0, 1)))


def test_every_drafter_with_a_model_tells_its_source(target: Target) -> None:
    """Alone, and each beside the others."""
    drafters: dict[Source, Callable[[], Any]] = {
        Source.HEAD: eagle,
        Source.DRAFT_MODEL: lambda: ModelDrafter(target, shape=3),
        Source.RECYCLED: RecycleDrafter,
    }
    asked = [(prompt, GREEDY) for prompt in prompts(4)]
    expected = wanted(target, asked)
    made = {each: make() for each, make in drafters.items()}
    made[Source.OTHER] = MergeDrafter(*(make() for make in drafters.values()))
    for source, drafter in made.items():
        engine = Engine(target, drafter, policy="fixed", with_sources=True)
        requests = answers(engine, asked)
        seen = {token for request in requests for token in request.sources} - {Source.MODEL}
        assert [request.token_ids for request in requests] == expected
        assert seen <= ({*drafters} if source is Source.OTHER else {source})
        assert seen or source is Source.HEAD  # whose weights are random
        if source in (Source.HEAD, Source.DRAFT_MODEL):
            state = drafter.begin([1, 2, 3], sampling=SeededParams(GREEDY, 0))
            width = int(zoo.make("llama").config.hidden_size)
            told = np.ones((1, width), np.float32) if source is Source.HEAD else None
            for _ in range(2):
                drafter.observe([state], [Verdict([], [4], hidden=told)])
                assert drafter.sources(state) == []
                drafter.propose([state], [2])
                assert drafter.sources(state) == [(source,)] * 2
