"""A grammar is compiled in a process of its own first: no limit of the library stops some of them
from taking minutes and gigabytes, and nothing stops the library's work from outside."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from threading import Lock

__all__ = ["Trial"]

PATIENCE = 30.0
"""Seconds for the process to start and to answer: it limits its own work to much less."""

# The same modules from the same places as here; the current folder is not one of them by itself.
_CODE = (
    "import sys; descriptor, *sys.path[:] = sys.argv[1:];"
    "from foresay.structured.trial_process import main; main(int(descriptor))"
)


class Trial:
    """A process that compiles grammars for one tokenizer, each in a fork of itself that is killed
    when it takes too much. It starts now, ends with this object, and is started anew if it is gone.

    text  the tokenizer, as a tokenizer.json
    ends  the tokens that end answers

    Any number of threads may use it. Raises: OSError when the process cannot be started.
    """

    def __init__(self, text: str, ends: Sequence[int]) -> None:
        self._first = _framed(json.dumps({"text": text, "ends": list(ends)}))
        self._lock = Lock()
        self._start()

    def check(self, source: str) -> None:
        """Try what the library would compile.

        Raises: ValueError with the reason, if it is refused; OSError if it cannot be tried.
        """
        for _ in range(2):
            with suppress(OSError):
                said = self._ask(source)
                if said == "+":
                    return
                raise ValueError(said[1:] or "compiling it takes too long or too much memory")
            with self._lock:
                if self._process.poll() is not None:
                    self._finish()
                    self._start()
        raise OSError("its process does not answer")

    def _ask(self, source: str) -> str:
        """What the fork says; nothing if it was killed.

        Raises: OSError if the process is gone, or does not answer.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, self._lock:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            ours.settimeout(PATIENCE)
            said = b""
            with suppress(BrokenPipeError, ConnectionResetError):  # killed while it read
                ours.sendall(_framed(source))
                while part := ours.recv(1 << 12):
                    said += part
            return said.decode()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        command = [sys.executable, "-c", _CODE, str(theirs.fileno()), *sys.path]
        try:
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._finish = weakref.finalize(self, _end, self._control, self._process)
        self._control.settimeout(PATIENCE)
        with suppress(OSError):  # then it is found to be gone when it is needed
            self._control.sendall(self._first)


def _framed(text: str) -> bytes:
    body = text.encode()
    return len(body).to_bytes(8, "little") + body


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Let the process go: it ends when nobody can ask it any more."""
    control.close()
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(5.0)
