"""Tokens per step and acceptance mean one thing wherever they are shown."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import foresay
from foresay import SamplingParams
from foresay.bench.replay import ReplayResult
from foresay.counts import acceptance, tokens_per_step
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.integrations.vllm.meter import ProposerStats
from foresay.models.load_transformers import target_of
from foresay.serve.request_state import RequestState
from foresay.serve.steps import Share, StepReport, Steps
from foresay.serve.stream import AnswerStream
from foresay.serve.validate import GenerationRequest
from models import zoo


def test_every_place_uses_the_definition() -> None:
    assert tokens_per_step(0, 0) == 0.0 and tokens_per_step(7, 2) == 3.5
    assert ReplayResult(steps=2, tokens=7).tokens_per_step == 3.5
    assert ProposerStats(steps=1, rows=2, tokens=7).tokens_per_step == 3.5
    assert acceptance(0, 0) == 0.0 and acceptance(3, 4) == 0.75
    assert ReplayResult(drafted=4, accepted=3).acceptance_rate == 0.75
    assert ProposerStats(drafted=4, accepted=3).acceptance == 0.75
    steps = Steps()
    steps.note(StepReport(0.0, {}, {None: Share(steps=1, answers=2, tokens=7)}))
    assert steps.seen_by(None)[0].tokens_per_step == 3.5
    divides = re.compile(r"tokens\)? / (max\()?[\w.]*(steps|rows|answers)\b")
    root = Path(foresay.__file__).parent
    places = [p for p in root.rglob("*.py") if divides.search(p.read_text(encoding="utf-8"))]
    assert places == [root / "counts.py"]


@pytest.mark.parametrize("drafts", [False, True])
def test_the_first_token_is_a_step_like_every_other(drafts: bool) -> None:
    """A long prompt that is read in pieces, whose last piece gives the first token."""
    engine = Engine(
        target_of(zoo.make("llama")),
        SuffixDrafter() if drafts else None,
        policy="fixed" if drafts else "none",
        max_rows=8,
    )
    params = SamplingParams(temperature=0, max_tokens=12)
    stats = engine.add(np.tile(np.arange(3, 9), 5).tolist(), params).stats
    engine.run()
    assert stats.tokens == 12 == stats.steps + stats.accepted
    assert (stats.tokens_per_step > 1) == drafts
    if not drafts:
        assert stats.tokens_per_step == 1 and stats.steps == 12


def test_an_answer_that_was_refused_had_no_step() -> None:
    params = SamplingParams(max_tokens=4)
    prompt = np.ones(3, np.int32)
    request = Request(0, prompt, params, 1, (), None, None, None)
    generation = GenerationRequest([prompt], params, chat=False, stream=False)
    state = RequestState(AnswerStream(1, None), 0, generation, request, lambda _: "")
    share = Share()
    assert state.account(share, 0.0) == [] and share == Share(seconds=share.seconds)
    request.append(np.ones(2, np.int32))
    request.stats.steps += 1
    state.account(share, 0.0)
    assert (share.answers, share.tokens) == (1, 2)
