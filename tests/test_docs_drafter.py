"""docs/drafter.md: its drafter keeps the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance import SCENARIOS, Readable, Scenario, drive
from documents import blocks
from foresay import Drafter, Verdict
from foresay.errors import InputError, StateError, TokenTypeError

CODE = blocks("docs/drafter.md")[0]


def bigrams() -> Readable:
    """A new drafter of the page's first block."""
    names: dict[str, Any] = {}
    exec(CODE, names)
    drafter: Readable = names["Bigrams"]()
    return drafter


def test_it_has_40_lines() -> None:
    lines = [line for line in CODE.splitlines() if line.strip()]
    assert len([line for line in lines if not line.startswith(("import ", "from "))]) <= 40


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_alone(scenario: Scenario) -> None:
    drive(bigrams(), [scenario])


@pytest.mark.parametrize("as_lists", [False, True], ids=["packed", "lists"])
def test_together(as_lists: bool) -> None:
    drafter = bigrams()
    assert isinstance(drafter, Drafter)
    for _ in range(2):
        assert drive(drafter, SCENARIOS, as_lists) > 50


def test_bad_input() -> None:
    drafter, other = bigrams(), bigrams()
    with pytest.raises(TokenTypeError):
        drafter.begin(np.array([1.5]))
    with pytest.raises(InputError, match="empty"):
        drafter.begin(np.array([], np.int32))
    state = drafter.begin(np.array([1, 2, 1], np.int32))
    for budgets in ([-1], [5000], [1, 1]):
        with pytest.raises(InputError):
            drafter.propose([state], budgets)
    with pytest.raises(InputError, match="twice"):
        drafter.propose([state, state], [1, 1])
    with pytest.raises(InputError, match="1 states but 0 verdicts"):
        drafter.observe([state], [])
    with pytest.raises(StateError):
        other.propose([state], [1])
    drafter.observe([state], [Verdict([], [2])])
    drafter.finish(state)
    for late in (
        lambda: drafter.propose([state], [1]),
        lambda: drafter.finish(state),
        lambda: drafter.text(state),
    ):
        with pytest.raises(StateError, match="finished before"):
            late()
