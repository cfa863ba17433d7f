"""Processes that are killed: functions of a module, each in a process of its own.

    with Nursery("rl.dying") as nursery:
        life = nursery.begin("roll", folder, log, to=3)
        assert nursery.end(life) == -signal.SIGKILL

They are forked (`forks`), so that each begins at once.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import forks

__all__ = ["Nursery", "die", "die_writing", "survivors"]

_CALL = """
import json, sys
sys.path[0], module, function, given = sys.argv[1:]
from importlib import import_module
getattr(import_module(module), function)(**json.loads(given))
"""


class Nursery:
    """Functions of one module, each in a process of its own.

    module  imported before anything is forked; it must not start threads
    """

    def __init__(self, module: str, **environ: str) -> None:
        self._module, self._server = module, forks.Server(module, **environ)
        self._lives: dict[int, forks.Process] = {}

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        """None of them is left."""
        for life in list(self._lives):
            self.end(life, 0)
        self._server.close()

    def begin(self, function: str, log: Path, *, environ: Any = None, **given: Any) -> int:
        """Call a function of the module in a new process; its id. What it says is in the log."""
        with open(os.devnull) as nothing, open(log, "a") as said:
            process = forks.start(
                *("-c", _CALL, Path(__file__).parent, self._module, function, json.dumps(given)),
                server=self._server,
                environ=environ,
                streams=(nothing.fileno(), said.fileno(), said.fileno()),
            )
        self._lives[process.pid] = process
        return process.pid

    def end(self, life: int, seconds: float = 60.0) -> int | None:
        """Wait for the end of a process: its status, or minus the signal that ended it; None: it
        still ran after so many seconds, and was killed for it."""
        with self._lives.pop(life) as process:
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None

    def kill(self, life: int) -> None:
        """Unless it has ended by itself."""
        self._lives[life].kill()

    def live(self, function: str, log: Path, **given: Any) -> int | None:
        """Both."""
        return self.end(self.begin(function, log, **given))


def die() -> None:
    """End this process here, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_writing(size: int) -> None:
    """End this process in the middle of a write: where any file would get longer than `size` bytes.
    It is the kernel that ends it, by SIGXFSZ, after what fits has been written.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def survivors(life: int) -> list[int]:
    """Processes that it has left behind: those of its session, which it began."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, *rest = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(rest[2]) == life and state != "Z":
            found.append(int(stat.parent.name))
    return found
