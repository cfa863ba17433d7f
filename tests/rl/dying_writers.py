"""The same of processes that write and read files alone: none of it imports torch."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from foresay.budget.cost import Sample
from foresay.cli import run as command
from foresay.integrations.vllm.meter import Meter
from foresay.integrations.vllm.settings import VllmSettings
from foresay.models.remembered import Memory
from lives import die_writing

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
CURVES: Any = import_module("rl_curves")
SAMPLES = [Sample(rows, rows * 64, 1e-3 * rows, 64) for rows in range(1, 41)]


def draw(folder: str) -> None:
    sys.exit(CURVES.draw_curves(Path(folder), as_json=True))


def tail(file: str) -> None:
    sys.argv = ["foresay", "tail", file]
    command()


def version(file: str, steps_file: str, versions: int, size: int = 0) -> None:
    """The proposer's meter inside vLLM: versions of three steps each."""
    meter = Meter(VllmSettings(versions_file=file, steps_file=steps_file))
    if size:
        die_writing(size)
    for _ in range(versions):
        for _ in range(3):
            meter.count(rows=2, tokens=5, drafted=6, seconds=1e-4)
        meter.end_version()


def remember(folder: str, size: int = 0) -> None:
    """What a start does after it has timed its steps."""
    memory = Memory("steps", "a model", 1, Path(folder))
    if size:
        die_writing(size)
    print(json.dumps(memory.read()))
    memory.write(SAMPLES)
