"""The benchmarks that need no peer run to their end, from any folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


def run(script: str, folder: Path, *arguments: str | Path) -> tuple[str, dict[str, Any]]:
    """Run a script with `folder` as the current one; what it printed and recorded."""
    command = [sys.executable, BENCHMARKS / script, *arguments, "--record", folder / "record"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
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
    assert len(record["sam"]) == 20


def test_sampling(tmp_path: Path) -> None:
    small = "--requests", "3", "--drafts", "2", "--vocabulary", "500"
    _, record = run("sampling.py", tmp_path, *small)
    assert {line["rule"] for line in record["batch"]} == {
        "match, chosen",
        "rejection, chosen",
        "rejection, drawn",
    }
    assert all(ms > 0 for ms in record["row_ms"].values())


def test_gpu_sampling_in_the_interpreter(tmp_path: Path) -> None:
    _, record = run("gpu_sampling.py", tmp_path, "--cpu-smoke")
    assert record["gpu"] == "none" and record["different_uniforms"] == 0
    for dtype in ("float32", "bfloat16"):
        for name in ("sampled", "greedy", "top_50"):
            assert record[dtype][name]["different_tokens"] == 0
