"""benchmarks/gpu_tune_products.py without a GPU: it finds what is fastest, and goes on where a
shape does not work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import forks
from foresay.models.gpu.product_shapes import Shape
from models.on_gpu import CUDA, needs_kernels
from scripts import BENCHMARKS, script


def test_all_of_it_tiny(tmp_path: Path) -> None:
    path = tmp_path / "products.json"
    command = [BENCHMARKS / "gpu_tune_products.py", "--smoke", "--record-dirty", "--into", path]
    # Triton must be imported after its interpreter was asked for.
    done = forks.run(*command, cwd=tmp_path, server=forks.LIGHT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "recorded in products.json"
    assert "FAILED" not in done.stdout
    qkv, gated = json.loads(path.read_text())["kinds"]
    assert [one["rows"] for one in qkv["best"]] == [16, 40]
    assert [one["rows"] for one in gated["best"]] == [40]
    for kind in (qkv, gated):
        for line, one in zip(kind["lines"], kind["best"], strict=True):
            times = {name: each["us"] for name, each in line["candidates"].items()}
            assert len(times) > 1 and one["us"] == min(times.values()) == times[one["shape"]]
            assert one["gain"] >= 1 and one["cublas_us"] > 0


@needs_kernels
@pytest.mark.skipif(CUDA, reason="what is patched is for the interpreter")
def test_a_shape_that_fails_or_has_other_bits_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tune, shapes = script("gpu_tune_products"), script("gpu_product_shapes")
    usual, broken = Shape(64, (16, 0), 64, 4, 2), Shape(24, (16, 0), 64, 4, 2)
    other, late = Shape(64, (16, 0), 32, 4, 2), Shape(128, (16, 0), 64, 4, 2)
    for name, value in {"SMOKE": True, "DTYPE": torch.float32, "DEVICE": "cpu"}.items():
        monkeypatch.setattr(tune, name, value)
    monkeypatch.setattr(tune, "candidates", lambda *_: [usual, broken, other, late])
    found = iter([True, False])  # the broken one has nothing to compare
    monkeypatch.setattr(tune, "same", lambda *_: next(found))
    kind = shapes.Kind("a", 128, (48,), (1,), rows=(16,))
    missing = {shapes.kernel_of(kind, 16, late): "it took too long"}
    (line,) = tune.measure(kind, missing, float("inf"))
    each = line["candidates"]
    assert each[shapes.tell(usual)].keys() == {"us"}
    assert "power of 2" in each[shapes.tell(broken)]["error"]
    assert each[shapes.tell(other)] == {"error": "ValueError: it has other bits"}
    assert each[shapes.tell(late)] == {"error": "RuntimeError: it took too long"}
    assert tune.measure(kind, missing, 0) == []
    kinds = [{"name": "a", "gated": False, "lines": [line], **tune.chosen([line])}]
    tune.show({"kinds": kinds, "together": tune.together(kinds)})
    assert capsys.readouterr().out.count("FAILED with [16] rows") == 3


def test_parts_are_chosen_for_all_rows_together() -> None:
    tune = script("gpu_tune_products")

    def line(rows: int, part: int, usual: float, best: float, read: float) -> dict[str, Any]:
        times = {"usual": {"us": usual}, "wide": {"us": best}, "broken": {"error": "x"}}
        limits = dict.fromkeys(("bytes_us", "flops_us"), 1.0) | {"read_us": read}
        return {"rows": rows, "part": part, "candidates": times, "cublas_us": 8.0} | limits

    lines = [line(16, 512, 10, 12, 0), line(16, 128, 9, 9, 4)]
    lines += [line(256, 512, 40, 38, 2), line(256, 128, 60, 16, 4)]
    found = tune.chosen(lines)
    assert found["part"] == 128 and found["means"] == {512: 1.414, 128: 1.14}
    assert [(one["rows"], one["shape"], one["gain"]) for one in found["best"]] == [
        (16, "usual", round(10 / 9, 3)),
        (256, "wide", 2.5),
    ]
    lines[3]["candidates"] = {
        "usual": {"us": 20.0},
        "wide": {"us": 16.0},
        "wide copied": {"us": 15},
    }
    kinds = [{"gated": False, "part": 128, "lines": [one]} for one in lines[1::2]]
    kinds += [
        {"gated": False, "part": 128, "lines": [{**lines[3], "candidates": {"wide": {"us": 9}}}]}
    ]
    few, many = tune.together(kinds)
    assert few["rows"] == 16 and few["means"] == {"usual": 1.0, "wide": 1.0}
    assert many["rows"] == 256 and many["means"] == {"wide copied": 1.0, "wide": 1.033}
    assert tune.chosen([]) == {"means": {}, "part": None, "best": []}


def test_what_is_tried_fits_into_the_device() -> None:
    """The usual shape comes first, every kind has wide ones for many rows, all steps are whole."""
    shapes = script("gpu_product_shapes")
    kernels = shapes.kernels_of(shapes.KINDS)
    assert len(kernels) == len(set(kernels)) < 800
    for kind in shapes.KINDS:
        weights = kind.weights(torch.empty(sum(kind.outputs), kind.inputs, device="meta"))
        for part in kind.parts_of(weights):
            for rows in kind.rows:
                first, *others = shapes.candidates(kind, rows, part, torch.bfloat16)
                assert first.kernel == "plain" and len({shapes.tell(shape) for shape in others}) > 1
                assert all(part % shape.step == 0 for shape in (first, *others))
                assert all(shape.outputs >= 64 or kind.gated for shape in others)
