"""The timed steps before the first answer: enough of them, and not for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from foresay.engine import measure
from foresay.engine.measure import _KINDS, measured_cost
from foresay.models.load_transformers import target_of
from foresay.models.target import Hidden, Outputs, SequenceInput, Target
from models import zoo
from steady import real_clock


@pytest.fixture(autouse=True)
def timed() -> Iterator[None]:
    with real_clock():
        yield


class Slow:
    """A model whose steps take long, as a large one's do, on a clock of its own."""

    def __init__(self, target: Target) -> None:
        self.target, self.steps = target, 0

    def clock(self) -> float:
        return 0.3 * self.steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        self.steps += 1
        return self.target.forward(parts, hidden=hidden)


def test_a_large_model_is_measured_with_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = Slow(target_of(zoo.make("llama"), deterministic=False))
    monkeypatch.setattr(measure, "perf_counter", target.clock)
    before = target.steps
    told: list[tuple[str, int, int | None]] = []
    cost = measured_cost(target, lambda *stage: told.append(stage))
    assert target.steps - before <= 10
    assert [(stage, done) for stage, done, _ in told] == [("measure", n) for n in range(len(told))]
    assert cost.of(1, 64, 64) > 0.2


def test_a_small_model_is_measured_with_all_kinds_of_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_ENOUGH", 60.0)  # on a busy machine no step is quick
    target = target_of(zoo.make("llama"), deterministic=False)
    told: list[tuple[str, int, int | None]] = []
    measured_cost(target, lambda *stage: told.append(stage))
    with pytest.raises(KeyboardInterrupt):
        measured_cost(target, interrupt)
    kinds = len([kind for kind in _KINDS if kind.context + kind.rows < target.context])
    assert len(told) >= kinds > 10


def interrupt(*stage: object) -> None:
    raise KeyboardInterrupt


def test_the_user_s_random_numbers_are_left_alone() -> None:
    target = target_of(zoo.make("llama"), deterministic=False)
    before = torch.get_rng_state()
    measured_cost(target)
    assert torch.equal(torch.get_rng_state(), before)
