"""However a process ends, the core has nothing to say about it: all its objects are freed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    "way",
    [
        "in_a_cycle",
        "proposer_in_a_frozen_heap",
        "cache_in_a_frozen_heap",
        "server_that_nobody_stopped",
    ],
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
