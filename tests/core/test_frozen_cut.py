"""A corpus file that is cut while it is open: a typed error, never the end of the process.

Each case runs in a forked process, which a fault may kill.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from core.alone import python
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


# As Python begins: pytest has its own faulthandler, below our handler.
BEGIN = """
import faulthandler, mmap, os, resource, signal, sys, time
import numpy as np
from foresay._core import FrozenIndex
from foresay.errors import CorpusError
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
index = FrozenIndex.open(sys.argv[1])
later, cut = "later" in sys.argv, "cut" in sys.argv
def refused():
    os.truncate(sys.argv[1], 0)
    for _ in range(2):
        try:
            index.advance(np.arange(50, dtype=np.int32))
        except CorpusError as error:
            assert "it was truncated while it was open" in str(error)
        else:
            raise AssertionError("nothing was raised")
if cut:
    refused()
if later:
    faulthandler.enable()
"""
LATER = BEGIN + "refused()"
FOREIGN = (
    BEGIN
    + """
with open(sys.argv[1] + ".other", "w+b") as file:
    file.write(bytes(8192))
    file.flush()
    mapped = mmap.mmap(file.fileno(), 8192)
    os.truncate(file.fileno(), 0)
    print(mapped[5000])
"""
)
SENT = (
    BEGIN
    + """
if os.fork() == 0:
    os.kill(os.getppid(), signal.SIGBUS)
    os._exit(0)
time.sleep(60)
"""
)


def begun(code: str, path: Path, *words: str) -> int:
    """How a process ends that does this."""
    done = python(code, str(path), *words)
    assert done.returncode <= 0, done.stderr
    return done.returncode


def test_a_handler_that_came_later(path: Path) -> None:
    """It takes the signal, and hands it on by `raise`, which says nothing of an address."""
    assert begun(LATER, path, "later") == 0


@pytest.mark.skipif(
    bool(os.environ.get("FORESAY_SANITIZE")), reason="a sanitizer takes the signal, and reports it"
)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        *((FOREIGN, words) for words in ((), ("later",), ("cut",), ("cut", "later"))),
        *((SENT, words) for words in ((), ("later",), ("cut",))),
    ],
)
def test_other_faults_end_the_process_as_before(
    path: Path, code: str, words: tuple[str, ...]
) -> None:
    """A mapping that is not ours, or a signal that somebody sent, also after a corpus was cut:
    whoever had the signal before gets it."""
    assert begun(code, path, *words) == -signal.SIGBUS


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
