"""Where an answer ends: at stop tokens, stop texts, its length, the context."""

from __future__ import annotations

from dataclasses import replace

from engine.asking import GREEDY, letters, prompts
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
    free = plain(logits_of(target), prompt, GREEDY, 0)
    for at in (0, 3, 10):
        stop = free[at]
        end = free.index(stop) + 1
        engine = Engine(target, Scripted({tuple(prompt): free}, wrong=0), policy=Fixed(k=64))
        request = engine.add(prompt, replace(GREEDY, stop=[stop]), seed=0)
        engine.run()
        assert request.token_ids == free[:end]
        assert request.finish_reason == "stop"
        assert request.stats.steps == 1
    for most in (1, 2, 7):
        engine = Engine(target, Scripted({tuple(prompt): free}, wrong=0), policy=Fixed(k=64))
        request = engine.add(prompt, replace(GREEDY, max_tokens=most), seed=0)
        engine.run()
        assert request.token_ids == free[:most]
        assert request.finish_reason == "length"


def test_texts_that_end_an_answer(target: Target) -> None:
    (prompt,) = prompts(1, seed=21)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    free = plain(logits_of(target), prompt, params, 7)
    whole = letters(free)
    for begin, size in ((0, 1), (5, 3), (11, 2), (30, 4)):
        stop = whole[begin : begin + size]
        for drafter in (None, Scripted({tuple(prompt): free}, wrong=0.2)):
            engine = Engine(target, drafter, policy="fixed" if drafter else "none")
            request = engine.add(
                prompt,
                replace(params, stop=stop),
                seed=7,
                text=IncrementalDetokenizer(letters, [stop]),
            )
            engine.run()
            assert request.finish_reason == "stop" and request.answer is not None
            assert request.answer.text == whole[: whole.index(stop)]
            assert request.token_ids == free[: whole.index(stop) + size]


def test_no_text_ends_an_answer_before_min_tokens(target: Target) -> None:
    (prompt,) = prompts(1, seed=21)
    params = SamplingParams(temperature=1.0, max_tokens=40)
    free = plain(logits_of(target), prompt, params, 7)
    whole = letters(free)
    for begin, size, least in ((0, 1, 20), (5, 3, 7), (5, 3, 8), (11, 2, 13), (30, 4, 40)):
        stop = whole[begin : begin + size]
        asked = replace(params, stop=stop, min_tokens=least)
        at = whole.find(stop, max(least - size + 1, 0))
        for drafter in (None, Scripted({tuple(prompt): free}, wrong=0.2)):
            engine = Engine(target, drafter, policy="fixed" if drafter else "none")
            text = IncrementalDetokenizer(letters, [stop], least)
            request = engine.add(prompt, asked, seed=7, text=text)
            engine.run()
            assert request.finish_reason == ("stop" if at >= 0 else "length")
            assert request.token_ids == (free[: at + size] if at >= 0 else free)
            assert len(request.token_ids) > least or at < 0
            assert text.text == (whole[:at] if at >= 0 else whole)


def test_the_answer_ends_with_the_context(target: Target) -> None:
    engine = Engine(target, SuffixDrafter(), policy="fixed")
    request = engine.add([3] * 250, SamplingParams(temperature=0, max_tokens=100), seed=0)
    engine.run()
    assert request.finish_reason == "length" and len(request) == target.context
