"""A drafter gets what the boundary promises: how tokens are chosen, and what it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from doubles import Scripted, tokens
from engine.drafters import Coupled, near
from foresay import SamplingParams
from foresay.drafter import SeededParams
from foresay.drafters import CorpusDrafter, MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.engine.budget import Fixed
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.errors import InputError
from foresay.models.target import Target
from models import zoo

ASKED = [
    SamplingParams(temperature=1.0, max_tokens=24),
    SamplingParams(temperature=0.7, top_p=0.9, max_tokens=24),
    SamplingParams(temperature=1.0, repetition_penalty=1.3, max_tokens=24),
    SamplingParams(temperature=0, max_tokens=24),
]
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [20, 21, 20, 21]]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.of(zoo.make("llama"))


@pytest.fixture(scope="module")
def texts(target: Target) -> list[list[int]]:
    rows = logits_of(target)
    return [
        plain(rows, prompt, params, seed)
        for seed, (prompt, params) in enumerate(zip(PROMPTS, ASKED, strict=True))
    ]


def written(target: Target, drafter: Any, asked: Sequence[SamplingParams] = ASKED) -> list[Request]:
    """The requests, written by an engine with a fixed budget."""
    engine = Engine(target, drafter, policy=Fixed(k=4))
    requests = [
        engine.add(prompt, params, seed=seed)
        for seed, (prompt, params) in enumerate(zip(PROMPTS, asked, strict=True))
    ]
    engine.run()
    engine.check_integrity()
    return requests


def rate(requests: Sequence[Request]) -> float:
    drafted = sum(request.stats.drafted for request in requests)
    return sum(request.stats.accepted for request in requests) / drafted


def test_a_coupled_drafter_agrees_more_often(target: Target, texts: list[list[int]]) -> None:
    """With the request's own noise a law that is a little wrong chooses the same token nearly
    always; with another noise it is another sample. The text is the same with both."""
    rows = near(logits_of(target), 0.2)
    coupled, foreign = (written(target, Coupled(rows, foreign)) for foreign in (0, 1))
    for requests in (coupled, foreign):
        assert [request.token_ids for request in requests] == texts
    sampled = slice(0, 3)  # greedy has no noise
    assert rate(coupled[sampled]) > 0.6 > 3 * rate(foreign[sampled])


def test_every_drafter_is_told_how_tokens_are_chosen(target: Target) -> None:
    first, second = Scripted(), Scripted()
    requests = written(target, MergeDrafter(first, MergeDrafter(second)))
    expected = [SeededParams(request.params, request.seed) for request in requests]
    assert first.sampling == second.sampling == expected
    assert [seeded.seed for seeded in expected] == [0, 1, 2, 3]


def test_those_who_need_not_know_draft_the_same() -> None:
    from conformance import corpus_file

    text, known = tokens(1, 2, 3, 1, 2), SeededParams(SamplingParams(), 7)
    for make in (NgramDrafter, SuffixDrafter, lambda: CorpusDrafter(corpus_file())):
        drafts = []
        for sampling in (None, known):
            drafter: Any = make()
            drafts.append(drafter.propose([drafter.begin(text, sampling=sampling)], [4]))
        assert drafts[0] == drafts[1]


def test_seeded_params_are_checked() -> None:
    with pytest.raises(InputError, match="params is 1; SamplingParams are needed"):
        SeededParams(1, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed is -1; valid are whole numbers from 0"):
        SeededParams(SamplingParams(), -1)
