"""Python processes that need not import torch: one process has done so, and forks the others.

    done = forks.run("-m", "foresay", "doctor")           # as subprocess.run(…, text=True)
    with forks.start("-c", code, "argument") as process:  # as subprocess.Popen

The arguments are those of `python`. Each is a process of its own, in a session of its own, with its
own folder, environment, streams, signals and exit status. It differs from a new one in what is
imported already: WARM has torch, LIGHT has the command line and no torch. What is to be seen of
imports, and of the end of the interpreter, needs a process that Python starts.

Each process of tests has its own servers, which end with it.
"""

from __future__ import annotations

import atexit
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, Any

__all__ = ["LIGHT", "WARM", "Process", "Server", "run", "start"]

_MESSAGE = 1 << 17  # bytes of a question: arguments and environment
_STREAMS = 3
_PATIENCE = 300.0  # seconds


class Process:
    """A process that a server has forked; the part of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, status: int, streams: Sequence[IO[str] | None]) -> None:
        self.pid, self.returncode = pid, None
        self.stdin, self.stdout, self.stderr = streams
        self._status = status

    returncode: int | None

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        """It is killed if it still runs."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def poll(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float = _PATIENCE) -> int:
        """The same at its end.

        Raises: subprocess.TimeoutExpired if it still runs after so many seconds.
        """
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its end is on its way to us
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = _PATIENCE) -> tuple[str, str]:
        """What else it says until its end, on stdout and stderr."""
        said = ["", ""]

        def read(at: int, stream: IO[str]) -> None:
            said[at] = stream.read()

        pipes = [(at, s) for at, s in enumerate((self.stdout, self.stderr)) if s is not None]
        readers = [threading.Thread(target=read, args=pipe) for pipe in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return said[0], said[1]


class Server:
    """A process that has imported some modules, which start no threads, and forks others. It begins
    with the first of them, and ends with `close` or with the process that began it."""

    def __init__(self, *modules: str, **environ: str) -> None:
        self._modules, self._environ = modules, {"OMP_NUM_THREADS": "1", **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def begin(self, question: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a process: its id."""
        with self._lock:
            if self._process is None:
                self._open()
            socket.send_fds(self._control, [json.dumps(question).encode()], descriptors)
            return int(self._control.recv(16))

    def _open(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno()), *self._modules],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **self._environ},
            )
        atexit.register(self.close)

    def close(self) -> None:
        """It ends; what it has forked goes on."""
        if self._process is not None:
            self._control.close()
            self._process.wait(30)
            self._process = None
            atexit.unregister(self.close)


_COMMAND_LINE = ("typer", "rich.console", "foresay.cli")
LIGHT = Server(*_COMMAND_LINE)
WARM = Server(
    *_COMMAND_LINE,
    *("torch", "transformers.models.llama.modeling_llama", "transformers.models.auto"),
    *("foresay.engine.llm", "foresay.models.load", "foresay.serve.server", "foresay.edge.client"),
    "steady",
)


def start(
    *arguments: object,
    server: Server = WARM,
    environ: Mapping[str, str] | None = None,
    cwd: object = None,
    streams: Sequence[int | None] = (None, None, None),
) -> Process:
    """Begin a process. What is None of stdin, stdout and stderr becomes a pipe; the others are
    descriptors."""
    ours: list[IO[str] | None] = []
    given, opened = [], []
    for stream, mode in zip(streams, ("w", "r", "r"), strict=True):
        if stream is None:
            read, write = os.pipe()
            mine, stream = (write, read) if mode == "w" else (read, write)
            ours.append(open(mine, mode))  # noqa: SIM115
            opened.append(stream)
        else:
            ours.append(None)
        given.append(stream)
    status, told = os.pipe()
    question = {
        "arguments": [str(argument) for argument in arguments],
        "environ": {**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        "cwd": str(cwd or os.getcwd()),
    }
    pid = server.begin(question, [*given, told])
    for end in (*opened, told):
        os.close(end)
    return Process(pid, status, ours)


def run(
    *arguments: object, input: str = "", timeout: float = _PATIENCE, **options: Any
) -> subprocess.CompletedProcess[str]:
    """A process from its beginning to its end, and all that it said. Options as of `start`."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(input)
        given.seek(0)
        streams = [stream.fileno() for stream in (given, out, err)]
        with start(*arguments, streams=streams, **options) as process:
            status = process.wait(timeout)
        for stream in (out, err):
            stream.seek(0)
        command = [sys.executable, *map(str, arguments)]
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


# ---- in the server ---------------------------------------------------------------------------


def _serve(control: socket.socket, modules: Sequence[str]) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for every question. Returns in each of them, with its question and its
    descriptors; the server itself exits when nobody can ask any more."""
    for module in modules:
        import_module(module)
    running: dict[int, int] = {}  # where its end is told, by process
    awake, wake = os.pipe()
    for end in (awake, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _heard)
    while True:
        ready, _, _ = select.select([control.fileno(), awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _tell_ends(running)
        if control.fileno() not in ready:
            continue
        message, given, _, _ = socket.recv_fds(control, _MESSAGE, _STREAMS + 1)
        if not message:
            os._exit(0)
        asked = json.loads(message)
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            control.close()
            for end in (awake, wake, given[_STREAMS], *running.values()):
                os.close(end)
            return asked, given[:_STREAMS]
        running[pid] = given[_STREAMS]
        for stream in given[:_STREAMS]:
            os.close(stream)
        control.send(str(pid).encode())


def _heard(number: int, frame: FrameType | None) -> None:
    """Signals that are heard but by the descriptor that select waits for."""


def _tell_ends(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with suppress(BrokenPipeError):  # nobody waits for it any more
            os.write(running[pid], str(os.waitstatus_to_exitcode(status)).encode())
        os.close(running.pop(pid))


# ---- in a forked process ---------------------------------------------------------------------


def _become(asked: dict[str, Any], streams: Sequence[int]) -> None:
    """What a new process would have from its parent."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for at, stream in enumerate(streams):
        os.dup2(stream, at)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["cwd"])
    for name, mode in (("stdin", "rb"), ("stdout", "wb"), ("stderr", "wb")):
        setattr(sys, name, _stream(getattr(sys, name), mode))


def _stream(like: io.TextIOWrapper, mode: str) -> io.TextIOWrapper:
    """A new one over the same descriptor: whether that can seek is looked up once."""
    number, through = like.fileno(), like.write_through
    return io.TextIOWrapper(
        open(number, mode, 0 if through and mode == "wb" else -1, closefd=False),
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=like.line_buffering or (os.isatty(number) and not through),
        write_through=through,
    )


def _execute(arguments: Sequence[str]) -> None:
    """What `python` does with these."""
    if arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]
        arguments = arguments[2:]
    how, *rest = arguments
    if how == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif how == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [how, *rest], str(Path(how).parent)
        runpy.run_path(how, run_name="__main__")


def _status_of(error: BaseException) -> int:
    """The status of a process that ends with it; it is shown as Python does."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    asked, streams = _serve(control, sys.argv[2:])
    status = 0
    try:
        _become(asked, streams)
        _execute(asked["arguments"])
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException as error:
        status = _status_of(error)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)  # to take down what was imported takes longer than most of them live


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    _main()
