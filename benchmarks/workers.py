"""Engines in processes of their own, which work when they are asked to; time and memory of one.

Nothing of foresay is imported here, so that a worker can run with another checkout.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE = 0.05  # seconds before a request: by then the threads that spun for the last one sleep


class Timer:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self._wall,
            "cpu_seconds": time.process_time() - self._cpu,
        }


def resident(pid: int | str = "self") -> tuple[int, int]:
    """Bytes of a process in memory, and those of them that are not mapped from files."""
    fields = [int(pages) for pages in Path(f"/proc/{pid}/statm").read_text().split()]
    page = os.sysconf("SC_PAGE_SIZE")
    return fields[1] * page, (fields[1] - fields[2]) * page


def give_back() -> None:
    """Let the system have what is freed."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a C library other than glibc has none
        ctypes.CDLL(None).malloc_trim(0)


class WorkerError(Exception):
    """An engine could not do what it was asked for; a sentence that names both."""


class Worker:
    """A process that keeps a model and works when it is asked to: requests {"ask": name, …} and
    answers {"answer": …} or {"error": sentence} are lines of JSON. They have a socket of their own,
    since libraries print what they like; its number is the process' last argument (`serve`).

    `name` is the engine's, for errors; `seconds` the longest wait for one answer. Every wait ends:
    with the answer, with the process, or with the time.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        seconds: float = 900,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self._limit = name, seconds
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._socket, theirs = socket.socketpair()
        self._answers = self._socket.makefile("rb")
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **(environment or {})},
            )

    def ask(self, what: str, **values: Any) -> Any:
        """The worker's answer.

        Raises: WorkerError if it fails, ends, says something else than an answer, or takes longer
        than the limit; the worker has ended then.
        """
        if self._process.returncode is not None:
            raise WorkerError(f"{self.name} was asked for '{what}', but its process has ended")
        time.sleep(PAUSE)
        try:
            line = self._exchange(json.dumps({"ask": what, **values}).encode() + b"\n")
            if not line.endswith(b"\n"):
                status: object = "unknown"
                with contextlib.suppress(subprocess.TimeoutExpired):  # the socket may end before it
                    status = self._process.wait(5)
                raise WorkerError(
                    f"{self.name} ended with status {status} before it answered '{what}'; "
                    f"its last words: {self._last_words()}"
                )
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict) or not found.keys() & {"answer", "error"}:
                raise WorkerError(
                    f"{self.name} answered '{what}' with {line[:-1][:80]!r}; "
                    "expected an answer in JSON"
                )
            if "error" in found:
                raise WorkerError(f"{self.name} could not do '{what}': {found['error']}")
            return found["answer"]
        except BaseException as error:
            self.end()
            if isinstance(error, TimeoutError):
                raise WorkerError(
                    f"{self.name} did not answer '{what}' within {self._limit:g} seconds"
                ) from error
            raise

    def end(self) -> None:
        """End the process; a second time is no error."""
        self._process.kill()
        self._process.wait()
        for one in (self._answers, self._socket, self._log):
            one.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _exchange(self, request: bytes) -> bytes:
        """Its line, as far as it came. A request may be longer than the socket holds, and a worker
        that hangs does not read it."""
        until, line = time.monotonic() + self._limit, b""
        self._socket.settimeout(self._limit)
        with contextlib.suppress(ConnectionError):  # what is read says why it ended
            self._socket.sendall(request)
        self._socket.settimeout(max(1e-3, until - time.monotonic()))
        with contextlib.suppress(ConnectionError):
            line = self._answers.readline()
        return line

    def _last_words(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "none")


def serve(tasks: Mapping[str, Callable[..., Any]]) -> None:
    """The side that answers, until nobody asks any more."""
    with socket.socket(fileno=int(sys.argv[-1])) as ours, ours.makefile("rw") as lines:
        for line in lines:
            values = json.loads(line)
            what = values.pop("ask")
            try:
                if what not in tasks:
                    raise WorkerError(f"there is no such task; expected one of {', '.join(tasks)}")
                answer = {"answer": tasks[what](**values)}
            except Exception as error:  # of any library; the other side says it and ends
                answer = {"error": f"{type(error).__name__}: {error}"}
            lines.write(json.dumps(answer) + "\n")
            lines.flush()


class Loading:
    """Times the imports, the model and the first token, and what the process grows by."""

    def __init__(self) -> None:
        self._timer, self._took = Timer(), dict[str, Any]()

    def imported(self) -> None:
        self._took["imports"] = self._timer.read()
        give_back()
        self._before, self._timer = resident()[0], Timer()

    def reached(self, stage: str) -> None:
        self._took[stage] = self._timer.read()

    def done(self, **about: Any) -> dict[str, Any]:
        self.reached("first_token")
        give_back()
        now = resident()[0]
        return {"took": self._took, "bytes": now, "grown_bytes": now - self._before, **about}


def timed_rows(
    step: Callable[[int], float], sizes: Sequence[int], repeats: int
) -> dict[str, list[float]]:
    """Seconds of steps of so many rows, the sizes in turns; the first of each warms up."""
    found: dict[str, list[float]] = {str(size): [] for size in sizes}
    for repeat in range(-1, repeats):
        for size in sizes:
            took = step(size)
            if repeat >= 0:
                found[str(size)].append(took)
    return found
