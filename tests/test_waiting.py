"""Nobody waits in silence: what the commands say while they work, in real processes. Python starts
those whose first words must come before a long import; the others are forked."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import forks
from foresay.cli.interrupts import Interrupts
from foresay.cli.waiting import Lines
from foresay.engine.llm import LLM
from foresay.models.weights.cache import FORMAT
from foresay.sampling.params import SamplingParams
from models import gguf_files
from tiny import call, one_thread, save_model

START = (sys.executable, "-m", "foresay")
FIRST = 2.0  # seconds of the processor until the first words: a busy machine is not a bug
BETWEEN = 10.0
NAME = "m.gguf"
LINE = re.compile(r"foresay \[\d+\.\d s\]: (.*)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"))


class Child:
    """A process whose stderr is read line by line, with the time of each line.

    new  whether Python starts it; else it is forked, and has imported torch already
    """

    def __init__(self, *arguments: object, cache: Path | None = None, new: bool = False) -> None:
        environ = {"OMP_NUM_THREADS": "1"}
        if cache is not None:
            environ["FORESAY_CACHE"] = str(cache)
        self.began = time.monotonic()
        self.process: subprocess.Popen[str] | forks.Process
        if new:
            self.process = subprocess.Popen(
                [*START, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environ},
            )
        else:
            with open(os.devnull) as nothing:
                streams = (nothing.fileno(), None, None)
                self.process = forks.start(*START[1:], *arguments, environ=environ, streams=streams)
        self.lines: list[tuple[float, str]] = []
        self.cpu_at_first = 0.0
        self.out: list[str] = []
        self._readers = [threading.Thread(target=read) for read in (self._read_err, self._read_out)]
        for reader in self._readers:
            reader.start()

    def _read_err(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as err:
            for line in err:
                if not self.lines:
                    self.cpu_at_first = _cpu_seconds(self.process.pid)
                self.lines.append((time.monotonic() - self.began, line.rstrip("\n")))

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as out:
            self.out.extend(out)

    @property
    def said(self) -> list[str]:
        return [line for _, line in self.lines]

    def wait_for(
        self, words: str, seconds: float = 300.0, *, out: bool = False, times: int = 1
    ) -> None:
        """Until so many lines have these words."""
        end = time.monotonic() + seconds
        while sum(words in line for line in (self.out if out else self.said)) < times:
            assert time.monotonic() < end and self._readers[0].is_alive(), (self.said, self.out)
            time.sleep(0.02)

    def end(self, seconds: float = 300.0) -> int:
        status = self.process.wait(seconds)
        for reader in self._readers:
            reader.join()
        return status


@contextmanager
def child(*arguments: object, cache: Path | None = None, new: bool = False) -> Iterator[Child]:
    made = Child(*arguments, cache=cache, new=new)
    try:
        yield made
    finally:
        made.process.kill()
        made.end()


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks: int = os.sysconf("SC_CLK_TCK")
    return (int(fields[11]) + int(fields[12])) / ticks


def stages(lines: list[str]) -> list[str]:
    found = [LINE.fullmatch(line) for line in lines]
    return [re.split(r"[:(]", match[1])[0].strip() for match in found if match is not None]


LOADING = ["looking for the model", "loading the libraries", "reading the model"]
LOADING += ["trying the model out"]


def test_generate_says_what_it_does(model: Path) -> None:
    asked = ("generate", "Hello", "--model", model, "--dtype", "float32", "--max-tokens", 4)
    with one_thread():
        done = call(*asked)
    assert done.status == 0 and done.out.count("\n") == 1 and not done.complaints
    measured = ["measuring how long steps take", "the model is loaded", "answering"]
    found = list(dict.fromkeys(stages(done.err.splitlines())))  # again on a slow machine
    assert found == [*LOADING, *measured]


def test_events(model: Path) -> None:
    asked = ("generate", "Hello", "--model", model, "--dtype", "float32", "--max-tokens", 4)
    with one_thread():
        done = call(*asked, "--json")
    events = [json.loads(line) for line in done.err.splitlines()]
    assert all(next(iter(event)) == "event" for event in events)
    names = list(dict.fromkeys(event["event"] for event in events))
    assert names == ["find", "import", "read", "try", "measure", "loaded", "answer"]
    assert all({"done", "total"} <= set(e) for e in events if e["event"] != "loaded")
    times = [event["seconds"] for event in events]
    assert times == sorted(times)
    assert list(json.loads(done.out))[:2] == ["prompt", "text"]


def test_on_a_terminal_the_bar_has_the_stage_beside_it(model: Path) -> None:
    """As a user sees it: all three streams are one terminal."""
    main, other = pty.openpty()
    process = forks.start(
        *(*START[1:], "generate", "Hello", "--model", model, "--max-tokens", 4),
        environ={"TERM": "xterm", "COLUMNS": "100"},
        streams=(other, other, other),
    )
    os.close(other)
    shown = b""
    try:
        while part := os.read(main, 4096):
            shown += part
    except OSError:  # the last one has closed it
        pass
    finally:
        os.close(main)
        status = process.wait(300)
    text = shown.decode(errors="replace")
    assert status == 0, text
    for words in (*LOADING, "measuring how long steps take"):
        assert words in text
    assert "foresay [" not in text and "\x1b[2K" in text  # a bar, which vanishes


@contextmanager
def locked(cache: Path) -> Iterator[None]:
    """A model's file, and somebody who is about to convert it and takes for ever."""
    file = cache / NAME
    gguf_files.export(gguf_files.tiny("llama"), file, "llama")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    place = cache / "models" / f".gguf-{digest[:32]}.{FORMAT}.lock"
    place.parent.mkdir(parents=True)
    with open(place, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("lines", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_waiting_for_another_process_is_not_silent(tmp_path: Path, lines: int) -> None:
    """The slow stage: somebody else holds the lock of the model's place until it was named so many
    times; four take longer than anybody may be silent. Nothing inside the process is altered."""
    asked = ("generate", "Hello", "--model", tmp_path / NAME, "--dtype", "float32")
    with locked(tmp_path), child(*asked, cache=tmp_path, new=True) as done:
        done.wait_for("waiting for another process", times=lines)
        held = list(done.lines)
        done.process.send_signal(signal.SIGINT)
        assert done.end() == 130
    times = [at for at, _ in held]
    assert max(b - a for a, b in pairwise(times)) < BETWEEN
    assert done.cpu_at_first < FIRST and stages(done.said)[0] == "looking for the model"
    again = [line for _, line in held if "waiting for another process" in line]
    assert len(again) == lines and all("s so far)" in line for line in again[1:])
    assert "interrupted while waiting for another process" in done.said[-1]
    assert not any("Traceback" in line for line in done.said)


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "generate"])
def test_the_default_model_is_not_loaded_in_silence(command: str) -> None:
    """By the clock: a stage that keeps the interpreter to itself would silence the others, too."""
    asked = {"demo": ("demo",), "generate": ("generate", "Hello", "--max-tokens", 2)}
    with child(*asked[command], new=True) as done:
        if command == "demo":
            done.wait_for("warming up")
            done.process.send_signal(signal.SIGINT)
        assert done.end() == (130 if command == "demo" else 0)
    times = [0.0, *(at for at, _ in done.lines)]
    assert max(b - a for a, b in pairwise(times)) < BETWEEN, done.lines
    assert done.cpu_at_first < FIRST and "reading the model" in stages(done.said)


def test_a_stage_is_named_again_while_it_lasts() -> None:
    said: list[tuple[float, str, dict[str, Any]]] = []

    def say(sentence: str, facts: dict[str, Any]) -> None:
        said.append((time.monotonic(), sentence, facts))

    before = set(threading.enumerate())
    with Lines(say, every=0.1) as report:
        report("download", 0, 80_000_000)
        for done in range(1, 61):
            report("download", done * 1_000_000, 80_000_000)
            time.sleep(0.01)
        report("read", 0, None)
        time.sleep(0.35)
    assert set(threading.enumerate()) == before
    stages_said = [facts["event"] for _, _, facts in said]
    assert stages_said.count("read") >= 3 and stages_said[0] == "download"
    # Not at every report, but again and again, and with what has come since.
    assert 3 <= stages_said.count("download") <= 20
    amounts = [facts["done"] for _, _, facts in said if facts["event"] == "download"]
    assert amounts == sorted(amounts) and amounts[-1] > 10_000_000
    assert re.fullmatch(r"downloading the model: \d+ of 80 MB \(\d s so far\)", said[1][1])


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_nothing_is_left_when_a_stage_fails(error: BaseException) -> None:
    said: list[str] = []
    before = set(threading.enumerate())
    with pytest.raises(type(error)), Lines(lambda s, f: said.append(s), every=0.02) as report:
        report("read", 0, None)
        raise error
    assert set(threading.enumerate()) == before
    told = len(said)
    time.sleep(0.1)
    assert len(said) == told
    assert ("interrupted while reading the model" in said) == isinstance(error, KeyboardInterrupt)


def test_a_report_after_the_end_ends_the_work() -> None:
    """As `serve` does it, whose model is loaded in another thread."""
    with Lines(lambda sentence, facts: None) as report:
        report("try", 0, 5)
        report.end()
        with pytest.raises(KeyboardInterrupt):
            report("try", 1, 5)


def test_words_that_nobody_hears_do_not_end_the_work() -> None:
    tried = []

    def say(sentence: str, facts: dict[str, Any]) -> None:
        tried.append(sentence)
        raise BrokenPipeError

    with Lines(say, every=0.02) as report:
        report("read", 0, None)
        time.sleep(0.1)
        report("try", 0, 5)
    assert tried


def test_what_is_printed_is_printed_wholly() -> None:
    seen = []
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            seen.append("the rest of it")
        seen.append("more")
    assert seen == ["the rest of it"]
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts, interrupts.held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # somebody insists
        seen.append("never")
    assert seen == ["the rest of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def in_turn(model: Path) -> tuple[list[str], str]:
    """Three prompts and a stop text, with which the third answer ends before the first one, and the
    second one goes on for long."""
    prompts = [letter * 3 for letter in "abcdefghijkl"]
    params = SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True)
    with one_thread():
        llm = LLM(model, None, dtype="float32", memory=1 << 26)
        texts = [result.text for result in llm.generate(prompts, params, chat=True)]
    for stop in sorted({c for text in texts for c in text if c.isalnum() and c.isascii()}):
        ends = sorted((text.find(stop), at) for at, text in enumerate(texts) if stop in text)
        never = [at for at, text in enumerate(texts) if stop not in text]
        if never and len(ends) > 1 and ends[0][0] < ends[-1][0]:
            return [prompts[at] for at in (ends[-1][1], never[0], ends[0][1])], stop
    raise AssertionError("the tiny model says the same to all")


def test_an_interrupt_shows_the_answers_that_are_done(model: Path) -> None:
    """Also that which was done early and waited for its turn."""
    prompts, stop = in_turn(model)
    asked = ("generate", *prompts, "--model", model, "--dtype", "float32", "--json", "--stop", stop)
    with child(*asked, "--max-tokens", 3900, "--drafter", "none") as done:
        done.wait_for('"prompt"', out=True)
        done.process.send_signal(signal.SIGINT)
        assert done.end() == 130
    assert not any("Traceback" in line for line in done.said)
    assert json.loads(done.said[-1])["event"] == "interrupted"
    answers = [json.loads(line) for line in done.out]
    assert [answer["prompt"] for answer in answers] == [prompts[0], prompts[2]]
    assert all(answer["finish_reason"] == "stop" for answer in answers)


def test_an_interrupt_of_the_demonstration_shows_what_there_is(model: Path) -> None:
    asked = ("demo", "--model", model, "--dtype", "float32", "--max-tokens", 200)
    with child(*asked) as done:
        done.wait_for("rename a variable:", out=True)  # the answer to a prompt, long before the end
        assert done.process.poll() is None
        done.process.send_signal(signal.SIGINT)
        assert done.end() == 130
    text = "".join(done.out)
    assert "speed-up" in text and "\nall " in text and "\nrename a variable " in text
    assert "\nfree chat " not in text
    assert "interrupted while answering" in done.said[-1]
    assert "warming up" in stages(done.said)


def test_serve_can_be_interrupted_while_it_loads(tmp_path: Path) -> None:
    asked = ("serve", tmp_path / NAME, "--dtype", "float32", "--json", "--port", 0)
    with locked(tmp_path), child(*asked, cache=tmp_path, new=True) as done:
        done.wait_for("waiting for another process")
        done.process.send_signal(signal.SIGINT)
        status = done.end()
    logged = [json.loads(line) for line in done.said]
    events = list(dict.fromkeys(line["event"] for line in logged))
    assert events == ["import", "find", "check", "wait", "interrupted"]
    assert all({"time", "level", "message", "seconds"} <= set(line) for line in logged)
    assert done.cpu_at_first < FIRST
    assert status == 130 and not done.out


def test_serve_is_ready_after_its_stages(model: Path) -> None:
    with child("serve", model, "--dtype", "float32", "--port", 0) as done:
        done.wait_for("foresay serves", out=True)
        done.process.send_signal(signal.SIGTERM)
        assert done.end() == 0
    said = " ".join(done.said)
    words = [*LOADING, "measuring how long steps take", "the model is loaded"]
    assert all(f"INFO {sentence}" in said for sentence in words)
