"""A corpus file that is cut while it is open: a typed error, never the end of the process.

Each case runs in a forked process, which a fault may kill.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from core.frozen_files import corpus_of
from foresay._core import FrozenIndex
from foresay.drafters import CorpusDrafter
from foresay.errors import CorpusError

TEXT = np.random.default_rng(1).integers(0, 4000, 60_000, dtype=np.int32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus_of(tmp_path_factory.mktemp("corpus") / "index", TEXT.tolist())


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "index"
    copy.write_bytes(whole.read_bytes())
    return copy


def ended(work: Callable[[], object]) -> int:
    """How a process ends that does this: 0, 1 if it raised, minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            faulthandler.enable(os.open(os.devnull, os.O_WRONLY))  # it says so elsewhere
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(index: FrozenIndex) -> None:
    """Reading raises CorpusError, again and again."""
    for _ in range(2):
        with pytest.raises(CorpusError, match="it was truncated while it was open"):
            index.advance(TEXT[:100])


@pytest.mark.parametrize("left", [0, 600, 4096, 200_000])
def test_what_is_left_of_it(path: Path, left: int) -> None:
    index = FrozenIndex.open(str(path))
    assert left < path.stat().st_size // 2

    def cut() -> None:
        os.truncate(path, left)
        refused(index)

    assert ended(cut) == 0


LATER = """
import faulthandler, os, sys
import numpy as np
from foresay._core import FrozenIndex
index = FrozenIndex.open(sys.argv[1])
faulthandler.enable()
os.truncate(sys.argv[1], 0)
try:
    index.advance(np.arange(50, dtype=np.int32))
except Exception as error:
    print(type(error).__name__)
"""


def test_a_handler_that_came_later(path: Path) -> None:
    """It takes the signal, and hands it on by `raise`, which says nothing of an address."""
    command = [sys.executable, "-c", LATER, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "CorpusError\n"), done.stderr


@pytest.mark.skipif(
    bool(os.environ.get("FORESAY_SANITIZE")), reason="a sanitizer takes the signal, and reports it"
)
@pytest.mark.parametrize("later", [False, True], ids=["", "faulthandler"])
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_other_faults_end_the_process_as_before(
    path: Path, tmp_path: Path, cut: bool, later: bool
) -> None:
    """A mapping that is not ours faults: whoever had the signal before gets it, also after a corpus
    was cut."""
    other = tmp_path / "other"
    other.write_bytes(bytes(8192))

    def foreign() -> None:
        index = FrozenIndex.open(str(path))
        if cut:
            os.truncate(path, 0)
            refused(index)
        faulthandler.disable()
        if later:
            faulthandler.enable(os.open(os.devnull, os.O_WRONLY))
        with other.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 8192)
            os.truncate(other, 0)
            print(mapped[5000], index)

    assert ended(foreign) == -signal.SIGBUS


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
def test_a_signal_that_is_sent_ends_the_process(path: Path, cut: bool) -> None:
    def sent() -> None:
        index = FrozenIndex.open(str(path))
        if cut:
            os.truncate(path, 0)
            refused(index)
        subprocess.run(["kill", "-BUS", str(os.getpid())], check=True)
        time.sleep(60)

    assert ended(sent) == -signal.SIGBUS


def test_a_file_that_is_whole_goes_on(path: Path, whole: Path) -> None:
    """Only the file that was cut is damaged; one that was closed before is not looked at."""

    def cut() -> None:
        closed = FrozenIndex.open(str(path))
        del closed
        index, other = FrozenIndex.open(str(path)), FrozenIndex.open(str(whole))
        os.truncate(path, 0)
        refused(index)
        assert other.advance(TEXT[:100])[0] == 32

    assert ended(cut) == 0


def test_requests_of_a_drafter_end_in_a_typed_error(path: Path) -> None:
    def cut() -> None:
        drafter = CorpusDrafter(path)
        state = drafter.begin(TEXT[:50])
        assert len(drafter.propose([state], [8])[0].tokens)
        os.truncate(path, 0)
        with pytest.raises(CorpusError, match="truncated"):
            drafter.begin(TEXT[50:90])
        drafter.finish(state)

    assert ended(cut) == 0
