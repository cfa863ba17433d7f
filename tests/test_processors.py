"""benchmarks/processors.py: its arithmetic; workers.py: what is said when an engine fails."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from scripts import BENCHMARKS, script


@pytest.fixture
def bars() -> Any:
    return script("processors_bars")


@pytest.fixture
def worker() -> Any:
    return script("workers")


def run(prompt: str, task: str, **speeds: float) -> dict[str, Any]:
    """Everybody writes 10 tokens; the first took half of the time."""
    ways = {
        way: {"tokens": 10, "seconds": 10 / speed, "first_seconds": 5 / speed}
        for way, speed in speeds.items()
    }
    return {"prompt": prompt, "task": task, "sides": ways}


def test_a_prompt_is_the_median_of_its_runs_against_the_best_of_the_others(bars: Any) -> None:
    runs = [
        run("p", "edit", ours=30, plain=10, lookup=15),
        run("p", "edit", ours=40, plain=10, lookup=10),
        run("p", "edit", ours=90, plain=10, lookup=90),  # a moment in which somebody else worked
        run("q", "edit", ours=10, plain=20, lookup=5),
    ]
    # Against plain 3, 4, 9; against lookup 2, 4, 1: the medians are 4 and 2.
    found = bars.by_prompt(runs, "ours", ["plain", "lookup"])
    assert found == pytest.approx({"p": 2, "q": 0.5})
    assert bars.by_prompt(runs, "ours", ["plain"]) == pytest.approx({"p": 4, "q": 0.5})


def test_decode_does_not_count_the_first_token(bars: Any) -> None:
    one = {"tokens": 11, "seconds": 3.0, "first_seconds": 1.0}
    assert bars.speed(one) == pytest.approx(11 / 3) and bars.decode_speed(one) == 5
    with pytest.raises(ValueError, match="1 token; expected 2 or more"):
        bars.decode_speed({**one, "tokens": 1})


def test_a_task_is_the_geometric_mean_of_its_prompts(bars: Any) -> None:
    runs = [
        run("a", "edit", ours=8, other=1),
        run("b", "edit", ours=2, other=1),
        run("c", "chat", ours=3, other=1),
    ]
    assert bars.by_task(runs, "ours", ["other"]) == pytest.approx({"edit": 4, "chat": 3})


def test_growth_is_the_median_over_runs_of_the_ratio_of_medians(bars: Any) -> None:
    runs = [
        {"sides": {"ours": {"1": [1.0, 2.0, 9.0], "2": [1.0], "8": [6.0, 3.0, 4.0]}}},
        {"sides": {"ours": {"1": [1.0], "8": [0.5]}}},
        {"sides": {"ours": {"1": [1.0], "8": [50.0]}}},
    ]
    assert bars.growth(runs, "ours") == {1: 1.0, 2: 0.5, 8: 2.0}


@pytest.mark.parametrize(
    ("value", "at_most", "met"),
    [(2.0, False, True), (1.99, False, False), (2.0, True, True), (2.01, True, False)],
)
def test_a_bar(bars: Any, value: float, at_most: bool, met: bool) -> None:
    assert bars.bar("x", value, 2.0, at_most=at_most)["met"] is met
    assert bars.bar("x", value, None, at_most=at_most)["met"] is None


def test_the_bars_of_a_kind_of_processor(bars: Any) -> None:
    assert bars.kind_of("aarch64", "neon") == "aarch64"
    assert bars.kind_of("x86_64", "amx") == "amx" and bars.kind_of("x86_64", "avx2") is None
    times = {"1": [1.0], "2": [1.1], "4": [1.3], "8": [1.3], "16": [1.3]}
    parts = {"rows": {"runs": [{"sides": {bars.NONE: times}}]}}
    for kind, met in (
        ("aarch64", [None, True, True, True]),
        ("amx", [None, False, False, True]),
        (None, [None] * 4),
    ):
        assert [line["met"] for line in bars.bars(parts, kind)] == met


def found(bars: Any, part: str, **values: Any) -> dict[str, Any]:
    return {line["name"]: line for line in bars.bars({part: values}, "aarch64")}


def test_the_bars_of_the_tasks(bars: Any) -> None:
    def one(name: str, task: str, **speeds: float) -> dict[str, Any]:
        names = {"none": bars.NONE, "default": bars.DEFAULT, "plain": bars.LLAMA}
        names["lookup"] = f"{bars.LLAMA}, lookup 2"
        made = run(name, task, **speeds)
        return made | {"sides": {names[way]: value for way, value in made["sides"].items()}}

    runs = [
        one("a", "edit", none=10, default=40, plain=10, lookup=20),  # 2 of the better, 4 of none
        one("b", "extract", none=20, default=80, plain=10, lookup=5),  # 8, 4
        one("c", "chat", none=10, default=10, plain=1, lookup=1),
        one("d", "chat", none=10, default=9.7, plain=1, lookup=1),
    ]
    lines = found(bars, "tasks", runs=runs)
    better = lines["copying tasks / the better of llama.cpp plain and with lookup"]
    assert (better["value"], better["bar"], better["met"]) == (4.0, 2.0, True)
    own = lines["copying tasks / no speculation"]
    assert (own["value"], own["bar"], own["met"]) == (4.0, 1.6, True)
    least = lines["free chat / no speculation, the least prompt"]
    assert (least["value"], least["bar"], least["met"]) == (0.97, 0.98, False)


def test_the_bars_of_time_and_memory(bars: Any) -> None:
    def loaded(seconds: float, size: int) -> dict[str, Any]:
        first = {"seconds": seconds, "cpu_seconds": 2 * seconds}
        took = {"first_token": first, "imports": {"seconds": 1.0, "cpu_seconds": 1.0}}
        return {
            "sides": {bars.DEFAULT: {"took": took, "model_bytes": size, "grown_bytes": 2 * size}}
        }

    lines = found(bars, "load", runs=[loaded(s, 130) for s in (3, 4.5, 60)], file_bytes=100)
    assert lines["LLM to the first token"]["value"] == 4.5
    assert lines["LLM to the first token"]["met"] and not lines["… of processor time"]["met"]
    memory = lines["memory of the model / its file"]
    assert memory["value"] == 1.3 and memory["bar"] == 1.25 and not memory["met"]
    assert lines[f"… of the process, more than before: {bars.DEFAULT}"]["value"] == 2.6


def test_the_bars_of_speed(bars: Any) -> None:
    def against(way: str, ours: float) -> list[dict[str, Any]]:
        made = run("p", "chat", ours=ours, theirs=10)["sides"]
        ways = {bars.NONE: made["ours"], bars.DEFAULT: made["ours"], way: made["theirs"]}
        return [{"prompt": "p", "task": "chat", "sides": ways}]

    for part, way, bar, more in (
        ("prefill", bars.LLAMA, 2.0, {"tokens": 512}),
        ("decode", bars.LLAMA, 1.3, {}),
        ("batch", bars.LLAMA, 3.0, {"requests": 8}),
        ("transformers", bars.TRANSFORMERS, 4.0, {}),
    ):
        for ours, met in ((bar * 10.1, True), (bar * 9.9, False)):
            lines = [*found(bars, part, runs=against(way, ours), **more).values()]
            assert [line["met"] for line in lines if line["bar"] == bar] == [met], part
        # Without the peer there is nothing to say of it.
        names = found(bars, part, runs=against("nobody", 1.0), **more)
        assert all(name.endswith("no speculation") for name in names)


PATH = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
SERVE = PATH + "from workers import serve\n"


def started(worker: Any, code: str, seconds: float = 60) -> Any:
    return worker.Worker("the engine", [sys.executable, "-c", code], seconds=seconds)


def test_a_worker_answers_whatever_it_prints(worker: Any) -> None:
    code = SERVE + "serve({'twice': lambda value: [print('noise'), value * 2][1]})"
    with started(worker, code) as asked:
        assert asked.ask("twice", value=21) == 42
        large = "x" * 300_000  # more than a pipe holds
        assert asked.ask("twice", value=large) == 2 * large


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (
            SERVE + "serve({'load': lambda: [][1]})",
            r"the engine could not do 'load': IndexError: list index out of range",
        ),
        (
            SERVE + "serve({'answer': print})",
            r"could not do 'load': WorkerError: there is no such task; expected one of answer",
        ),
        (
            "import sys; sys.exit('there is no such model')",
            r"ended with status 1 before it answered 'load'; its last words: there is no such mod",
        ),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            r"ended with status -11 before it answered 'load'; its last words: none",
        ),
        (
            "import os, sys; os.write(int(sys.argv[-1]), b'hello\\n')",
            r"answered 'load' with b'hello'; expected an answer in JSON",
        ),
    ],
)
def test_a_worker_that_fails_is_an_error(worker: Any, code: str, sentence: str) -> None:
    with started(worker, code) as asked:
        with pytest.raises(worker.WorkerError, match=sentence):
            asked.ask("load")
        with pytest.raises(worker.WorkerError, match="its process has ended"):
            asked.ask("load")


@pytest.mark.parametrize("size", [1, 300_000])  # the second does not fit into the pipe
def test_a_worker_that_hangs_is_an_error(worker: Any, size: int) -> None:
    begin = time.monotonic()
    with (
        started(worker, "import time; time.sleep(60)", seconds=0.5) as asked,
        pytest.raises(worker.WorkerError, match=r"did not answer 'load' within 0\.5 seconds"),
    ):
        asked.ask("load", value="x" * size)
    assert time.monotonic() - begin < 30
