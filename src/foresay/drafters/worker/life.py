"""One process behind a `WorkerDrafter`, from its start to its end."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from foresay import errors
from foresay.drafters.worker.frames import Frame, receive, send
from foresay.errors import ForesayError, WorkerError

__all__ = ["Life", "refusal"]

# The same modules from the same places as here; the current folder is not one of them by itself.
_CODE = (
    "import sys; main, descriptor, *sys.path[:] = sys.argv[1:];"
    "from importlib import import_module; import_module(main).main(int(descriptor))"
)


class Life:
    """A process and our side of the socket to it.

    main     the module whose `main` runs there
    first    the first message to it
    environ  changes of its environment

    Raises: WorkerError if it cannot be started.
    """

    def __init__(self, main: str, first: bytes, environ: Mapping[str, str]) -> None:
        self.started = time.monotonic()
        self.ready = False
        self._pid = os.getpid()
        self.sock, theirs = socket.socketpair()
        try:
            command = [sys.executable, "-c", _CODE, main, str(theirs.fileno()), *sys.path]
            self.process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **environ},
            )
        except OSError as error:
            self.sock.close()
            raise WorkerError(f"a worker process cannot be started: {error}") from None
        finally:
            theirs.close()
        try:
            send(self.sock, first, 1.0)  # fits into the socket, whether or not it is read yet
        except BaseException:
            self.end()
            raise

    @property
    def foreign(self) -> bool:
        """Whether this process was forked from the one that started it."""
        return os.getpid() != self._pid

    def send(self, frame: bytes, seconds: float) -> None:
        """Raises: WorkerError, also if it is not read in time."""
        send(self.sock, frame, seconds)

    def receive(self, deadline: float) -> Frame:
        """The next message. Raises: WorkerError; what the worker says that it failed with."""
        frame = receive(self.sock, deadline)
        if frame.kind == "error":
            raise refusal(frame.values)
        return frame

    def hears(self, wait: float, timeout: float, start_timeout: float) -> bool:
        """Whether it has said that it is ready; waits so long for that.

        Raises: WorkerError if it takes longer than `start_timeout` since its start, and as
        `receive`.
        """
        if not self.ready:
            poll = select.poll()
            poll.register(self.sock.fileno(), select.POLLIN)
            if poll.poll(1000 * max(wait, 0.0)):
                frame = self.receive(time.monotonic() + timeout)
                if frame.kind != "ready":
                    raise WorkerError(f"the first answer is {frame.kind!r}; expected 'ready'")
                self.ready = True
            elif time.monotonic() - self.started > start_timeout:
                raise WorkerError(f"the worker was not ready within {start_timeout:g} s")
        return self.ready

    def end(self) -> None:
        """Kill it; nothing is left of it. A process that was forked from ours only lets it go."""
        self.sock.close()
        if self.foreign:
            self.process.returncode = 0  # not ours to wait for
            return
        self.process.kill()
        with suppress(subprocess.TimeoutExpired):  # if the kernel holds it, the next Popen waits
            self.process.wait(5.0)


def refusal(values: Mapping[str, Any]) -> ForesayError:
    """The error that a worker tells of, as one of ours."""
    name, sentence = values.get("name"), values.get("sentence")
    kind = vars(errors).get(name) if isinstance(name, str) else None
    if isinstance(kind, type) and issubclass(kind, ForesayError):
        return kind(str(sentence))
    return WorkerError(f"the worker failed: {str(name)[:80]}: {sentence}")
