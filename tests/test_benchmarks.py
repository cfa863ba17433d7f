"""The benchmarks that need no peer run to their end, from any folder."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import forks

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


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
    command = [BENCHMARKS / script, *arguments, "--record", folder / "record"]
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
    _, record = run("ablation.py", tmp_path, trace, "--corpus", trace, "--nodes", "4")
    assert record["trace"] == "tiny" and record["components"]["everything"] > 1
    assert record["budgets"]["1"] <= record["budgets"]["32"]
    assert len(record["sam"]) == 20 and len(record["lengths"]) == 12
    assert record["chains"]["1"] <= record["chains"]["16"]


def test_latency_and_curve(tmp_path: Path, trace: Path) -> None:
    folders = [tmp_path / name for name in ("latency", "curve")]
    for folder in folders:
        folder.mkdir()
    _, record = run("latency.py", folders[0], trace, "--tokens", "300")
    assert record["rows"][0]["steps_p50"] > 0 and "commit" in record
    _, record = run("curve.py", folders[1], trace)
    assert [row[0] for row in record["rows"]] and record["turns"] > 1


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
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path / "model"
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, 50)}
    inner = Tokenizer(WordLevel(words, unk_token="w1"))
    inner.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}w2 {{ m.content }} w3{% endfor %}"
    tokenizer.save_pretrained(folder)
    sizes: dict[str, int] = {
        "vocab_size": 50,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes))  # type: ignore[arg-type]
    model.save_pretrained(folder)
    return folder


def test_engine(tmp_path: Path, tiny_model: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    kinds = ("summarization", "coding", "translation")
    prompts.write_text(
        "".join(
            json.dumps({"question_id": i, "category": kind, "turns": [f"w{i + 4} w7 w8 w9 " * 8]})
            + "\n"
            for i, kind in enumerate(kinds)
        )
    )
    small = "--model", tiny_model, "--prompts", prompts, "--quick", "--tokens", "6"
    out, record = run("engine.py", tmp_path, *small, "--history", "--dtype", "float32")
    assert record["identical"] and sum(record["texts"]["compared"].values()) > 10
    bars = [r for part in record["parts"].values() for r in part["results"] if r["bar"]]
    assert len(bars) == 8 and all(r["times"] > 0 for r in bars)
    assert all(row["argmax_flips"] == 0 for row in record["parts"]["precision"]["compared"])
    assert record["parts"]["acceptance"]["by_position"]
    assert "texts compared" in out


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
    drafters = "--drafters", "suffix,recycle,suffix+recycle"
    out, record = run("drafters.py", tmp_path, *own, *small, *drafters)
    assert record["identical"] and list(record["parts"]) == ["nodes", "adaptive"]
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
        assert bar["measured"] == pytest.approx(ratio, abs=1e-4)
        assert bar["asked"] == (1.07 if name == "nodes" else 0.98)
        assert bar["met"] == (bar["measured"] >= bar["asked"])
        assert [one["question"] for one in part["runs"]] == [
            "prompts.jsonl, line 1",
            "prompts.jsonl, line 3",
        ]
    assert "adaptive, 2 questions" in out


def test_bars_of_drafters_notice_a_member_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    script: Any = SimpleNamespace(**runpy.run_path(str(BENCHMARKS / "drafters.py")))
    alone = {"none": 1.0, "suffix": 1.74, "sam": 1.19, "recycle": 1.41, script.MODEL: 1.66}
    for name in script.GAINS[:2] + script.GAINS[3:]:
        members = script.parts_of(name)
        for value, met in ((max(alone[m] for m in members), False), (2.2, True)):
            table = {**alone, name: value}
            rows = [{"drafter": way, "tokens_per_step": each} for way, each in table.items()]
            *others, last = script.bars("nodes", rows)
            assert last["bar"].startswith(f"{name} by ") and last["met"] is met
            assert all(one["met"] for one in others)
    silent = [{"drafter": way, "tokens_per_step": 1.0} for way in ("none", "self")]
    assert [one["met"] for one in script.bars("nodes", silent)] == [False]


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
    alone = "--without", "llama,transformers", "--threads", "1", "--dtype", "float32"
    out, record = run("processors.py", tmp_path, *small, *alone)
    assert record["identical"] and record["texts"]["compared"] > 8
    assert record["level"] and record["commit"] and record["machine"]["processor"]
    names = [line["name"] for line in record["bars"]]
    assert names[0] == "LLM to the first token" and "a step of 16 rows / of 1 row" in names
    assert "copying tasks / no speculation" in names and "copying tasks" in out
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
