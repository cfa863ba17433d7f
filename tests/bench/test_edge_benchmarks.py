"""The scripts of benchmarks/ for edge streams: options, bars, and what is counted."""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.edge_tables import table
from foresay.bench.questions import built_in_questions
from foresay.draft import Draft
from foresay.edge.client import Answer
from foresay.edge.statistics import StreamStatistics
from foresay.edge.text_rules import Rules
from foresay.errors import InputError, StreamError
from foresay.sampling.params import SamplingParams
from foresay.sampling.signals import Signals
from scripts import script
from tiny import one_thread, save_model


def run(module: Any, monkeypatch: pytest.MonkeyPatch, *options: object) -> object:
    """What the script exits with."""
    monkeypatch.setattr(sys, "argv", [module.__file__, "--record-dirty", *map(str, options)])
    try:
        module.main()
    except SystemExit as end:
        return end.code
    return 0


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("edge", "--rtts abc", "argument --rtts: it is 'abc'; expected milliseconds"),
        ("edge", "--rtts=-5", "argument --rtts: it is '-5'; expected milliseconds, 0 or more"),
        ("edge", "--jitter=-1", "argument --jitter: it is '-1'; expected milliseconds"),
        ("edge", "--loss 2", "argument --loss: it is '2'; expected a chance from 0 to below 1"),
        ("edge", "--each 0", "argument --each: it is '0'; expected a whole number, 1 or more"),
        ("edge", "--tokens 0", "argument --tokens: it is '0'; expected a whole number"),
        ("edge", "--tokens 1.5", "argument --tokens: it is '1.5'; expected a whole number"),
        ("edge", "--html /no/such/x.html", "argument --html: it is '/no/such/x.html'; expected"),
        ("edge", "--only nothing", "there is no part 'nothing'"),
        ("edge_load", "--clients 0", "argument --clients: it is '0'; expected a whole number"),
        ("edge_load", "--minutes 0", "argument --minutes: it is '0'; expected minutes, above 0"),
        ("edge_load", "--minutes nan", "argument --minutes: it is 'nan'; expected minutes"),
    ],
)
def test_wrong_values_are_refused(
    name: str,
    options: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(script(name), monkeypatch, *options.split()) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_is_not_there_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge, load = script("edge"), script("edge_load")
    said = run(edge, monkeypatch, "--prompts", "/nope.jsonl")
    assert isinstance(said, str) and said.startswith("edge.py: ") and "/nope.jsonl" in said
    for only in ("ways", "gating"):
        said = run(edge, monkeypatch, "--model", "/nope", "--only", only)
        assert isinstance(said, str) and "'/nope' is no model" in said and "\n" not in said
    said = run(load, monkeypatch, "--model", "/nope")
    assert isinstance(said, str) and said.startswith("edge_load.py: '/nope' is no model")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"category": "qa", "turns": ["a"]}))
    said = run(edge, monkeypatch, "--prompts", prompts)
    assert said == "edge.py: --category is 'summarization'; expected one of qa, or empty"


@pytest.mark.parametrize(("seconds", "missed"), [(1.0, None), (0.2, "ahead by blocking")])
def test_edge_fails_if_a_bar_is_not_met(
    seconds: float, missed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = script("edge")
    times = {"cloud-drafts": [1.0], "free-run": [1.0], "blocking": [seconds], "ahead": [0.5]}
    monkeypatch.setitem(edge.PARTS, "ways", lambda *_: table(times).as_dict())
    ended = run(edge, monkeypatch, "--only", "ways", "--record", tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-edge-ways.json")
    assert ended == (0 if missed is None else f"NOT MET: {missed} at 20 ms, least")


LOAD: dict[str, Any] = {
    "answers": 9,
    "resumes": 2,
    "accepted": 5,
    "errors": 0,
    "different": 0,
    "seconds": 600,
    "left_over": {"edge_streams": 0.0, "running": 0.0, "waiting": 0.0},
    "memory": {"at_rest_mb": [500.0, 501.0, 500.5, 502.0, 501.0]},
}


@pytest.mark.parametrize(
    ("other", "missed"),
    [
        ({}, set()),
        ({"answers": 0}, {"answers, least"}),
        ({"resumes": 0}, {"resumes, least"}),
        ({"accepted": 0}, {"accepted, least"}),
        ({"errors": 1}, {"errors"}),
        ({"different": 1}, {"texts that differ"}),
        ({"left_over": {"edge_streams": 1, "running": 0, "waiting": 0}}, {"streams left"}),
        ({"left_over": {"edge_streams": 0, "running": 1, "waiting": 0}}, {"requests left"}),
        ({"left_over": {"edge_streams": 0, "running": 0, "waiting": 1}}, {"requests left"}),
        (
            {"left_over": dict.fromkeys(("edge_streams", "running", "waiting"), float("nan"))},
            {"streams left", "requests left"},
        ),
        (
            {"memory": {"at_rest_mb": [500.0, 510.0, 520.0, 530.0, 540.0]}},
            {"growth of memory at rest, MB/min"},
        ),
    ],
)
def test_bars_of_the_load(
    other: dict[str, Any], missed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = script("edge_load").judged({**LOAD, **other})
    assert len(lines) == 8 and {line["name"] for line in lines if not line["met"]} == missed


def test_a_short_load_says_nothing_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = script("edge_load").judged({**LOAD, "seconds": 60})
    assert [line["met"] for line in lines if line["name"].startswith("growth")] == [None]


def told(tokens: tuple[int, ...]) -> Answer:
    counted = StreamStatistics(accepted=3, resumes=1, reopens=2, ttft=0.5)
    return Answer(tokens, (), "length", counted)


def test_what_a_client_of_the_load_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn by turn: the right text, another, one too short, errors, a timeout, a lost start, and
    the right text without a drafter that failed."""
    load = script("edge_load")
    at_start = "nothing answers; expected a server of `foresay serve` there"
    script_of_turns: list[Any] = [
        *((7, 8), (7, 9), (7,)),
        *(StreamError("the cloud failed", "internal"), InputError("the prompt is bad")),
        *(asyncio.TimeoutError(), StreamError(at_start, "unreachable")),
        StreamStatistics(drafter_error="ValueError: no"),
    ]

    class Client:
        closed = 0

        def __init__(self, url: str, **given: Any) -> None:
            self._turns = iter(script_of_turns)

        async def answer(self, prompt: object, params: object) -> Answer:
            turn = next(self._turns)
            if isinstance(turn, BaseException):
                raise turn
            if isinstance(turn, StreamStatistics):
                return Answer((7, 8), (), "length", turn)
            return told(turn)

        def close(self) -> None:
            Client.closed += 1

    async def no_time(seconds: float) -> None:
        pass

    monkeypatch.setattr(load, "EdgeClient", Client)
    monkeypatch.setattr(load.asyncio, "sleep", no_time)
    question = load.Question([1], SamplingParams(), [7, 8])
    server = SimpleNamespace(vocabulary=10, keys={"one": "key"})

    def asked(number: int) -> Any:
        ticks = count()
        clock = SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=lambda: 1.0)
        monkeypatch.setattr(load, "time", clock)
        seen, turns = load.Seen(), len(script_of_turns)
        proxy = SimpleNamespace(port=1)
        asyncio.run(load.one_client(number, server, proxy, [question], turns, seen))
        return seen

    steady, frail = asked(1), asked(5)
    for seen in (steady, frail):
        assert (seen.answers, seen.different, seen.tokens, seen.left_streams) == (4, 2, 7, 0)
        assert (seen.accepted, seen.resumes, seen.reopens) == (9, 3, 6)
        assert seen.first == [0.5] * 3 + [0.0]
        assert seen.errors["the drafter failed: ValueError: no"] == 1
    assert sum(frail.errors.values()) == 4 and frail.lost_at_start == 1
    assert sum(steady.errors.values()) == 5 and steady.lost_at_start == 0
    assert steady.errors["the cloud failed"] == 1 and Client.closed == 2


def areas(nll: dict[bool, float]) -> dict[str, Any]:
    """Of a drafter that is right at every other token, with this NLL where it is right."""
    gating = script("edge")
    answer = np.arange(1, 9, dtype=np.int32)

    class Drafts:
        at = 0

        def propose(self, budget: int) -> Any:
            right = self.at % 2 == 0
            token = int(answer[self.at]) + (0 if right else 1)
            draft = Draft.chain([token], np.array([0.5], np.float32))
            signals = Signals(nll=np.array([nll[right]]))
            return SimpleNamespace(draft=draft, signals=signals)

        def observe(self, tokens: Any) -> None:
            assert tokens.tolist() == [answer[self.at]]
            self.at += 1

    seen, prompt = gating.Seen(), np.array([1, 2], np.int32)
    gating.walk(Drafts(), prompt, answer, seen, {"any rule": Rules()}, lambda ids: "a" * len(ids))
    found: dict[str, Any] = seen.areas()
    return found


def test_a_perfect_signal_has_area_1() -> None:
    found = areas({True: 0.1, False: 2.0})
    assert found["nll"] == {"area": 1.0, "rejected": 4, "accepted": 4}
    assert found["any rule"]["marked"] in (0, 8)
    assert areas({True: 2.0, False: 0.1})["nll"]["area"] == 0.0
    assert areas({True: 1.0, False: 1.0})["nll"]["area"] == 0.5


def test_gating_on_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gating, model = script("edge"), str(save_model(tmp_path))
    options = SimpleNamespace(model=model, edge_model=model, corpus=None, memory_mb=32)
    questions = [q for q in built_in_questions(8) if q.params.n == 1][:1]
    with one_thread():
        found = gating.gating(options, questions)
    assert found["same_model"] and found["prompts"] == 1
    of_model = found["areas"]["model"]
    assert {"nll", "entropy_bits", "margin", "variance", "any rule"} <= of_model.keys()
    assert of_model["nll"]["rejected"] + of_model["nll"]["accepted"] == 8
    assert "nll" in found["areas"]["suffix"]
