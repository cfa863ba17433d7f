"""Trace files for the tests of corpora."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

RECORDS = [
    {"id": "a", "group": "g", "prompt": [1, 2], "output": [3, 4]},
    {"tokens": [5, 6]},
    {"prompt": [1, 2], "output": [3, 7]},
]


def write_trace(path: Path, lines: list[str]) -> Path:
    """Compressed, if the name says so."""
    data = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def good_trace(path: Path) -> Path:
    """The records, and an empty line."""
    return write_trace(path, [json.dumps(record) for record in RECORDS] + [""])


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())
