"""How many processors may be used, also where the system does not say it."""

from __future__ import annotations

import ast
import os
import time
from pathlib import Path

import pytest

from foresay.drafters import SuffixDrafter
from foresay.machine import seconds_kept_waiting, usable_processors
from foresay.models.remembered import Memory

ROOT = Path(__file__).parent.parent


def test_usable_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8}, raising=False)
    assert usable_processors() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert usable_processors() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_processors() == 1


def test_without_sched_getaffinity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """macOS has none."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    SuffixDrafter()
    assert Memory("steps", "a", folder=tmp_path).read() is None


def test_one_place_asks() -> None:
    asking = []
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("sched_getaffinity", "cpu_count"):
                asking.append(path.name)
    assert set(asking) == {"machine.py"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="macOS does not say it")
def test_who_shares_a_processor_is_kept_waiting() -> None:
    """Two processes that want the same processor, each for half of the time."""
    child = os.fork()
    before = os.sched_getaffinity(0)
    processor = min(before)
    if child == 0:
        os.sched_setaffinity(0, {processor})
        while time.perf_counter():
            pass
    try:
        os.sched_setaffinity(0, {processor})
        begun, waited = time.perf_counter(), seconds_kept_waiting()
        while time.perf_counter() < begun + 0.5:
            pass
        assert seconds_kept_waiting() - waited > 0.1
    finally:
        os.sched_setaffinity(0, before)
        os.kill(child, 9)
        os.waitpid(child, 0)
