"""From the command to the first token of a model's file, by phases: a first start with an empty
cache, and the next ones.

    python benchmarks/start.py FILE.gguf [--starts 3] [--python OTHER/.venv/bin/python]
                               [--name xeon] [--record FOLDER]

Each start is a process of its own that loads the model as `foresay generate` does and answers "hi"
with one token. A phase lasts until the next one is reported; its times are seconds of wall clock
and of all processors. The file is read once before, so that all starts find it in the system's
memory. --python measures the code of another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FIRST = "python"  # the phase before the first report: the interpreter, and what it imports


class Phases:
    """Takes the reports of stages (`foresay.models.progress`), and the time between them."""

    def __init__(self, began: float) -> None:
        self._stage, self._wall, self._cpu = FIRST, began, 0.0
        self.found: dict[str, dict[str, float]] = {}

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage == self._stage:
            return
        used = resource.getrusage(resource.RUSAGE_SELF)
        wall, cpu = time.time(), used.ru_utime + used.ru_stime
        phase = self.found.setdefault(self._stage, {"wall": 0.0, "cpu": 0.0})
        phase["wall"] += wall - self._wall
        phase["cpu"] += cpu - self._cpu
        self._stage, self._wall, self._cpu = stage, wall, cpu

    def tell(self, event: str, sentence: str, **facts: Any) -> None:
        """An event that is no stage."""


def start(file: str, began: float) -> None:
    """One start in this process; prints its phases."""
    phases = Phases(began)
    from foresay.cli.model import DtypeOption, load
    from foresay.sampling.params import SamplingParams

    reports: Any = phases
    llm = load(file, DtypeOption.auto, reports)
    phases("answer", 0, None)
    chat = llm.tokenizer.chats
    (result,) = llm.generate("hi", SamplingParams(max_tokens=1, temperature=0.0), chat=chat)
    phases("end", 0, None)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {
        "phases": phases.found,
        "wall": sum(phase["wall"] for phase in phases.found.values()),
        "cpu": sum(phase["cpu"] for phase in phases.found.values()),
        "most_bytes": most,
        "exact": llm.target.exact,
        "token_ids": result.token_ids,
    }
    print(json.dumps(found))


def measured(python: str, file: Path, cache: str) -> dict[str, Any]:
    """A start in a process of its own."""
    command = [python, __file__, str(file), "--began", repr(time.time())]
    environment = {**os.environ, "FORESAY_CACHE": cache}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def shown(name: str, one: dict[str, Any]) -> str:
    """A start as a line."""
    phases = (
        f"{stage} {phase['wall']:.2f} ({phase['cpu']:.2f})"
        for stage, phase in one["phases"].items()
    )
    return f"{name}: {one['wall']:.2f} s, {one['cpu']:.2f} CPU s: {', '.join(phases)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--starts", type=int, default=3, help="with the cache of the first")
    parser.add_argument("--python", default=sys.executable, help="of another checkout")
    parser.add_argument("--name", default="here", help="of the machine, in the record's name")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    import record

    record.add_option(parser)
    options = parser.parse_args()
    if options.began is not None:
        return start(str(options.file), options.began)
    with open(options.file, "rb") as opened:
        while opened.read(1 << 24):
            pass
    with tempfile.TemporaryDirectory() as cache:
        starts = []
        for number in range(1 + options.starts):
            starts.append(measured(options.python, options.file, cache))
            print(shown(f"start {number + 1}", starts[-1]), flush=True)
    if len({json.dumps(one["token_ids"]) for one in starts}) != 1:
        raise SystemExit("the starts gave different tokens")
    figures = {
        "file": options.file.name,
        "bytes": options.file.stat().st_size,
        "commit": _commit(Path(options.python).absolute().parents[2]),
        "load": os.getloadavg(),
        "starts": starts,
    }
    path = record.write(f"start-{options.name}", figures, options.record)
    print(f"recorded in {path.name}")


def _commit(folder: Path) -> str:
    """Of the checkout that was measured."""
    said = subprocess.run(
        ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
    )
    return said.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
