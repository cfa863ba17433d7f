"""`foresay simulate`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.recorded_groups import groups
from tiny import call, one_thread, save_model


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"id": t.id, "group": t.group, "prompt": t.prompt.tolist(), "output": t.output.tolist()}
        for t in groups()
    ]
    lines.append({"id": "empty", "group": "g0", "prompt": [1], "output": []})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_text_and_json(trace: Path) -> None:
    options = ("--running", 6, "--few", 2, "--resamples", 2)
    text = call("simulate", trace, *options).out
    for name in ("none", "threshold:none:file", "adaptive:all:stagger", "oracle", "measured"):
        assert name in text
    plans = ("--plan", "threshold", "--plan", "adaptive:all:stagger", "--replicas", 2)
    done = call("simulate", trace, *options, *plans, "--costs", "h200-32b", "--json")
    found = json.loads(done.out)
    assert found["simulated"] is True and not done.err
    assert [p["plan"] for p in found["plans"]] == [
        "none",
        "threshold:none:file",
        "adaptive:all:stagger",
    ]
    for plan in found["plans"]:
        assert plan["tokens"] == found["plans"][0]["tokens"]
        assert plan["seconds"] == max(plan["replica_seconds"])
    kinds = {i["what"]: (i["kind"], i["about"]) for i in found["inputs"]}
    assert kinds["step costs"][0] == "assumed" and "2 of 34 points" in kinds["step costs"][1]
    assert "1 without output" in kinds["answers"][1]
    assert found["plans"][2]["speedup_interval"][0] < found["plans"][2]["speedup"]


def test_a_timeline(trace: Path, tmp_path: Path) -> None:
    base = ("simulate", trace, "--plan", "adaptive:group", "--resamples", 0, "--running", 4)
    svg, lines = tmp_path / "t.svg", tmp_path / "t.json"
    assert call(*base, "--timeline", svg).status == 0
    bars = [e for e in ElementTree.parse(svg).iter() if e.tag.endswith("title")]
    assert len(bars) == 2 * len(groups())
    assert call(*base, "--timeline", lines).status == 0
    before, after = json.loads(lines.read_text())["simulations"]
    assert (before["plan"], after["plan"]) == ("none", "adaptive:group:file")
    assert after["seconds"] == max(r["end"] for r in after["requests"]) < before["seconds"]
    steps = tmp_path / "steps.jsonl"
    steps.write_text("".join(json.dumps(step) + "\n" for step in before["steps"]))
    tail = json.loads(call("tail", steps, "--json").out)
    assert tail["seconds"] == pytest.approx(before["seconds"])
    assert tail["requests"] == len(groups())


def test_costs_of_our_own_engine(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, costs = save_model(tmp_path / "model"), tmp_path / "costs.json"
    from foresay.bench import measure_costs

    few = {"batches": (1, 2), "contexts": (32,), "nodes": (0, 2), "repeats": 1}
    assert measure_costs.measure_table.__kwdefaults__ is not None
    monkeypatch.setattr(
        measure_costs.measure_table,
        "__kwdefaults__",
        {**measure_costs.measure_table.__kwdefaults__, **few},
    )
    with one_thread():
        done = call("simulate", "--measure", model, "--out", costs)
    assert done.status == 0, done.err
    done = call("simulate", trace, "--costs", costs, "--resamples", 0, "--plan", "fixed", "--json")
    kinds = {i["what"]: i["kind"] for i in json.loads(done.out)["inputs"]}
    assert kinds["step costs"] == "measured" and kinds["drafting"] == "measured"


def test_failures_are_one_sentence(trace: Path, tmp_path: Path) -> None:
    for wrong, sentence in (
        (["simulate"], "there is no trace file; expected TRACE, or --measure"),
        (["simulate", "--measure", "x"], "--measure is given without --out"),
        (["simulate", trace, "--out", "x"], "--out is given without --measure"),
        (["simulate", trace, "--costs", "h100"], "no step costs 'h100'"),
        (["simulate", trace, "--plan", "best"], "policy is 'best'"),
        (["simulate", trace, "--replicas", 0], "replicas is 0"),
        (["simulate", trace, "--few", 0], "few is 0"),
        (["simulate", trace, "--resamples", -1], "resamples is -1"),
        (["simulate", trace, "--stretch", 0], "stretch is 0"),
        (["simulate", trace, "--k", 9999, "--plan", "fixed"], "k is 9999"),
        (["simulate", trace, "--timeline", trace], "is the file to be read; expected another"),
        (["simulate", trace, "--timeline", "x.png"], "'.png'; expected .svg or .json"),
        (["simulate", trace, "--kv-tokens", 8], "kv_tokens is 8; expected at least"),
        (["simulate", tmp_path / "no"], "cannot be read"),
    ):
        done = call(*wrong)
        assert done.status == 1 and sentence in done.err, (wrong, done)
        assert done.err.startswith("foresay: ") and done.err.count("\n") == 1 and not done.out


def test_the_document_is_true(trace: Path, tmp_path: Path) -> None:
    """Its table can be read, its options exist, its commands run."""
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    table = re.search(r'      (\{"about".*?\]\})', text, re.DOTALL)
    assert table is not None
    costs = tmp_path / "costs.json"
    costs.write_text(table[1])
    done = call("simulate", trace, "--costs", costs, "--plan", "fixed", "--resamples", 0)
    assert done.status == 0, done.err
    helps = " ".join((call("simulate", "--help").out + call("tail", "--help").out).split())
    named = set(re.findall(r"--[a-z][a-z-]+", text))
    assert len(named) > 15
    for option in named:
        assert option in helps, option
    (command,) = re.findall(r"^    foresay simulate (.*)", text, re.MULTILINE)
    arguments = [trace if word == "traces.jsonl.gz" else word for word in command.split()]
    assert call("simulate", *arguments, "--resamples", 0).status == 0
