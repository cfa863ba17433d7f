"""What was prefilled and what was decoded is kept apart, by a target to which these are different
tokens: each answer is that of the plain loop, which prefills the prompt and decodes the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foresay import SamplingParams
from foresay.drafters import NgramDrafter
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.lossless.toy import Toy
from foresay.lossless.toy_target import ToyTarget

TARGET = ToyTarget(Toy(33, 5))
GREEDY = SamplingParams(temperature=0, max_tokens=9)
SAMPLED = SamplingParams(temperature=0.9, max_tokens=9)


def prompt(size: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, TARGET.vocabulary, size).tolist()
    return tokens


def expected(request: Request) -> list[int]:
    return plain(logits_of(TARGET), request.prompt.tolist(), request.params, request.seed)


def check(engine: Engine, *requests: Request) -> None:
    engine.run()
    engine.check_integrity()
    for request in requests:
        assert request.token_ids == expected(request), request


def test_the_target_tells_prefill_from_decode() -> None:
    """Or these tests prove nothing."""
    text = np.array(prompt(20), np.int32)
    rows = [logits_of(TARGET)(text, size) for size in (20, 19, 2, 1)]
    assert not any(torch.equal(rows[0], other) for other in rows[1:])


@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize("running", [True, False], ids=["running", "finished"])
def test_an_answer_is_not_shared_as_a_part_of_a_prompt(more: int, running: bool) -> None:
    """A prompt that goes on with another request's answer, as the next turn of a chat does, takes
    the other's prompt from the prefix cache, and prefills the answer."""
    engine = Engine(TARGET, NgramDrafter(), policy="fixed")
    first = engine.add(prompt(30), SAMPLED, seed=1)
    while len(first.token_ids) < 6:
        engine.step()
    if not running:
        engine.run()
    chat = [*prompt(30), *first.token_ids[:6], *prompt(more, seed=9)]
    second = engine.add(chat, GREEDY, seed=2)
    check(engine, first, second)
    assert second.stats.shared_tokens == 29


def test_the_last_token_of_a_prompt_is_not_shared() -> None:
    """It was decoded: in a longer prompt it is prefilled."""
    engine = Engine(TARGET, policy="none")
    first = engine.add(prompt(30), GREEDY, seed=1)
    engine.run()
    second = engine.add([*prompt(30), *prompt(7, seed=3)], GREEDY, seed=2)
    third = engine.add(prompt(29), GREEDY, seed=3)
    check(engine, first, second, third)
    assert (second.stats.shared_tokens, third.stats.shared_tokens) == (29, 28)


@pytest.mark.parametrize("max_rows", [24, 256])
def test_a_preempted_answer_is_decoded_again(max_rows: int) -> None:
    """The prompt is prefilled, the answer is decoded, though its tokens are known."""
    engine = Engine(TARGET, NgramDrafter(), policy="fixed", memory=3 * PAGE, max_rows=max_rows)
    # Texts end where their second page has begun.
    requests = [engine.add(prompt(57 + i, i), (GREEDY, SAMPLED)[i % 2], seed=i) for i in range(5)]
    check(engine, *requests)
    assert any(request.stats.preemptions for request in requests)


def test_a_preempted_answer_is_not_cached_as_a_prompt() -> None:
    """What was computed again counts as before: the prompt is shared, the answer is not."""
    engine = Engine(TARGET, policy="none")
    first = engine.add(prompt(30), GREEDY, seed=1)
    while len(first.token_ids) < 6:
        engine.step()
    engine.scheduler.recompute()
    engine.step()
    assert first.stats.preemptions == 1 and len(first.token_ids) > 6
    second = engine.add([*prompt(30), *first.token_ids[:6], 1], GREEDY, seed=2)
    check(engine, first, second)
    assert second.stats.shared_tokens == 29


def test_a_prompt_in_pieces_is_prefilled_whole() -> None:
    engine = Engine(TARGET, policy="none", max_rows=7)
    check(engine, *[engine.add(prompt(40 + i, i), SAMPLED, seed=i) for i in range(2)])
