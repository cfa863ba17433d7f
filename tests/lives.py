"""Processes that are killed, cheaply: one process imports what takes long, and forks the others.

    with Nursery("rl.dying") as nursery:
        life = nursery.begin("roll", folder, log, to=3)
        assert nursery.end(life) == -signal.SIGKILL

Each is a process of its own, in a session of its own.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Nursery", "die", "die_writing", "survivors"]

_LOOK = 0.02  # seconds between two looks


class Nursery:
    """Functions of one module, each in a process of its own.

    module  imported before anything is forked; it must not start threads
    """

    def __init__(self, module: str, **environ: str) -> None:
        self._module = module
        self._environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}

    def __enter__(self) -> Nursery:
        self._process = subprocess.Popen(
            [sys.executable, __file__, self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environ,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(30)
        self._process.stdout.close()  # type: ignore[union-attr]

    def begin(self, function: str, log: Path, *, environ: Any = None, **given: Any) -> int:
        """Call a function of the module in a new process; its id. What it says is in the log."""
        return int(self._asked(function=function, log=str(log), environ=environ or {}, given=given))

    def end(self, life: int, seconds: float = 60.0) -> int | None:
        """Wait for the end of a process: its status, or minus the signal that ended it; None: it
        still ran after so many seconds, and was killed for it."""
        status = self._asked(wait=life, seconds=seconds)
        return None if status is None else int(status)

    def live(self, function: str, log: Path, **given: Any) -> int | None:
        """Both."""
        return self.end(self.begin(function, log, **given))

    def _asked(self, **question: Any) -> Any:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        print(json.dumps(question), file=stdin, flush=True)
        return json.loads(stdout.readline())


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


def _ended(life: int, seconds: float) -> int | None:
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        done, status = os.waitpid(life, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_LOOK)
    os.kill(life, signal.SIGKILL)
    os.waitpid(life, 0)
    return None


def _main() -> None:
    module = import_module(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            print(json.dumps(_ended(asked["wait"], asked["seconds"])), flush=True)
            continue
        life = os.fork()
        if not life:
            break
        print(json.dumps(life), flush=True)
    else:
        return
    os.setsid()
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for at, descriptor in ((0, nothing), (1, log), (2, log)):
        os.dup2(descriptor, at)
    os.environ |= asked["environ"]
    status = 0
    try:
        getattr(module, asked["function"])(**asked["given"])
    except SystemExit as end:
        status = int(end.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to take down what was imported takes longer than most of them live


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    _main()
