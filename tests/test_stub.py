"""The committed stub of the core equals the one its bindings generate."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STUB = Path(__file__).parent.parent / "src" / "foresay" / "_core.pyi"


def test_stub_is_current(tmp_path: Path) -> None:
    fresh = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "foresay._core"]
    subprocess.run([*command, "-o", str(fresh)], check=True)
    assert fresh.read_text() == STUB.read_text(), "the bindings changed: run `make stub`"
