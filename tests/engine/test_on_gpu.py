"""Steps whose results come later, as a GPU's: they are timed when they are there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foresay.engine import measure
from foresay.engine.engine import Engine
from foresay.models.load_transformers import plain_target_of
from foresay.models.target import Outputs
from foresay.sampling.params import SamplingParams
from models import zoo
from steady import real_clock


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[Outputs]:
    found: list[Outputs] = []
    monkeypatch.setattr(Outputs, "wait", lambda self: found.append(self) or self)  # type: ignore[func-returns-value]
    return found


def test_a_step_of_which_nothing_is_read_is_waited_for(waited: list[Outputs]) -> None:
    """So its time is its own, not the next one's."""
    engine = Engine(plain_target_of(zoo.make("llama")), memory=1 << 24, max_rows=16)
    prompt = np.arange(3, 43, dtype=np.int32)  # two steps of prefill alone, then a decode
    engine.add(prompt, SamplingParams(temperature=0, max_tokens=3))
    steps = 0
    while engine.busy:
        engine.step()
        steps += 1
        assert len(waited) == min(steps, 2)
    assert steps == 5


def test_timed_steps_are_waited_for(waited: list[Outputs], monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = plain_target_of(zoo.make("llama"))
    kind, texts = measure._Kind(64, 2, 3), measure._texts(target, 64)
    with real_clock():
        measure._timed(target, kind, texts)
        assert len(waited) == 1
        monkeypatch.setattr(Outputs, "on_gpu", True)
        measure._timed(target, kind, texts)
        assert len(waited) == 3  # the first of a kind may be prepared
