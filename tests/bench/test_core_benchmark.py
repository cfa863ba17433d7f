"""benchmarks/core.py: what it times is the default drafter, and a slow step is below the bar."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foresay import Verdict
from foresay.drafters import SuffixDrafter
from scripts import script

ARCTIC = "arctic, depth 24"


@pytest.fixture
def core() -> Any:
    return script("core")


def test_it_times_the_default_drafter(core: Any) -> None:
    """A drafter without a history learns less of tokens, so its step does not show what that takes:
    that is how a step that took 1.5 times as long went unseen."""
    texts = np.random.default_rng(0).integers(0, 9, (4, 200)).astype(np.int32)
    default, plain = SuffixDrafter(), SuffixDrafter(history=False)
    timed = core.Ours(texts, 40, 2, 8, 1)
    scores = []
    for drafter in (default, plain):
        states = [drafter.begin(row[:40]) for row in texts]
        for at in range(40, 180, 2):
            drafter.propose(states, [8] * 4)
            drafter.observe(states, [Verdict([], row[at : at + 2]) for row in texts])
        scores.append(np.asarray(drafter.propose(states, [8] * 4).scores))
    timed.drafter.propose(timed.states, timed.budgets)
    for _ in range(70):
        taken = timed.step()
        assert taken.shape == (2,) and taken[0] > 0
    again = np.asarray(timed.drafter.propose(timed.states, timed.budgets).scores)
    assert np.array_equal(again, scores[0]) and not np.array_equal(again, scores[1])


def test_the_bar_finds_a_step_that_has_become_slow(core: Any) -> None:
    def rows(wall: float, processor: float) -> dict[str, Any]:
        ratios = {"wall": wall, "processor": processor}
        ours = "foresay, 1 thread", "foresay, 2 threads"
        return {"256 x 4096": {ARCTIC: {f"times {name}": ratios for name in ours}}}

    assert core.below_bar(rows(5.5, 5.5)) == []
    (slow,) = core.below_bar(rows(7.0, 3.4))
    assert "3.4 times the processor time of foresay, 1 thread; the bar is 5.5" in slow
    assert len(core.below_bar(rows(3.4, float("nan")))) == 2
    assert len(core.below_bar({"256 x 4096": {}})) == 2, "what was not measured is not met"
    assert core.below_bar({}) == ["no step was measured"]


def test_ratios_are_taken_turn_by_turn(core: Any) -> None:
    def measured(*ms: float) -> dict[str, Any]:
        return {clock: np.array(ms) for clock in core.CLOCKS}

    names = "foresay, 1 thread", "foresay, 2 threads"
    found = core.summary(
        {names[0]: measured(1, 2, 9), names[1]: measured(1, 1, 1), ARCTIC: measured(6, 12, 18)}
    )
    assert found[names[0]] == {"wall_ms": 2, "processor_ms": 2}
    assert found[ARCTIC]["wall_ms"] == 12
    assert found[ARCTIC][f"times {names[0]}"] == {"wall": 6, "processor": 6}
    assert found[ARCTIC][f"times {names[1]}"] == {"wall": 12, "processor": 12}
