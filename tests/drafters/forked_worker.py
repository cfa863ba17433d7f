"""Workers that need not import torch: their process is forked from one that has (`forks`)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import forks
from foresay.drafters import WorkerDrafter
from foresay.drafters.worker import life

__all__ = ["ForkedWorker"]


def _fork(
    command: Sequence[str],
    *,
    pass_fds: Sequence[int],
    stdin: int,
    stdout: int,
    env: Mapping[str, str],
) -> forks.Process:
    """What `Life` asks of Popen. The socket is the new process' stdin, whose number is known."""
    _, how, code, main, _, *path = command
    with open("/dev/null", "w") as nowhere:
        streams = [*pass_fds, nowhere.fileno(), 2]
        return forks.start(how, code, main, 0, *path, environ=env, streams=streams)


class ForkedWorker(WorkerDrafter):
    """The same but for how its process begins; test_worker_frames.py has a model in a process that
    Python starts."""

    def _start(self) -> Any:
        asked = SimpleNamespace(
            Popen=_fork,
            DEVNULL=subprocess.DEVNULL,
            TimeoutExpired=subprocess.TimeoutExpired,
        )
        with patch.object(life, "subprocess", asked):
            return super()._start()
