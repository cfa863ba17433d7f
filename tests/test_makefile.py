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


@pytest.mark.parametrize(
    ("fails", "status"), [("", 0), ("ruff", 2), ("mypy", 2), ("python", 2), ("mypy python", 2)]
)
def test_what_fails_fails_the_target(tmp_path: Path, fails: str, status: int) -> None:
    """`make test` with tools that do nothing: each can fail it, and what it said is shown."""
    (tmp_path / "bin").mkdir()
    for name in ("ruff", "mypy", "python"):
        tool = tmp_path / "bin" / name
        tool.write_text(f'#!/bin/sh\necho "{name} $*"\nexit {int(name in fails.split())}\n')
        tool.chmod(0o755)
    stamps = [word for name in (".core", ".dev") for word in ("-o", str(tmp_path / name))]
    command = ["make", "-C", str(ROOT), *stamps, "test", f"VENV={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done
    said = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith("make")]
    if fails == "ruff":
        assert said == ["ruff"]
    else:
        assert said == ["ruff", "ruff", "python", *["mypy"] * ("mypy" in fails)]
