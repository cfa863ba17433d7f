"""`foresay bench edge`: what it refuses before a server starts, interrupts, and files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foresay.bench.edge_runs as runs
from bench.edge_tables import table
from foresay.bench.cloud import child
from foresay.bench.edge_table import EdgeTable
from foresay.errors import ForesayError, StreamError
from tiny import call, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(runs, "cloud", start)


REFUSED = [
    ("--ways warp", "--ways is 'warp'; expected one of"),
    ("--ways edge-only", "expected its name as --edge-model"),
    ("--rtt fast", "--rtt is 'fast'; expected milliseconds"),
    ("--rtt 0,-5", "--rtt is -5; expected milliseconds, 0 or more"),
    ("--rtt nan", "--rtt is nan; expected milliseconds"),
    ("--jitter -2", "--jitter is -2; expected milliseconds, 0 or more"),
    ("--bandwidth -3", "--bandwidth is -3; expected megabits per second, above 0"),
    ("--loss 1", "--loss is 1.0; expected a chance"),
    ("--category none", "--category is 'none'; expected one of rename a variable, extract"),
    ("--html /no/such/x.html", "--html is '/no/such/x.html', which cannot be written: No such"),
    ("--log /", "--log is '/', which is no file"),
    ("--prometheus /no/such/p", "--prometheus is '/no/such/p', which cannot be written"),
    ("--drafter eagle", "--drafter is 'eagle': there is no drafter 'eagle'; expected one of"),
    ("--drafter recycle", "--drafter is 'recycle': the drafter 'recycle' needs to see"),
    ("--drafter suffix+model:/nope", "'/nope' is no model"),
    ("--corpus /nope", "--corpus is '/nope': '/nope' cannot be used as a corpus file"),
    ("--edge-model /nope", "--edge-model is '/nope': '/nope' is no model"),
    ("--cloud-drafter nonsense", "--cloud-drafter is 'nonsense': there is no drafter 'nonsense'"),
    ("--model nope", "--model is 'nope': 'nope' is no model"),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_cannot_be_measured_is_said_before_a_server_starts(
    options: str, said: str, model: Path, no_servers: None
) -> None:
    done = call("bench", "edge", "--model", model, *options.split())
    assert done.status == 1 and said in done.complaints
    assert done.complaints.count("\n") == 1 and not done.out


def test_a_check_leaves_no_file_behind(tmp_path: Path, model: Path, no_servers: None) -> None:
    (tmp_path / "old").write_text("as it was")
    call("bench", "edge", "--model", model, "--html", tmp_path / "old", "--drafter", "eagle")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["as it was"]


def test_bars_are_explained() -> None:
    said = " ".join(call("bench", "edge", "--help").out.split())
    assert "A bar that is NOT MET does not change the exit status" in said
    assert "after the first token" in said


def measured(monkeypatch: pytest.MonkeyPatch, then: Any) -> None:
    def run(*_: object) -> Iterator[EdgeTable]:
        yield table({"cloud": [1.0], "ahead": [0.5]})
        then()

    monkeypatch.setattr(runs, "run_edge", run)


def test_the_table_is_printed_though_a_file_is_not_written(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "goes"
    folder.mkdir()
    measured(monkeypatch, folder.rmdir)
    html = tmp_path / "page.html"
    done = call("bench", "edge", "--model", model, "--log", folder / "log", "--html", html)
    assert done.status == 1 and "ahead" in done.out and "texts are those" in done.out
    assert f"--log '{folder / 'log'}' was not written: No such file" in done.complaints
    assert "1 of 5 prompts" in done.out and html.stat().st_size > 1000


def test_the_table_is_printed_though_a_stream_fails(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StreamError("the cloud is gone", "unreachable")

    measured(monkeypatch, fail)
    done = call("bench", "edge", "--model", model)
    assert done.status == 1 and "texts are those" in done.out
    assert done.complaints == "foresay: the cloud is gone\n"


def test_the_table_is_printed_after_an_interrupt(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    done = call("bench", "edge", "--model", model)
    assert done.status == 130 and "texts are those" in done.out


def test_of_a_process_that_fails_its_last_sentence_is_said() -> None:
    code = 'import sys; sys.exit(\'{"message": "x"}\\nforesay: a is 1; expected 2\')'
    with pytest.raises(ForesayError, match=r"^a is 1; expected 2$"), child("-c", code):
        pass
    with pytest.raises(ForesayError, match=r"has ended with status 3$"), child("-c", "exit(3)"):
        pass
    code = 'import sys; sys.exit(\'{"message": "listening"}\')'
    with pytest.raises(ForesayError, match="has ended with status 1: listening"), child("-c", code):
        pass


def test_an_interrupt_ends_a_process_at_once() -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), child("-c", f"{code}; time.sleep(60)") as running:
        assert os.getpgid(running.pid) != os.getpgrp()  # Ctrl-C does not reach it
        raise KeyboardInterrupt
    assert running.process.returncode == -signal.SIGKILL and time.monotonic() - began < 20


@pytest.mark.slow
def test_ctrl_c_while_the_ways_run(model: Path) -> None:
    command = [sys.executable, "-m", "foresay", "bench", "edge", "--rtt", "20"]
    command += ["--model", str(model), "--memory-mb", "32", "--max-tokens", "400"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stderr is not None
        said = ""
        while "writing answers" not in said:
            said = process.stderr.readline()
            assert said
        time.sleep(2.0)
        os.killpg(process.pid, signal.SIGINT)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - began < 20
    assert "Traceback" not in err and "asynchronous generator" not in err
    assert "interrupted while writing answers" in err
