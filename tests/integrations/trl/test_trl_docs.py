"""docs/trl.md is a program that runs and prints what its comments promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from documents import program
from tiny import save_model

MODEL = '"HuggingFaceTB/SmolLM2-135M-Instruct"'


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model", chats=False)
    assert program("docs/trl.md").count(MODEL) == 2
    done = subprocess.run(
        [sys.executable, "-c", program("docs/trl.md", (MODEL, repr(str(folder))))],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    # Without drafts the first and the third would be False.
    assert [line for line in done.stdout.splitlines() if line in ("True", "False")] == ["True"] * 4
