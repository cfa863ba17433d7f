"""A model's file that fits into a moment, and what is in a folder."""

from __future__ import annotations

from pathlib import Path

from models import gguf_files


def small_file(path: Path) -> bytes:
    """Write a GGUF file of a tiny model."""
    gguf_files.export(gguf_files.tiny("llama"), path, "llama")
    return path.read_bytes()


def visible(folder: Path) -> list[str]:
    """The names of all that is in a folder, but for locks."""
    return sorted(p.name for p in folder.rglob("*") if not p.name.endswith(".lock"))
