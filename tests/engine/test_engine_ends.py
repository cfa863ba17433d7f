"""Where an answer ends: at stop tokens, stop texts, its length, the context."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.asking import GREEDY, known, letters, prompts
from engine.drafters import Scripted
from foresay import SamplingParams
from foresay.budget.policy import Fixed
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.engine.text import IncrementalDetokenizer
from foresay.models.target import Target


def test_stops_inside_an_accepted_path(target: Target) -> None:
    """The answer ends at the first stop, though the draft goes on behind it."""
    (prompt,) = prompts(1, seed=20)
    texts = known(target, [(prompt, GREEDY)], stops=())
    (free,) = texts.values()
    stops = [(replace(GREEDY, stop=[free[at]]), free.index(free[at]) + 1) for at in (0, 3, 10)]
    lengths = [(replace(GREEDY, max_tokens=most), most) for most in (1, 2, 7)]
    for params, end in [*stops, *lengths]:
        reason = "stop" if params.stop else "length"
        engine = Engine(target, Scripted(texts, wrong=0), policy=Fixed(k=64))
        request = engine.add(prompt, params, seed=0)
        engine.run()
        assert (request.token_ids, request.finish_reason) == (free[:end], reason)
        assert request.stats.steps == 1


@pytest.mark.parametrize("drafted", [False, True])
def test_texts_that_end_an_answer(target: Target, drafted: bool) -> None:
    """And none that is complete within the first `least` tokens."""
    (prompt,) = prompts(1, seed=21)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    free = plain(logits_of(target), prompt, params, 7)
    whole = letters(free)
    early = [(begin, size, 0) for begin, size in ((0, 1), (5, 3), (11, 2), (30, 4))]
    late = [(0, 1, 20), (5, 3, 7), (5, 3, 8), (11, 2, 13), (30, 4, 40)]
    for begin, size, least in early + late:
        stop = whole[begin : begin + size]
        at = whole.find(stop, max(least - size + 1, 0))
        drafter = Scripted({tuple(prompt): free}, wrong=0.2) if drafted else None
        text = IncrementalDetokenizer(letters, [stop], least)
        engine = Engine(target, drafter, policy="fixed" if drafter else "none")
        request = engine.add(
            prompt, replace(params, stop=stop, min_tokens=least), seed=7, text=text
        )
        engine.run()
        assert at >= 0 or least
        assert request.finish_reason == ("stop" if at >= 0 else "length")
        assert request.token_ids == (free[: at + size] if at >= 0 else free)
        assert len(request.token_ids) > least or at < 0
        assert text.text == (whole[:at] if at >= 0 else whole)


def test_the_answer_ends_with_the_context(target: Target) -> None:
    engine = Engine(target, SuffixDrafter(), policy="fixed")
    request = engine.add([3] * 250, SamplingParams(temperature=0, max_tokens=100), seed=0)
    engine.run()
    assert request.finish_reason == "length" and len(request) == target.context
