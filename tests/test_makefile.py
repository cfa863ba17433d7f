"""The Makefile installs what pyproject.toml names, and never a stranger called foresay."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()


def needs(extra: str, hidden: str = "") -> list[str]:
    """What the Makefile's own helper prints; `hidden` is a module that it does not find."""
    code = re.search(r"^define NEEDS\n(.*?)^endef", MAKEFILE, re.DOTALL | re.MULTILINE)
    assert code is not None
    hide = f"import sys; sys.modules[{hidden!r}] = None\n" if hidden else ""
    command = [sys.executable, "-c", hide + code[1], extra]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_no_install_by_our_own_name() -> None:
    for line in MAKEFILE.splitlines():
        if "$(PIP)" in line or "pip install" in line:
            assert "foresay" not in line, line


@pytest.mark.parametrize("extra", ["engine", "dev"])
def test_needs_of_an_extra(extra: str) -> None:
    found = needs(extra)
    assert "rich>=13" in found and ("pytest>=8" in found) == (extra == "dev")
    assert not any("foresay" in need for need in found)


def test_needs_without_a_toml_reader() -> None:
    assert needs("dev", hidden="tomllib") == ["-e .[dev]"]
