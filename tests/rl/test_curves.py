"""The curves of the long form, from records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from foresay.rl.training import TrainingStep

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_curves.py"
DRAW = "import sys; sys.path.insert(0, sys.argv[1]); import rl_curves, pathlib; sys.exit("
DRAW += "rl_curves.draw_curves(pathlib.Path(sys.argv[2]), as_json=True))"


def record(step: int, passes: int, seconds: float) -> TrainingStep:
    return TrainingStep(
        step,
        reward=0.1 * step,
        rounds=1,
        loss=[0.5],
        logprob={"mean": 1e-7, "max": 1e-6},
        tokens_digest=f"tokens {step}",
        parameters=f"parameters {step}",
        passes=passes,
        drafted=10,
        accepted=5,
        tail=0.5,
        seconds={"rollout": seconds, "train": 1.0, "other": 0.0},
    )


def draw(folder: Path) -> tuple[int, Any]:
    command = [sys.executable, "-c", DRAW, str(EXAMPLE.parent), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def test_curves_and_their_summary(tmp_path: Path) -> None:
    assert draw(tmp_path) == (2, f"{tmp_path} has no records; expected seed-N-on.jsonl\n")
    for way, passes, seconds, steps in (("off", 30, 3.0, 4), ("on", 10, 1.5, 5)):
        lines = [
            json.dumps({"seed": 1, "drafts": way, **record(n, passes, seconds).as_dict()})
            for n in range(steps)
        ]
        (tmp_path / f"seed-1-{way}.jsonl").write_text("\n".join(lines) + "\n")
    status, found = draw(tmp_path)
    assert status == 0 and found["same"]
    [seed] = found["seeds"]
    assert (seed["steps"], seed["fewer_passes"], seed["less_rollout_time"]) == (4, 3.0, 2.0)
    assert seed["less_step_time"] == 1.6 and seed["acceptance"] == 0.5
    names = {file.stem for file in tmp_path.glob("*.svg")}
    assert {"reward", "length", "acceptance", "tokens_per_step", "time", "tail"} <= names
    assert "drafts off" in (tmp_path / "reward.svg").read_text()

    text = (tmp_path / "seed-1-on.jsonl").read_text().replace("parameters 2", "parameters 3")
    (tmp_path / "seed-1-on.jsonl").write_text(text)
    status, found = draw(tmp_path)
    assert status == 1 and not found["same"]
