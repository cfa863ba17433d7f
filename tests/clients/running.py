"""The server that the clients ask, in a process of its own, and how clients are run.

Two variables say where things are: FORESAY_TEST_PYTHON, the Python that has foresay (this
environment has not), and FORESAY_TEST_MODEL, the folder of a model.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

NAME = "the-model"
LIFE = "1800"  # seconds after which the server ends whatever has become of these tests
# One thread each, and none that spins: whoever else works on these cores is not waited for.
QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# Nothing may be fetched: no tokenizer, no metric, no data.
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def given(variable: str) -> str:
    value = os.environ.get(variable, "")
    assert value, f"{variable} is not set; `make test-clients` sets it"
    return value


@dataclass(frozen=True)
class Served:
    """A server in a process of its own, and a folder for what clients leave behind."""

    url: str
    folder: Path

    def count(self, metric: str) -> int:
        """A counter of /metrics."""
        with urlopen(self.url + "/metrics", timeout=60) as response:
            text = response.read().decode()
        found = re.search(rf"^{re.escape(metric)}_total{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert found is not None, text
        return int(float(found.group(1)))

    def client(self, program: str, *arguments: object, cwd: Path | None = None) -> str:
        """Run a program of this environment to its good end; what it printed."""
        command = [str(Path(sys.executable).parent / program), *map(str, arguments)]
        home = {"HOME": str(self.folder), "HF_HOME": str(self.folder / "hf")}
        done = subprocess.run(
            command,
            cwd=cwd or self.folder,
            env={**os.environ, **QUIET, **OFFLINE, **home},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout


@contextmanager
def running(folder: Path, model: str | None = None) -> Iterator[Served]:
    """`foresay serve` in float32, as a user starts it; it must end well, too."""
    served = given("FORESAY_TEST_MODEL") if model is None else model
    command = [given("FORESAY_TEST_PYTHON"), "-m", "foresay", "serve", served]
    command += ["--port", "0", "--served-model-name", NAME, "--dtype", "float32"]
    command += ["--policy", "fixed", "--memory-mb", "512"]  # fixed: drafts even where that costs
    log = folder / "server.log"
    with log.open("w") as err:
        child = subprocess.Popen(
            ["timeout", LIFE, *command],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            env={**os.environ, **QUIET},
        )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found is not None, (line, log.read_text())
        yield Served(found.group(), folder)
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 0, log.read_text()[-4000:]
        assert " ERROR " not in log.read_text(), log.read_text()[-4000:]
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()
