"""These tests run in an environment of their own, which has the clients: `make test-clients`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from clients.running import OFFLINE, QUIET, Served, given, running

CLIENTS = ("lm_eval", "guidellm", "instructor", "langchain_openai", "litellm")
HERE = all(find_spec(name) is not None for name in CLIENTS)
collect_ignore_glob = [] if HERE else ["test_*.py"]

SCRIPT = Path(__file__).parent / "reference.py"
Reference: TypeAlias = Callable[..., list[Any]]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not HERE:
        terminalreporter.write_line(
            "tests/clients: not run, the clients are not all installed here; "
            "`make test-clients` runs them"
        )


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with running(tmp_path_factory.mktemp("clients")) as found:
        yield found


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What foresay and transformers compute themselves, in foresay's own environment."""
    folder = tmp_path_factory.mktemp("reference")

    def compute(what: str, asked: list[Any], dtype: str = "float32") -> list[Any]:
        question, answer = folder / "asked.json", folder / "computed.json"
        question.write_text(json.dumps(asked))
        command = [given("FORESAY_TEST_PYTHON"), str(SCRIPT), what, dtype]
        done = subprocess.run(
            [*command, given("FORESAY_TEST_MODEL"), str(question), str(answer)],
            env={**os.environ, **QUIET, **OFFLINE},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        found: list[Any] = json.loads(answer.read_text())
        assert len(found) == len(asked)
        return found

    return compute
