"""However a process ends, the core has nothing to say about it: all its objects are freed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foresay import _core

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "way", ["in_a_cycle", "proposer_in_a_frozen_heap", "server_that_nobody_stopped"]
)
def test_nothing_is_leaked(way: str) -> None:
    done = subprocess.run(
        [sys.executable, TESTS / "leaving.py", way],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "nanobind" not in done.stderr and "leaked" not in done.stderr, done.stderr


def parts(value: Any, depth: int = 3) -> Iterator[Any]:
    """A value, and what it holds if it is a collection or one of our own objects."""
    yield value
    held: Iterable[Any] = ()
    if isinstance(value, dict):
        held = value.values()
    elif isinstance(value, (list, tuple, set)):
        held = value
    elif type(value).__module__.startswith("foresay"):
        held = getattr(value, "__dict__", {}).values()
    for part in held if depth else ():
        yield from parts(part, depth - 1)


def test_no_case_is_given_an_object_of_the_core(request: pytest.FixtureRequest) -> None:
    """pytest keeps what a case is given to the end of the process, where it would be a leak."""
    ours = tuple(kind for kind in vars(_core).values() if isinstance(kind, type))
    for item in request.session.items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        for name, value in given.items():
            assert not any(isinstance(part, ours) for part in parts(value)), (item.nodeid, name)
