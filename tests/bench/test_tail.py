"""The long tail, from logs whose answers are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.recorded_groups import groups, table
from foresay.bench.plans import Plan, Setup
from foresay.bench.simulate import simulate
from foresay.bench.tail import Activity, read_activity, tail_chart, tail_of
from foresay.errors import InputError, TraceError
from tiny import call


def log(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


REQUESTS = [
    {"id": "a", "begin": 10.0, "end": 11.0, "tokens": 1},
    {"id": "b", "begin": 10.0, "end": 12.0, "tokens": 2},
    {"id": "c", "begin": 10.0, "end": 14.0, "tokens": 4},
    {"id": "d", "begin": 10.0, "end": 20.0, "tokens": 9},
]


def test_requests(tmp_path: Path) -> None:
    found = tail_of(read_activity(log(tmp_path / "r", REQUESTS)), few=2)
    assert (found.seconds, found.tail_seconds, found.tail_share) == (10, 8, 0.8)
    assert (found.half, found.most, found.requests) == (2, 10, 4)
    assert found.max_over_mean == 9 / 4 and found.unit == "tokens"
    assert tail_of(read_activity(tmp_path / "r"), few=1).tail_seconds == 6
    bare = [{"begin": r["begin"], "end": r["end"]} for r in REQUESTS]
    found = tail_of(read_activity(log(tmp_path / "b", bare)), few=2)
    assert found.max_over_mean == 10 / 4.25 and found.unit == "seconds"


def test_steps(tmp_path: Path) -> None:
    steps = [
        {"time": 101.0, "running": 2, "waiting": 2, "seconds": 1.0},
        {"time": 102.0, "running": 2, "waiting": 1},
        {"time": 104.0, "running": 2, "waiting": 0},
        {"time": 110.0, "running": 1, "waiting": 0},
    ]
    found = tail_of(read_activity(log(tmp_path / "s", steps)), few=2)
    assert (found.seconds, found.tail_seconds, found.half, found.most) == (10, 8, 2, 10)
    assert found.requests == 4 and found.max_over_mean is None
    # Without `seconds` the first line marks the beginning; without `waiting` only some are seen.
    bare = [{"time": 100.0, "running": 0}] + [
        {"time": s["time"], "running": s["running"]} for s in steps
    ]
    found = tail_of(read_activity(log(tmp_path / "b", bare)), few=1)
    assert (found.seconds, found.tail_seconds, found.requests) == (10, 6, 2)


def test_few_before_many_are_no_tail() -> None:
    activity = Activity.of_requests([(0, 1), (5, 9), (5, 9), (5, 10)])
    found = tail_of(activity, few=1)
    assert found.tail_seconds == 1 and found.few_share == pytest.approx(0.2)
    assert activity.left.tolist() == [1, 0, 3, 1]


def test_steps_and_requests_of_one_rollout_agree(tmp_path: Path) -> None:
    run = simulate(groups(), Plan("none"), Setup(table(), running=5))
    steps = [
        {"time": s.time, "running": s.running, "waiting": s.waiting, "seconds": s.seconds}
        for s in run.steps
    ]
    spans = [{"begin": 0.0, "end": r.end, "tokens": r.tokens} for r in run.requests]
    a = tail_of(read_activity(log(tmp_path / "s", steps)), 3)
    b = tail_of(read_activity(log(tmp_path / "r", spans)), 3)
    assert a.seconds == pytest.approx(run.seconds) and b.seconds == pytest.approx(run.seconds)
    assert a.tail_seconds == pytest.approx(b.tail_seconds)
    assert (a.half, a.most) == pytest.approx((b.half, b.most)) and a.requests == b.requests


def test_a_chart_of_many_steps_is_small_and_true() -> None:
    left = np.arange(50_000, 0, -1)
    activity = Activity(np.arange(50_001.0), left)
    text = tail_chart(activity, 8)
    assert text.startswith("<svg") and len(text) < 200_000 and "at most 8" in text


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "holds no line"),
        ([{"a": 1}], "line 1 has no 'time'; expected time and running of a step, or begin"),
        ([{"time": 1.0}], "has no 'running'"),
        ([{"time": "x", "running": 1}], "'time' is 'x'; expected a number"),
        ([{"time": 1, "running": 1.5}], "'running' is 1.5; expected a whole number from 0"),
        ([{"time": 1, "running": -1}], "'running' is -1"),
        ([{"time": 1, "running": True}], "'running' is True"),
        ([{"time": 1, "running": 1}], "has a single time"),
        ([{"time": 2, "running": 1}, {"time": 1, "running": 1}], "time is 1.0 after 2.0"),
        ([{"begin": 2, "end": 1}], "end is 1.0 and begin 2.0"),
        ([{"begin": 2}], "has no 'end'"),
        ([{"begin": 0, "end": 1, "tokens": 1}, {"begin": 0, "end": 1}], "1 of 2 lines have tokens"),
    ],
)
def test_wrong_logs(tmp_path: Path, lines: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(TraceError) as error:
        read_activity(log(tmp_path / "log", lines))
    assert sentence in str(error.value)
    with pytest.raises(InputError, match="few is 0"):
        tail_of(Activity.of_requests([(0, 1)]), 0)


def test_the_command(tmp_path: Path) -> None:
    path, plot = log(tmp_path / "r.jsonl", REQUESTS), tmp_path / "tail.svg"
    done = call("tail", path, "--few", 2, "--plot", plot, "--json")
    assert done.status == 0 and json.loads(done.out)["tail_share"] == 0.8
    assert plot.read_text().startswith("<svg")
    text = call("tail", path, "--few", 2).out
    assert "tail share" in text and "0.8000" in text
    for wrong, sentence in (
        (["tail", tmp_path / "no"], "cannot be read"),
        (["tail", path, "--few", 0], "few is 0 (--few)"),
        (["tail", path, "--plot", path], "is the file to be read; expected another"),
        (["tail", path, "--plot", tmp_path / "no" / "x.svg"], "is not a folder"),
    ):
        done = call(*wrong)
        assert done.status == 1 and done.err.startswith("foresay: ") and sentence in done.err
        assert not done.out and done.err.count("\n") == 1
