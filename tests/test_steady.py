"""The tests' steps take no time; an engine's are timed by the real clock."""

from __future__ import annotations

import time
from typing import Any

import pytest

from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.drafters import SuffixDrafter
from foresay.engine import measure
from foresay.engine.engine import Engine
from foresay.models.load_transformers import target_of
from models import zoo
from steady import real_clock


def cost_of(target: Any) -> StepCost:
    policy = Engine(target, SuffixDrafter(), policy="adaptive").policy
    assert isinstance(policy, Adaptive)
    return policy.cost


def test_an_engine_begins_with_measured_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    target, steps = target_of(zoo.make("llama"), deterministic=False), 0
    forward = target.forward

    def slow(*given: Any, **named: Any) -> Any:
        nonlocal steps
        steps += 1
        time.sleep(0.02)
        return forward(*given, **named)

    monkeypatch.setattr(target, "forward", slow)
    monkeypatch.setattr(measure, "_ENOUGH", 0.2)
    assert cost_of(target).of(1, 64, 64) < 0.01 and not steps
    with real_clock():
        # Of a line through all that was timed, which need not meet each of them.
        assert cost_of(target).of(1, 64, 64) > 0.01 and steps >= 8
