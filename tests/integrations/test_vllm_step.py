"""The benchmark of the vLLM step runs to its end, without vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "vllm_step.py"


def test_ours_alone(tmp_path: Path) -> None:
    trace = tmp_path / "tiny.jsonl"
    lines = [
        {"id": str(i), "group": str(i), "prompt": [i, 5, 6], "output": [5, 6, 7, 8, 20 + i] * 40}
        for i in range(8)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = "--no-peers --rows 4 --contexts 40 --turns 2 --steps 3 --record-dirty --record"
    command = [sys.executable, str(SCRIPT), str(trace), *options.split(), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*-vllm-step.json")
    found = json.loads(path.read_text())
    assert found["bar_us"] == 68 and found["4 x 40"]["foresay"]["us"] > 0
    assert found["4 x 40"]["tokens_per_step"] > 2  # the text repeats
