"""The commands that load a model: their device."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from foresay import doctor
from foresay.models import device
from tiny import call, save_model

COMMANDS: dict[str, list[object]] = {
    "generate": ["generate", "Hello"],
    "generate, a drafter of its own": ["generate", "Hello", "--corpus", "/nowhere"],
    "serve": ["serve", "--port", 0],
    "demo": ["demo"],
    "bench drafters": ["bench", "drafters"],
    "bench edge": ["bench", "edge"],
    "simulate": ["simulate", "--measure", "/nowhere", "--out", "/nowhere.json"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_is_refused_before_the_long_work(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(each).replace("/nowhere", str(tmp_path / "nowhere")) for each in COMMANDS[command]]
    done = call(*given, "--device", "gpu")
    assert done.status and "device is 'gpu'; expected auto, cpu, cuda or cuda:N" in done.err
    monkeypatch.setattr(device, "cuda_devices", lambda: device.CudaDevices(0, "there is none"))
    done = call(*given, "--device", "cuda")
    assert done.status and "device is 'cuda'; there is none; expected cpu" in done.err
    monkeypatch.setattr(device, "cuda_devices", lambda: device.CudaDevices(1, None))
    done = call(*given, "--device", "cuda:1")
    assert done.status and "this machine has 1 CUDA device" in done.err


def test_results_say_the_device(tmp_path: Path) -> None:
    save_model(tmp_path)
    tiny: list[object] = ["--model", tmp_path, "--max-tokens", 2, "--json"]
    bench = ["bench", "drafters", "--per-category", 1, "--drafters", "none", *tiny]
    for command in (["demo", *tiny], bench):
        done = call(*command, "--device", "cpu")
        assert json.loads(done.out)["device"] == "cpu", done.err


class _Found(types.SimpleNamespace):
    name, total_memory = "NVIDIA H200", 140 << 30


@pytest.mark.parametrize(
    ("driver", "devices", "used", "said"),
    [
        (False, (0, None), "cpu", "cpu; no driver of NVIDIA is installed"),
        (True, (0, "torch is built so"), "cpu", "cpu; torch is built so"),
        (True, (1, "triton is missing"), "cpu", "cpu; triton is missing, so not on NVIDIA H200 (1"),
        (True, (1, None), "cuda", "cuda: NVIDIA H200 (140 GiB)"),
    ],
)
def test_doctor_says_which_device_is_used(
    driver: bool, devices: Any, used: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "has_driver", lambda: driver)
    monkeypatch.setattr(device, "cuda_devices", lambda: device.CudaDevices(*devices))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: _Found())
    found = doctor.examine()["device"]
    assert found["device"] == used and found["said"].startswith(said)
    assert [gpu["name"] for gpu in found["gpus"]] == ["NVIDIA H200"] * devices[0]
    assert f"device    {said}" in call("doctor").out
