"""What was timed is remembered: once per machine, model and build, and never when it is damaged."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foresay import _core
from foresay.engine import measure
from foresay.engine.measure import measured_cost, remembered_samples
from foresay.models import remembered
from foresay.models.remembered import Memory


class Timed:
    """A target that is never run: how long its steps take is made up."""

    context = 1024
    threads = 2

    def __init__(self, identity: str | None = "a model") -> None:
        self.identity = identity

    def open(self) -> Any:
        return SimpleNamespace(copy_from=lambda other, length: None)

    def open_filled(self, tokens: int) -> Any:
        return self.open()


class Clock:
    """Times of steps; `noise` is how much longer than the shortest they take, in turn."""

    def __init__(self) -> None:
        self.steps = 0
        self.noise = [1.0]
        self.waited = self.waits = 0.0  # seconds for a processor; in every step

    def __call__(self, target: Any, kind: Any, kvs: Any) -> float:
        self.steps += 1
        self.waited += self.waits
        took: float = 1e-3 + 1e-4 * kind.rows * kind.requests
        return took * self.noise[self.steps % len(self.noise)]


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setenv("FORESAY_CACHE", str(tmp_path))
    monkeypatch.delenv("FORESAY_REMEMBER", raising=False)
    made = Clock()
    monkeypatch.setattr(measure, "_timed", made)
    monkeypatch.setattr(measure, "seconds_kept_waiting", lambda: made.waited)
    return made


def files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*.*"))


def took(target: Any, clock: Clock, **options: Any) -> int:
    """Steps that were timed for this start."""
    before = clock.steps
    cost = measured_cost(target, **options)
    assert cost.of(8, 8 * 64, 64) > cost.of(1, 64, 64) > 1e-3
    return clock.steps - before


def test_steps_are_timed_once(clock: Clock, tmp_path: Path) -> None:
    told: list[str] = []
    first = measured_cost(Timed(), lambda stage, *_: told.append(stage))  # type: ignore[arg-type]
    assert clock.steps > 50 and set(told) == {"measure"}
    (file,) = files(tmp_path)
    assert file.parent == tmp_path / "measured" and file.suffix == ".json"
    before, told[:] = clock.steps, []
    again = measured_cost(Timed(), lambda stage, *_: told.append(stage))  # type: ignore[arg-type]
    assert clock.steps == before and not told
    for rows in (1, 2, 5, 8, 16, 33, 100):
        assert again.of(rows, rows * 300, 300) == first.of(rows, rows * 300, 300)


def test_who_remembers_nothing(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert took(Timed(None), clock) and took(Timed(None), clock)
    assert took(Timed(), clock, remember=False)
    monkeypatch.setenv("FORESAY_REMEMBER", "0")
    assert took(Timed(), clock) and not files(tmp_path)
    assert took(Timed(), clock, remember=True) and files(tmp_path)
    assert took(Timed(), clock)  # what is there is not used either
    monkeypatch.delenv("FORESAY_REMEMBER")
    assert not took(Timed(), clock)


def test_another_machine_model_or_build_is_timed_for_itself(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert took(Timed(), clock)
    assert took(Timed("another"), clock)
    other = Timed()
    other.threads = 1
    assert took(other, clock)
    for name, value in (
        ("_processor", lambda: "another"),
        ("_build", lambda: "another"),
        ("__version__", "0.0.0"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(remembered, name, value)
            assert took(Timed(), clock), name
    with monkeypatch.context() as changed:
        changed.setattr(os, "sched_getaffinity", lambda _: {0} | {*range(5000, 5005)})
        assert took(Timed(), clock)
    with monkeypatch.context() as changed:
        changed.setattr(_core, "cpu_level", lambda: "another")
        assert took(Timed(), clock)
    assert not took(Timed(), clock)


def test_the_processor_is_named_and_stays_the_same() -> None:
    assert len(remembered._processor()) > 10
    assert remembered._processor() == remembered._processor()
    assert "MHz" not in remembered._processor()
    assert remembered._build()


def test_a_noisy_measurement_is_used_but_not_kept(clock: Clock, tmp_path: Path) -> None:
    clock.noise = [1.0, 1.6, 2.5, 1.0, 3.0]
    assert took(Timed(), clock) and not files(tmp_path)
    clock.noise = [1.0, 1.0, 1.0, 1.0, 5.0]  # some outliers are no noise
    assert took(Timed(), clock) and files(tmp_path)


def test_after_a_month_it_is_timed_again(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert took(Timed(), clock)
    now = time.time()
    for days, again in ((29, False), (31, True), (29, True)):  # the last one is in the past
        monkeypatch.setattr(time, "time", lambda d=days: now + d * 24 * 3600)
        assert bool(took(Timed(), clock)) is again, days


def test_an_interrupt_leaves_nothing(clock: Clock, tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int | None) -> None:
        if done == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured_cost(Timed(), interrupt)  # type: ignore[arg-type]
    assert not files(tmp_path)


def test_a_cache_that_cannot_be_written(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FORESAY_CACHE", str(tmp_path / "file"))
    assert took(Timed(), clock) and took(Timed(), clock)
    monkeypatch.setenv("FORESAY_CACHE", str(tmp_path / "other"))

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert took(Timed(), clock) and not files(tmp_path / "other")


# --- damage ----------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], Any]


def put(name: str, value: Any) -> Change:
    return lambda found: {**found, name: value}


def first(*sample: Any) -> Change:
    return lambda found: {**found, "value": [list(sample), *found["value"][1:]]}


CHANGES: dict[str, Change] = {
    "list": lambda found: [found],
    "null": lambda found: None,
    "without time": lambda found: {k: v for k, v in found.items() if k != "time"},
    "more": put("more", 1),
    "time of text": put("time", "now"),
    "time of int": put("time", 5),
    "time that is none": put("time", float("nan")),
    "future": put("time", 4e10),
    "another key": lambda found: {**found, "key": {**found["key"], "threads": 9}},
    "key of text": put("key", "a"),
    "no samples": put("value", []),
    "samples of text": put("value", "abcde"),
    "too many": lambda found: {**found, "value": found["value"] * 100},
    "short": first(1, 65, 0.001, 64),
    "long": first(1, 65, 0.001, 64, 1, 1),
    "no time": first(1, 65, 0.0, 64, 1),
    "hardly any time": first(1, 65, 5e-324, 64, 1),
    "negative": first(1, 65, -0.001, 64, 1),
    "infinite": first(1, 65, float("inf"), 64, 1),
    "not a number": first(1, 65, float("nan"), 64, 1),
    "hours": first(1, 65, 1e9, 64, 1),
    "text": first(1, 65, "0.001", 64, 1),
    "truth": first(True, 65, 0.001, 64, 1),
    "fraction": first(1.5, 65, 0.001, 64, 1),
    "no rows": first(0, 65, 0.001, 64, 1),
    "huge": first(1 << 70, 65, 0.001, 64, 1),
    "sample of nothing": lambda found: {**found, "value": [None]},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_file_is_ignored_and_written_anew(
    name: str, clock: Clock, tmp_path: Path
) -> None:
    assert took(Timed(), clock)
    (file,) = files(tmp_path)
    file.write_text(json.dumps(CHANGES[name](json.loads(file.read_text()))))
    assert took(Timed(), clock)
    assert files(tmp_path) == [file] and not took(Timed(), clock)


def cuts_and_flips(raw: bytes) -> Iterator[bytes]:
    chosen = random.Random(5)
    yield from (raw[: chosen.randrange(len(raw))] for _ in range(50))
    yield b"[" * 100_000
    for _ in range(300):
        damaged = bytearray(raw)
        damaged[chosen.randrange(len(raw))] = chosen.randrange(256)
        yield bytes(damaged)


def test_damaged_bytes(clock: Clock, tmp_path: Path) -> None:
    """Nothing, or samples as good as any."""
    assert took(Timed(), clock)
    (file,) = files(tmp_path)
    raw, memory = file.read_bytes(), Memory("steps", "a model", 2)
    assert memory.path == file
    ignored = 0
    for damaged in cuts_and_flips(raw):
        file.write_bytes(damaged)
        samples = remembered_samples(memory.read())
        ignored += samples is None
        assert samples is None or all(s.seconds > 0 and s.rows > 0 for s in samples)
    assert ignored > 100


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_what_is_no_small_file_is_not_read(kind: str, clock: Clock, tmp_path: Path) -> None:
    assert took(Timed(), clock)
    (file,) = files(tmp_path)
    text = file.read_text()
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)  # who reads it waits for ever
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_text(text + " " * (1 << 16))
    assert took(Timed(), clock)


def test_times_beside_work_that_goes_on_are_not_kept(clock: Clock, tmp_path: Path) -> None:
    """Equal steps take the same time, but threads wait for their processors."""
    clock.waits = 1.0
    assert took(Timed(), clock) and not files(tmp_path)
    clock.waits = 0.0
    assert took(Timed(), clock) and files(tmp_path)
    assert not took(Timed(), clock)


def test_times_beside_other_work_are_not_calm() -> None:
    """Too few that were repeated, or repeated ones that differ."""
    once = [kind.sample(0.1 * (i % 5 + 1)) for i, kind in enumerate(measure._KINDS[:14])]
    assert not measure._are_calm(once)
    each = [kind.sample(0.01) for kind in measure._KINDS]
    assert not measure._are_calm(each + [kind.sample(0.5) for kind in measure._KINDS[:10]])
    assert measure._are_calm(each + [kind.sample(0.011) for kind in measure._KINDS[:6]])


def test_a_large_model_s_times_are_kept(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose steps take so long that no more than the least are timed."""
    now = [0.0]

    def long(target: Any, kind: Any, kvs: Any) -> float:
        took = 20 * Clock.__call__(clock, target, kind, kvs) + 0.2
        now[0] += took
        return took

    monkeypatch.setattr(measure, "_timed", long)
    monkeypatch.setattr(measure, "perf_counter", lambda: now[0])
    assert took(Timed(), clock) == measure._LEAST == 10
    assert files(tmp_path) and took(Timed(), clock) == 0


def test_the_folder_is_bounded(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_FILES", 3)
    memories = [Memory("steps", f"model {number}") for number in range(5)]
    for number, memory in enumerate(memories):
        memory.write(number)
        os.utime(memory.path, ns=(number, number))
    assert [memory.read() for memory in memories] == [None, None, 2, 3, 4]
