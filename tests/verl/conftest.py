"""These tests run in an environment of their own, which has verl and vLLM: `make test-verl`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

# This folder, which is on the path too, passes for a package of that name, but has no file.
HERE = getattr(find_spec("verl"), "origin", None) is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not HERE:
        terminalreporter.write_line(
            "tests/verl: not run, verl is not installed here; `make test-verl` runs them"
        )
