"""`SamplingParams.speculative`: a request without drafts among others, whose text is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.asking import ASKED, GREEDY, added, check, known, prompts, wanted
from engine.drafters import Scripted
from foresay import SamplingParams
from foresay.budget.policy import POLICIES
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.target import Target

HALF = [
    (prompt, replace(params, speculative=at % 2 == 0))
    for at, (prompt, params) in enumerate(zip(prompts(16), ASKED * 2, strict=True))
]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_text_is_the_same_and_nothing_is_drafted(target: Target, policy: str) -> None:
    drafter = Scripted(known(target, HALF), wrong=0.2)
    engine = Engine(target, drafter, policy=policy, max_rows=48)
    requests = added(engine, HALF)
    engine.run()
    assert [request.token_ids for request in requests] == wanted(target, HALF)
    plainly, others = requests[1::2], requests[::2]
    assert all(r.stats.drafted == 0 and r.stats.steps == r.stats.tokens for r in plainly)
    if policy in ("fixed", "dynamic-k"):  # or the others had none either
        assert sum(request.stats.accepted for request in others) > 50


def test_steps_are_started_ahead_where_nothing_is_drafted(device: Any) -> None:
    plainly = replace(GREEDY, speculative=False)
    asked = [(prompt, plainly) for prompt in prompts(4)]
    drafter = Scripted(known(device, asked))
    check(Engine(device, drafter, policy="fixed"), asked)
    assert device.ahead > 10
    check(Engine(device, drafter, policy="fixed"), [(prompt, GREEDY) for prompt in prompts(4)])


def test_anything_but_true_and_false_is_refused() -> None:
    with pytest.raises(InputError, match=r"speculative is 'no'; expected True or False"):
        SamplingParams(speculative="no")  # type: ignore[arg-type]
