"""The benchmarks that need no peer run to their end, from any folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import forks
from scripts import BENCHMARKS, script


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two samples of two prompts; the text repeats, so that something is accepted."""
    path = tmp_path / "tiny.jsonl"
    lines = [
        {
            "id": f"{group}{sample}",
            "group": f"g{group}",
            "prompt": [group + 1, 5, 6, 7],
            "output": [5, 6, 7, 8, 20 + sample] * 6,
        }
        for group in range(2)
        for sample in range(2)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(
    script: str, folder: Path, *arguments: str | Path, server: forks.Server = forks.WARM
) -> tuple[str, dict[str, Any]]:
    """Run a script with `folder` as the current one; what it printed and recorded."""
    command = [BENCHMARKS / script, *arguments, "--record", folder / "record", "--record-dirty"]
    done = forks.run(*command, cwd=folder, server=server)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "record").iterdir()
    assert done.stdout.splitlines()[-1] == f"recorded in {path.name}"
    return done.stdout, json.loads(path.read_text())


def test_replay(tmp_path: Path, trace: Path) -> None:
    traces = "--specbench", trace, "--humaneval", trace, "--corpus", trace, "--more", trace
    out, record = run("replay.py", tmp_path, *traces, "--no-peers")
    assert {row["trace"] for row in record["rows"]} == {"specbench", "humaneval", "tiny"}
    assert all(row["tokens_per_step"] > 1 for row in record["rows"])
    assert "bar 1.97" in out


def test_ablation(tmp_path: Path, trace: Path) -> None:
    small = "--corpus", trace, "--nodes", "4", "--tokens", "300"
    _, record = run("ablation.py", tmp_path, trace, *small)
    parts = record["parts"]
    assert record["trace"] == "tiny" and parts["components"]["everything"] > 1
    assert parts["budgets"]["1"] <= parts["budgets"]["32"]
    assert len(parts["sam"]) == 20 and len(parts["lengths"]) == 12
    assert parts["chains"]["1"] <= parts["chains"]["16"]
    assert record["latency"]["rows"][0]["steps_p50"] > 0
    assert [row[0] for row in record["curve"]["rows"]] and record["curve"]["turns"] > 1
    assert record["commit"] and record["command"][0] == "ablation.py" and record["date"]


def test_core_and_frozen(tmp_path: Path, trace: Path) -> None:
    folders = [tmp_path / name for name in ("core", "frozen")]
    for folder in folders:
        folder.mkdir()
    small = "--requests", "4", "--contexts", "40", "--turns", "1", "--steps", "2", "--no-peers"
    out, record = run("core.py", folders[0], trace, *small)
    assert record["memory"]["foresay"]["bytes_per_token"] > 0 and "single_us" in record["extend"]
    assert record["steps"]["4 x 40"]["foresay, 2 threads"]["wall_ms"] > 0
    assert "was not measured versus ArcticInference" in out
    few = "--tokens", "3000", "--queries", "200", "--memory", "32"
    _, record = run("frozen.py", folders[1], trace, *few)
    assert record["build"][0]["memory_mib"] == 32 and record["advance"]["mean_match"] > 0


def test_host_step(tmp_path: Path) -> None:
    small = "--quick", "--batches", "1,3", "--only", "edits,new"
    _, record = run("host_step.py", tmp_path, *small)
    steps = record["steps"]
    assert len(steps) == 8 and steps["edits 1 suffix"]["tokens_per_step"] > 2
    assert steps["new 3 none"]["tokens_per_step"] == 1 and steps["new 3 none"]["step"] > 0
    assert {line["name"] for line in record["bars"]} > {"asked, found nothing"}


def test_before(tmp_path: Path) -> None:
    small = "--only", "draft64", "--rounds", "2", "--restarts", "1"
    out, record = run("before.py", tmp_path, "--before", sys.executable, *small)
    assert 0.1 < record["tasks"]["draft64"]["ratio"] < 10 and "start 1: " in out
    assert record["before"].removesuffix("+") == script("harness").commit().removesuffix("+")
    assert "/" not in "".join(record["command"])


def test_no_record_has_a_path_of_a_machine() -> None:
    for record in (BENCHMARKS / "record").glob("*.json"):
        command = json.loads(record.read_text()).get("command", [])
        words = command.split() if isinstance(command, str) else command
        assert not [word for word in words if word.rpartition("=")[2].startswith("/")], record.name


def test_rollouts_memory(tmp_path: Path) -> None:
    small = "--memory-groups", "2", "--samples", "2", "--length", "60"
    _, record = run("rollouts.py", tmp_path, "--only", "memory", *small)
    found = record["parts"]["memory"]
    assert found["requests"] == 4 and found["most_bytes"] >= found["bytes_groups_dropped"]


def test_rollouts(tmp_path: Path, tiny_model: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"question": f"w{n} w7 w8"}) + "\n" for n in (4, 5)))
    small = "--groups", "2", "--samples", "2", "--order-prompts", "2", "--order-samples", "2"
    few = "--rounds", "1", "--tokens", "6", "--dtypes", "float32", "--only", "group,order"
    own = "--model", tiny_model, "--prompts", prompts
    _, record = run("rollouts.py", tmp_path, *own, *small, *few)
    assert record["identical"] and record["largest_logprob_difference"] == 0
    assert len(record["parts"]["group, float32"]["bars"]) == 4
    assert {run["drafts, stagger"]["tokens"] for run in record["parts"]["order"]["runs"]} == {24}


@pytest.mark.slow
def test_server(tmp_path: Path, tiny_model: Path) -> None:
    small = "--model", tiny_model, "--rounds", "2", "--at-once", "2", "--tokens", "6"
    few = "--minutes", "0.05", "--clients", "3", "--memory-mb", "32", "--dtype", "float32"
    out, record = run("server.py", tmp_path, *small, *few, "--policies", "adaptive")
    assert record["different_texts"] == 0 and record["parts"]["load"]["clients"]["answers"] > 2
    assert [bar["met"] for bar in record["bars"] if bar["name"] == "errors"] == [True], out


@pytest.mark.parametrize(
    "script",
    ["edge", "edge_load", "processors", "server", "simulate", "start", "structured", "vllm_step"],
)
def test_help(tmp_path: Path, script: str) -> None:
    """Of those whose runs are slow, elsewhere, or need a peer."""
    done = forks.run(BENCHMARKS / f"{script}.py", "--help", cwd=tmp_path)
    assert done.returncode == 0 and "--record-dirty" in done.stdout, done.stderr


def test_a_record_names_a_commit_that_can_be_measured_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    harness = script("harness")
    parser = harness.parser("A script.", parts=("one", "two"))
    for commit, said in (
        ("abc+", "the commit is abc+; expected a checkout without"),
        (None, "unknown"),
    ):
        monkeypatch.setattr(harness, "commit", lambda commit=commit: commit)
        with pytest.raises(SystemExit):
            harness.parse(parser, [])
        assert said in " ".join(capsys.readouterr().err.split())
        assert harness.parse(parser, ["--record-dirty"]).chosen == ["one", "two"]
    monkeypatch.setattr(harness, "commit", lambda: "abc")
    assert harness.parse(parser, ["--only", "two"]).chosen == ["two"]
    with pytest.raises(SystemExit):
        harness.parse(parser, ["--only", "three"])
    assert "there is no part 'three'; choose from one, two" in capsys.readouterr().err


def test_sampling(tmp_path: Path) -> None:
    small = "--requests", "3", "--drafts", "2", "--vocabulary", "500"
    _, record = run("sampling.py", tmp_path, *small)
    assert {line["rule"] for line in record["batch"]} == {
        "match, chosen",
        "rejection, chosen",
        "rejection, sampled",
    }
    assert all(ms > 0 for ms in record["row_ms"].values())


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """A model of two layers with a tokenizer of 50 words and a chat template."""
    from tiny import save_words_model  # torch and transformers, which take seconds

    return save_words_model(tmp_path / "model")


def test_drafters(tmp_path: Path, tiny_model: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    kinds = ("writing", "coding", "rag", "rag")
    prompts.write_text(
        "".join(
            json.dumps({"question_id": i, "category": kind, "turns": [f"w{i + 4} w7 w8 " * 6]})
            + "\n"
            for i, kind in enumerate(kinds)
        )
    )
    own = "--model", tiny_model, "--dtype", "float32", "--prompts", prompts
    small = "--tokens", "6", "--per-category", "1", "--nodes", "4"
    drafters = "--drafters", "suffix,recycle,suffix+recycle", "--draft", tiny_model
    every = "--only", "nodes,adaptive,rules,group", "--samples", "2"
    out, record = run("drafters.py", tmp_path, *own, *small, *drafters, *every)
    assert record["identical"] and list(record["parts"]) == ["nodes", "adaptive", "rules", "group"]
    assert record["parts"]["rules"]["coupled"]["drafted"] and record["parts"]["group"]["ratio"] > 0
    for name, policy in (("nodes", "fixed"), ("adaptive", "adaptive")):
        part = record["parts"][name]
        assert part["policy"] == policy and part["questions"] == {"mt_bench": 1, "rag": 1}
        names = ["none", "suffix", "recycle", "suffix+recycle"]
        assert [row["drafter"] for row in part["rows"]] == names
        measure = "tokens_per_step" if name == "nodes" else "speedup_mean"
        value = {row["drafter"]: row[measure] for row in part["rows"]}
        *alone, bar = part["bars"]
        assert len(alone) == (2 if name == "nodes" else 0)
        ratio = value["suffix+recycle"] / max(value["suffix"], value["recycle"])
        assert bar["value"] == pytest.approx(ratio, abs=1e-4)
        assert bar["bar"] == (1.07 if name == "nodes" else 0.98)
        assert bar["met"] == (bar["value"] >= bar["bar"])
        assert [one["question"] for one in part["runs"]] == [
            "prompts.jsonl, line 1",
            "prompts.jsonl, line 3",
        ]
    assert "adaptive, 2 questions" in out


def test_bars_of_drafters_notice_a_member_that_is_left_out() -> None:
    drafters = script("drafters")
    alone = {"none": 1.0, "suffix": 1.74, "sam": 1.19, "recycle": 1.41, drafters.MODEL: 1.66}
    for name in drafters.GAINS[:2] + drafters.GAINS[3:]:
        members = drafters.parts_of(name)
        for value, met in ((max(alone[m] for m in members), False), (2.2, True)):
            table = {**alone, name: value}
            rows = [{"drafter": way, "tokens_per_step": each} for way, each in table.items()]
            *others, last = drafters.bars("nodes", rows)
            assert last["name"].startswith(f"{name} by ") and last["met"] is met
            assert all(one["met"] for one in others)
    silent = [{"drafter": way, "tokens_per_step": 1.0} for way in ("none", "self")]
    assert [one["met"] for one in drafters.bars("nodes", silent)] == [False]


@pytest.mark.slow
def test_processors(tmp_path: Path, tiny_model: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"name": f"{task} {i}", "task": task, "text": f"w{i + 4} w7 w8 w9 " * 8})
            + "\n"
            for i, task in enumerate(("summarise", "edit", "chat", "chat"))
        )
    )
    small = "--model", tiny_model, "--prompts", prompts, "--quick", "--tokens", "6"
    alone = "--without", "llama", "--threads", "1", "--dtype", "float32"
    out, record = run("processors.py", tmp_path, *small, *alone)
    assert record["identical"] and record["texts"]["compared"] > 8
    assert record["level"] and record["commit"] and record["machine"]["processor"]
    names = [line["name"] for line in record["bars"]]
    assert names[0] == "LLM to the first token" and "a step of 16 rows / of 1 row" in names
    assert "copying tasks / no speculation" in names and "copying tasks" in out
    assert "8 requests at once / transformers, continuous" in names
    assert "foresay, default / transformers, prompt lookup" in names
    assert {run["prompt"] for run in record["parts"]["tasks"]["runs"]} == {
        "summarise 0",
        "edit 1",
        "chat 2",
    }


def test_gpu_sampling_in_the_interpreter(tmp_path: Path) -> None:
    # Triton must be imported after its interpreter was asked for.
    _, record = run("gpu_sampling.py", tmp_path, "--cpu-smoke", server=forks.LIGHT)
    assert record["gpu"] == "none" and record["different_uniforms"] == 0
    for dtype in ("float32", "bfloat16"):
        for name in ("sampled", "greedy", "top_50"):
            assert record[dtype][name]["different_tokens"] == 0


def test_gpu_verification_on_the_cpu(tmp_path: Path) -> None:
    _, record = run("gpu_sampling.py", tmp_path, "--verify", "--cpu-smoke", server=forks.LIGHT)
    assert list(record["steps"]) == ["1 x 3"] and len(record["steps"]["1 x 3"]) == 6
    assert all(kind["different"] == 0 for kind in record["steps"]["1 x 3"].values())


@pytest.mark.slow
def test_simulate(tmp_path: Path, tiny_model: Path) -> None:
    small = "--quick", "--count", "2", "--samples", "2", "--tokens", "12", "--rounds", "1"
    own = "--model", tiny_model, "--dtype", "float32"
    out, record = run("simulate.py", tmp_path, *small, *own)
    rows = record["engine"]["rows"]
    assert len(rows) == 12 and all(row["identical"] and row["predicted"] > 0 for row in rows)
    for row in rows:  # what does not depend on time is predicted exactly
        if not row["config"].startswith("adaptive"):
            assert row["predicted_steps"] == row["steps"], row["config"]
    plans = record["published"]["sets"]["countdown"]["plans"]
    assert [plan["plan"] for plan in plans][:2] == ["none", "threshold:none:file"]
    assert len({plan["tokens"] for plan in plans}) == 1
    assert "held out: mean error" in out
