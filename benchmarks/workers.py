"""Engines in processes of their own, which work when they are asked to; time and memory of one.

Nothing of foresay is imported here, so that a worker can run with another checkout.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
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
    answers {"answer": …} or {"error": sentence} are lines of JSON. The answers have a pipe of their
    own, since libraries print what they like; its number is the process' last argument (`serve`).

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
        answers, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs)],
                stdin=subprocess.PIPE,
                bufsize=0,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs,),
                env={**os.environ, **(environment or {})},
            )
        finally:
            os.close(theirs)
        self._answers, self._rest = answers, b""

    def ask(self, what: str, **values: Any) -> Any:
        """The worker's answer.

        Raises: WorkerError if it fails, ends, says something else than an answer, or takes longer
        than the limit; the worker has ended then.
        """
        if self._answers < 0:
            raise WorkerError(f"{self.name} was asked for '{what}', but its process has ended")
        time.sleep(PAUSE)
        try:
            until = time.monotonic() + self._limit
            with contextlib.suppress(BrokenPipeError):  # what is read says why it ended
                self._write(json.dumps({"ask": what, **values}).encode() + b"\n", what, until)
            line = self._read(what, until)
            try:
                found = json.loads(line)
            except ValueError:
                found = None
            if not isinstance(found, dict) or not found.keys() & {"answer", "error"}:
                raise WorkerError(
                    f"{self.name} answered '{what}' with {line[:80]!r}; expected an answer in JSON"
                )
            if "error" in found:
                raise WorkerError(f"{self.name} could not do '{what}': {found['error']}")
            return found["answer"]
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the process; a second time is no error."""
        if self._answers < 0:
            return
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._answers)
        self._log.close()
        self._answers = -1

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _write(self, data: bytes, what: str, until: float) -> None:
        """A request may be longer than the pipe, and a worker that hangs does not read it."""
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        while data:
            self._wait(what, until, writes=(pipe,))
            data = data[os.write(pipe, data) :]

    def _read(self, what: str, until: float) -> bytes:
        while b"\n" not in self._rest:
            self._wait(what, until, reads=(self._answers,))
            more = os.read(self._answers, 1 << 16)
            if not more:
                status: object = "unknown"
                with contextlib.suppress(subprocess.TimeoutExpired):  # the pipe may end before it
                    status = self._process.wait(5)
                raise WorkerError(
                    f"{self.name} ended with status {status} before it answered '{what}'; "
                    f"its last words: {self._last_words()}"
                )
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return line

    def _wait(
        self, what: str, until: float, reads: Sequence[int] = (), writes: Sequence[int] = ()
    ) -> None:
        if not any(select.select(reads, writes, [], max(0, until - time.monotonic()))):
            raise WorkerError(f"{self.name} did not answer '{what}' within {self._limit:g} seconds")

    def _last_words(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "none")


def serve(tasks: Mapping[str, Callable[..., Any]]) -> None:
    """The side that answers, until nobody asks any more."""
    with open(int(sys.argv[-1]), "w") as answers:
        for line in sys.stdin:
            values = json.loads(line)
            what = values.pop("ask")
            try:
                if what not in tasks:
                    raise WorkerError(f"there is no such task; expected one of {', '.join(tasks)}")
                answer = {"answer": tasks[what](**values)}
            except Exception as error:  # of any library; the other side says it and ends
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


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
