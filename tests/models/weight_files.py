"""A model's file that fits into a moment, what is in a folder, and processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from models import gguf_files


def small_file(path: Path) -> bytes:
    """Write a GGUF file of a tiny model."""
    gguf_files.export(gguf_files.tiny("llama"), path, "llama")
    return path.read_bytes()


def visible(folder: Path) -> list[str]:
    """The names of all that is in a folder, but for locks."""
    return sorted(p.name for p in folder.rglob("*") if not p.name.endswith(".lock"))


def printed(code: str, *arguments: object) -> str:
    """What a new process prints that runs the code."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
