"""Ctrl-C while the command line is still being imported: one line, and status 130."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded.jsonl.gz"
# What the command `foresay` does, with an interrupt when a module is about to be imported.
START = """
import os, signal, sys

moment = sys.argv.pop(1)

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from foresay.__main__ import main

main()
"""


LINE = "foresay: interrupted\n"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("rich", LINE),
        ("numpy", LINE),
        ("foresay.cli.train", LINE),
        ("foresay.bench.replay", ""),  # of the command itself
    ],
)
def test_an_interrupt_while_modules_are_imported(module: str, line: str) -> None:
    command = [sys.executable, "-c", START, module, "replay", str(RECORDED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", line)
