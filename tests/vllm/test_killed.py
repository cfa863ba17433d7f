"""vLLM's engine or its worker is killed in the middle of answers: the client is told so, the next
one answers as without drafts, and the files that the first has left can be gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from foresay.integrations.verl.report import read_versions

HERE = Path(__file__).parent
MODEL = os.environ.get("FORESAY_TEST_MODEL", "")
PROMPTS = [
    "1. red\n2. green\n3. blue\n4. red\n5. green\n6. blue\n7. red\n8.",
    "name,age,city\nAnn,31,Rome\nBob,42,Oslo\nEve,27,Rome\nDan,35,",
]
PLAN = {
    "model": MODEL,
    "dtype": "float32",
    "length": 512,
    "prompts": PROMPTS,
    "params": {"temperature": 0.8, "seed": 5, "ignore_eos": True},
    "tokens": 48,
}


def run(folder: Path, **plan: Any) -> dict[str, Any]:
    folder.mkdir()
    given, taken = folder / "plan.json", folder / "result.json"
    given.write_text(json.dumps(PLAN | plan))
    environ = os.environ | {
        "FORESAY_VLLM_MEASURE": "0",
        "FORESAY_VLLM_STEPS_FILE": str(folder / "steps.jsonl"),
        "FORESAY_VLLM_VERSIONS_FILE": str(folder / "versions.jsonl"),
    }
    command = [sys.executable, str(HERE / "killed.py"), str(given), str(taken)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, check=False, env=environ
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads(taken.read_text())
    return found


def ended(pid: int) -> bool:
    """Within some seconds: a worker has yet to notice that its engine is gone."""
    for _ in range(300):
        if not Path(f"/proc/{pid}").exists():
            return True
        time.sleep(0.1)
    return False


# An engine starts in a minute. CI kills the worker, where the drafter is; with FORESAY_TEST_LONG=1
# the engine's own process is killed first.
KILLED = ["engine", "worker"] if os.environ.get("FORESAY_TEST_LONG") == "1" else ["worker"]


def test_engine_and_worker_are_killed(tmp_path: Path) -> None:
    assert MODEL, "set FORESAY_TEST_MODEL to the folder of the default model"
    plain = run(tmp_path / "plain", method="none", kill=[])
    folder = tmp_path / "killed"
    found = run(folder, method="custom_class", kill=KILLED)

    assert list(found["killed"]) == KILLED
    for whom, killed in found["killed"].items():
        assert killed["name"].startswith("EngineCore")
        assert (killed["status"] == -signal.SIGKILL) == (whom == "engine")
        assert len(killed["errors"]) == 4  # two that it was answering, and two that came afterwards
        for error, said in killed["errors"]:
            assert error == "EngineDeadError" and said.startswith("EngineCore encountered an issue")
        assert killed["seconds"] < 60
        assert ended(killed["engine"]) and ended(killed["worker"])
    assert not found["left"]

    assert [len(text) for text in plain["texts"]] == [48, 48]
    assert found["texts"] == plain["texts"]

    drafted: dict[int, int] = {}
    for line in (folder / "steps.jsonl").read_text().splitlines():
        step = json.loads(line)
        drafted[step["pid"]] = drafted.get(step["pid"], 0) + step["drafted"]
    assert len(drafted) == len(KILLED) + 1 and min(drafted.values()) > 0
    versions = read_versions(folder / "versions.jsonl")  # with half lines between them
    assert [(version.pid, version.version) for version in versions] == [(pid, 0) for pid in drafted]
