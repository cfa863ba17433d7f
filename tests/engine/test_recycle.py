"""Recycling in the engine: the same texts as the plain loop, alone and merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.test_boundary import ASKED, PROMPTS, answered
from foresay import SamplingParams
from foresay.drafters import MergeDrafter, RecycleDrafter, SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import logits_of, plain
from foresay.models.target import Target

DRAFTERS: dict[str, Callable[[], Any]] = {
    "recycle": RecycleDrafter,
    "static": lambda: RecycleDrafter(context=1, tree="static"),
    "merged": lambda: MergeDrafter(SuffixDrafter(), RecycleDrafter(k=4)),
    "three": lambda: MergeDrafter(RecycleDrafter(k=2), SuffixDrafter(), RecycleDrafter(k=8)),
}
every_drafter = pytest.mark.parametrize("make", DRAFTERS.values(), ids=list(DRAFTERS))


@pytest.fixture(scope="module")
def texts(target: Target) -> list[list[int]]:
    rows = logits_of(target)
    return [
        plain(rows, prompt, params, seed)
        for seed, (prompt, params) in enumerate(zip(PROMPTS, ASKED, strict=True))
    ]


@every_drafter
def test_the_text_is_that_of_the_plain_loop(
    target: Target, texts: list[list[int]], make: Callable[[], Any]
) -> None:
    drafter = make()
    for policy in ("fixed", "adaptive", "fixed"):  # what was learned before changes nothing
        requests = answered(target, drafter, policy=policy)
        assert [request.token_ids for request in requests] == texts
    assert sum(request.stats.accepted for request in requests) > 20  # all was seen before


@every_drafter
def test_where_memory_is_short(
    target: Target, texts: list[list[int]], make: Callable[[], Any]
) -> None:
    """Requests are preempted, and computed again, in the middle of their texts."""
    engine = Engine(target, make(), policy="fixed", memory=5 * PAGE * target.bytes_per_token)
    requests = [
        engine.add(prompt, params, seed=seed)
        for seed, (prompt, params) in enumerate(zip(PROMPTS, ASKED, strict=True))
    ]
    engine.run()
    engine.check_integrity()
    assert [request.token_ids for request in requests] == texts


def test_known_noise_helps(target: Target) -> None:
    """Samples of one prompt: with the request's noise more of the same nodes are accepted."""
    params = SamplingParams(temperature=1.5, max_tokens=40)

    class Deaf(RecycleDrafter):
        def begin(self, prompt: Any, /, **about: Any) -> Any:
            return super().begin(prompt, **about | {"sampling": None})

    accepted = []
    for drafter in (RecycleDrafter(context=2, k=16), Deaf(context=2, k=16)):
        engine = Engine(target, drafter, policy="fixed")
        requests = [engine.add([5, 6, 7], params, seed=seed) for seed in range(24)]
        engine.run()
        accepted.append(sum(request.stats.accepted for request in requests))
    assert accepted[0] > 1.2 * accepted[1]
