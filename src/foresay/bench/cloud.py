"""`foresay serve` in a process of its own on loopback, and what can be read of it from outside."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from urllib.request import Request, urlopen

from foresay.bench.proxy import EmulatedLink
from foresay.errors import ForesayError

__all__ = ["Child", "Cloud", "LinkProcess", "child", "cloud", "link_process", "peak_mb"]

_OPERATOR = "operator"
_SAMPLE = re.compile(r"^(\w[\w:]*)(?:\{(.*)\})? (\S+)$", re.MULTILINE)


class Child:
    """A process that prints a line of JSON when it is ready; `say` gets its answer to a line."""

    def __init__(
        self, process: subprocess.Popen[str], command: Sequence[str], log: IO[str]
    ) -> None:
        self.process, self._command, self._log = process, command, log
        self.ready = self._read()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ForesayError(_last_words(self.log()) or self._how_it_ended())
        return json.loads(line)

    def _how_it_ended(self) -> str:
        status = self.process.wait()
        end = f"signal {-status}" if status < 0 else f"status {status}"
        lines = self.log().strip().splitlines()
        name = " ".join(self._command[self._command[0] == "-m" :][:2])
        return f"{name} has ended with {end}" + (f": {_message(lines[-1])}" if lines else "")

    def say(self, line: str = "") -> Any:
        """Its answer. Raises: ForesayError if it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._read()

    def log(self) -> str:
        """What it wrote to stderr so far."""
        self._log.seek(0)
        return self._log.read()


def _last_words(log: str) -> str:
    """The last sentence of a command that failed; empty if there is none."""
    found = re.findall(r"^foresay: (.+)$", log, re.MULTILINE)
    return found[-1] if found else ""


def _message(line: str) -> str:
    """Of a line of a log in JSON its message; other lines as they are."""
    try:
        return str(json.loads(line)["message"])
    except (ValueError, TypeError, KeyError):
        return line


@contextmanager
def child(*command: str) -> Iterator[Child]:
    """A Python process that ends with the body: by SIGTERM, and if that does not help, at once.
    Ctrl-C does not reach it: its parent ends it.

    Raises: ForesayError with its last error if it ends before it is ready.
    """
    with tempfile.TemporaryFile("w+") as log:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *command],
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield Child(process, command, log)
        except KeyboardInterrupt:
            process.kill()  # who interrupts does not want to wait
            raise
        finally:
            process.terminate()
            try:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(60)
            finally:  # also after an interrupt
                process.kill()
                process.communicate()


class Cloud:
    """A server that runs.

    keys  by tenant; each tenant has a history of its own
    """

    def __init__(self, running: Child, keys: dict[str, str]) -> None:
        self._running = running
        self.keys = keys
        self.url: str = running.ready["url"]
        self.port = int(self.url.rpartition(":")[2])
        about = self._json("/tokenizer_info")
        self.vocabulary = int(about["vocab_size"])
        self.ends: list[int] = about["end_token_ids"]
        """Token ids that end an answer."""

    @property
    def pid(self) -> int:
        return self._running.pid

    def encode(self, text: str) -> list[int]:
        """The prompt's ids: as a chat, or as it is for a model that does not chat."""
        message = {"role": "user", "content": text}
        try:
            found = self._json("/tokenize", {"messages": [message]})
        except OSError:
            found = self._json("/tokenize", {"prompt": text})
        tokens: list[int] = found["tokens"]
        return tokens

    def metrics(self) -> dict[str, float]:
        """Every metric of /metrics, summed over its labels; of `foresay_edge_total` each by its
        label, as `foresay_edge_total.streams`."""
        with self._asked("/metrics") as response:
            text = response.read().decode()
        found: dict[str, float] = {}
        for name, labels, value in _SAMPLE.findall(text):
            what = re.search(r'what="(\w+)"', labels)
            full = f"{name}.{what[1]}" if what else name
            found[full] = found.get(full, 0.0) + float(value)
        return found

    def _json(self, path: str, body: Any = None) -> Any:
        with self._asked(path, body) as response:
            return json.load(response)

    def _asked(self, path: str, body: Any = None) -> Any:
        headers = {"authorization": f"Bearer {self.keys[_OPERATOR]}"} if self.keys else {}
        data = None
        if body is not None:
            data, headers["content-type"] = json.dumps(body).encode(), "application/json"
        return urlopen(Request(self.url + path, data, headers), timeout=60)

    @contextmanager
    def watching_memory(self, every: float = 0.05) -> Iterator[dict[str, float]]:
        """The largest share of the KV cache that is in use while the body runs, as "kv_share"."""
        found, ended = {"kv_share": 0.0}, threading.Event()

        def watch() -> None:
            while not ended.wait(every):
                found["kv_share"] = max(found["kv_share"], self.metrics()["foresay_kv_used"])

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield found
        finally:
            ended.set()
            thread.join()


@contextmanager
def cloud(
    model: str,
    tenants: Sequence[str],
    *options: str,
    memory_mb: int = 512,
    keys: dict[str, str] | None = None,
) -> Iterator[Cloud]:
    """The server while the body runs, with a key for each tenant, or with those of another server.

    options: more of `foresay serve`. Without keys ({}) it asks for none. Raises: as `child`.
    """
    if keys is None:
        keys = {tenant: secrets.token_hex(16) for tenant in (_OPERATOR, *tenants)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "keys.txt")
        file.touch(mode=0o600)
        file.write_text("".join(f"{tenant} {key}\n" for tenant, key in keys.items()))
        command = ["-m", "foresay", "serve", model, "--port", "0", "--json"]
        command += ["--keys", str(file)] if keys else []
        command += ["--memory-mb", str(memory_mb), "--tenant-mb", "16", *options]
        with child(*command) as running:
            yield Cloud(running, keys)


class LinkProcess:
    """A proxy with an emulated link in a process of its own."""

    def __init__(self, running: Child) -> None:
        self._running = running
        self.port = int(running.ready["port"])
        self.url = f"http://127.0.0.1:{self.port}"

    def counts(self) -> tuple[int, int]:
        """Bytes up and down so far."""
        said = self._running.say()
        return said["up"], said["down"]


@contextmanager
def link_process(port: int, link: EmulatedLink) -> Iterator[LinkProcess]:
    """A proxy to that port while the body runs."""
    command = ["-m", "foresay.bench.proxy", "--to", str(port), "--rtt", str(link.rtt)]
    command += ["--jitter", str(link.jitter), "--loss", str(link.loss), "--seed", str(link.seed)]
    if link.bandwidth is not None:
        command += ["--bandwidth", str(link.bandwidth)]
    with child(*command) as running:
        yield LinkProcess(running)


def peak_mb(pid: int | None = None) -> float | None:
    """The most memory that a process had, this one by default, in MB; None: the system does not
    say."""
    try:
        status = Path(f"/proc/{os.getpid() if pid is None else pid}/status").read_text()
    except OSError:
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return None if found is None else int(found[1]) / 1e3
