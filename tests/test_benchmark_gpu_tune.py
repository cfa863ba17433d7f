"""benchmarks/gpu_tune.py without a GPU: it measures, goes on after an error, and notices bits."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import forks
from foresay.models.gpu.tuning import Tuning
from models.on_gpu import needs_kernels
from scripts import BENCHMARKS, script

pytestmark = needs_kernels


@pytest.mark.slow
def test_tiny_steps_and_a_choice_that_fails(tmp_path: Path) -> None:
    into = tmp_path / "tune.json"
    command = [BENCHMARKS / "gpu_tune.py", "--smoke", "--into", into]
    done = forks.run(*command, cwd=tmp_path, server=forks.LIGHT)
    assert done.returncode == 0, done.stderr
    found = json.loads(into.read_text())
    ((_, case),) = found["cases"].items()
    assert [*case] == ["defaults", "deep", "deep, chunk 1", "broken"]
    assert "expected 1, 2, 4, 8 or 16" in case.pop("broken")["error"]
    assert all(line["good"] and line["ms"] > 0 for line in case.values())
    assert case["defaults"]["ratio"] == 1 and case["deep"]["far"] == 0
    assert {*found["best"]["tiny"]} == {*found["together"]["tiny 1x70 +1"]}
    assert "failed" in done.stdout and "tiny, best attention" in done.stdout


def test_other_bits_are_noticed() -> None:
    """Of a choice that should have the same; where others are allowed, only what is far is bad."""
    tune = script("gpu_tune")
    target: Any = SimpleNamespace(decoder=SimpleNamespace(tuning=None))
    changes = {"known": 1e-6, "lean": 1e-6, "chunk": 0.5}

    def step() -> torch.Tensor:
        its = target.decoder.tuning
        if its.early:
            raise RuntimeError("it does not compile")
        here = {"known": its.known, "lean": its.lean, "chunk": its.chunk != 2}
        return torch.ones(4) + sum(far for name, far in changes.items() if here[name])

    choices = {
        "defaults": Tuning(),
        "flat": Tuning(flat=True),
        "known": Tuning(known=True),
        "lean": Tuning(lean=True),
        "chunk": Tuning(chunk=1),
        "early": Tuning(early=True),
    }
    found = tune.tried(target, step, choices, "cpu")
    assert found.pop("early") == {"error": "RuntimeError: it does not compile"}
    good = {name: one["good"] for name, one in found.items()}
    assert good == {"defaults": True, "flat": True, "known": False, "lean": True, "chunk": False}


def test_the_best_of_each_kind_are_tried_together() -> None:
    choices = script("gpu_choices")

    def line(ratio: float, good: bool = True) -> dict[str, Any]:
        return {"ratio": ratio, "good": good}

    one = {
        "defaults": line(1.0),
        "deep": line(0.8),
        "known": line(0.7, good=False),
        "deep, lean": line(0.79),
        "deep, chunk 1": line(0.81),
        "early": {"error": "no"},
        "attend 8": line(0.9),
        "attend 16": line(1.1),
        "rotate 5": line(0.999),
        "all 5+8+4+4+5": line(0.85),
    }
    other = one | {"deep, lean": line(0.78), "attend 16": line(0.8), "early": line(0.5)}
    found = choices.together({"a": one, "b": other})
    attention = Tuning(known=True, flat=True, lean=True)
    assert found["defaults"] == Tuning() and found["best attention"] == attention
    mb = choices.MB
    assert found["best by kernel"] == Tuning(known=True, flat=True, lean=True, attend=8 * mb)
    assert found["best as a set"].first_norm == 4 * mb
    assert choices.together({}) == dict.fromkeys(found, Tuning())


def test_a_step_is_measured_with_what_may_change_it() -> None:
    choices = script("gpu_choices")
    every = choices.candidates(False)
    assert len({*every.values()}) == len(every)
    counts = {case.name: choices.for_case(case, every) for case in choices.CASES}
    tiles = {name for name, its in every.items() if its.groups == 2}
    fewer = {name for name, some in counts.items() if not tiles & some.keys()}
    assert {*counts} - fewer == {"1.5B 1x1024 +16", "8B 1x32768 +16"}
    assert "attend 8" in counts["8B 1x32768"] and "attend 8" not in counts["8B 128x2048"]
    assert "all 5+8+4+4+5" in counts["8B 128x2048"]
