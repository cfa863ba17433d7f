"""From the command to the first token of a model's file, by phases: a first start with an empty
cache, and the next ones.

    python benchmarks/start.py FILE.gguf [--starts 3] [--python OTHER/.venv/bin/python]
                               [--name=-xeon]

Each start is a process of its own that loads the model as `foresay generate` does and answers "hi"
with one token. A phase lasts until the next one is reported; its times are seconds of wall clock
and of all processors. The file is read once before, so that all starts find it in the system's
memory. --python measures the code of another checkout.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

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
    from foresay.cli.model import load
    from foresay.sampling.params import SamplingParams

    reports: Any = phases
    llm = load(file, "auto", reports)
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


def main() -> None:
    if "--began" in sys.argv:
        return start(sys.argv[1], float(sys.argv[3]))
    parser = harness.parser(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--starts", type=int, default=3, help="with the cache of the first")
    parser.add_argument("--python", default=sys.executable, help="of another checkout")
    options = harness.parse(parser)
    with open(options.file, "rb") as opened:
        while opened.read(1 << 24):
            pass
    starts = []
    with tempfile.TemporaryDirectory() as cache:
        for number in range(1 + options.starts):
            one = measured(options.python, options.file, cache)
            phases = (
                f"{stage} {at['wall']:.2f} ({at['cpu']:.2f})" for stage, at in one["phases"].items()
            )
            total = f"{one['wall']:.2f} s, {one['cpu']:.2f} CPU s"
            print(f"start {number + 1}: {total}: {', '.join(phases)}", flush=True)
            starts.append(one)
    different = len({json.dumps(one["token_ids"]) for one in starts}) != 1
    figures = {
        "file": options.file.name,
        "bytes": options.file.stat().st_size,
        "measured_commit": harness.commit(Path(options.python).absolute().parents[2]),
        "starts": starts,
    }
    failed = "the starts gave different tokens" if different else ""
    harness.finish("start", figures, options, failed=failed)


if __name__ == "__main__":
    main()
