"""docs/drafter.md: its drafter keeps the contract, its program prints what it promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forks
from conformance import SCENARIOS, Readable, Scenario, drive
from foresay import Drafter, Verdict
from foresay.errors import InputError, StateError, TokenTypeError
from tiny import save_model

PAGE = Path(__file__).parent.parent / "docs" / "drafter.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
MODEL = '"smollm2-135m"'


def bigrams() -> Readable:
    """A new drafter of the page's first block."""
    names: dict[str, Any] = {}
    exec(BLOCKS[0], names)
    drafter: Readable = names["Bigrams"]()
    return drafter


def test_it_has_40_lines() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
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


def test_the_program_runs(tmp_path: Path) -> None:
    program = "\n".join(BLOCKS)
    assert program.count(MODEL) == 1
    promised = re.findall(r"^print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert len(promised) == 2
    folder = save_model(tmp_path)
    done = forks.run("-W", "error", "-c", program.replace(MODEL, repr(str(folder))))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == promised
