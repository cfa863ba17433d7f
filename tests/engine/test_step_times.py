"""What a step is said to have taken, and what of it drafting has taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foresay.engine.step import Timings, seconds_of

TOOK = {"schedule": 1.0, "draft": 2.0, "forward": 4.0, "verify": 8.0, "commit": 16.0}


@pytest.mark.parametrize(
    ("overlaps", "ahead", "probed", "seconds", "expected"),
    [
        (False, False, False, None, (4 + 8, 2)),  # a processor: nothing is hidden
        (True, False, False, None, (8, 2 + 4)),  # the device waits until the step is started
        (True, False, True, None, (8, 2 + 4 + 1 + 16)),  # a plain step would have been ahead
        (True, True, False, 5.0, (5, 0)),
        (True, True, True, 5.0, (5, 0)),
        (True, False, False, 5.0, (5, 2 + 4)),
    ],
)
def test_seconds_of(
    overlaps: bool, ahead: bool, probed: bool, seconds: float | None, expected: tuple[float, float]
) -> None:
    laps = Timings()
    laps.seconds |= TOOK
    step: Any = SimpleNamespace(load=SimpleNamespace(probed=probed))
    outcome: Any = SimpleNamespace(overlaps=overlaps, ahead=ahead, seconds=seconds)
    assert seconds_of(step, outcome, laps) == expected
