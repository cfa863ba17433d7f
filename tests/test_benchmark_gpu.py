"""benchmarks/gpu.py without a GPU: all parts run on tiny shapes, and notice what is wrong."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import forks
from scripts import BENCHMARKS, script

ALL = ("kernels", "exact", "steps", "answers", "batch", "host", "deterministic", "vllm", "offload")


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with a tokenizer of 50 words and a chat template."""
    from tiny import save_words_model  # torch and transformers, which take seconds

    return save_words_model(tmp_path_factory.mktemp("gpu") / "model")


def run(folder: Path, model: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    own = "--cpu-smoke", "--model", model, "--default-model", model, "--record-dirty"
    command = [BENCHMARKS / "gpu.py", *own, "--record", folder / "record", *arguments]
    # Triton must be imported after its interpreter was asked for.
    done = forks.run(*command, cwd=folder, server=forks.LIGHT)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "record").iterdir()
    assert done.stdout.splitlines()[-1] == f"recorded in {path.name}"
    return done.stdout, json.loads(path.read_text())


def test_kernels_steps_and_offloading(tmp_path: Path, tiny_model: Path) -> None:
    _, record = run(tmp_path, tiny_model, "--only", "kernels,steps,offload")
    assert record["gpu"] == "none" and list(record["parts"]) == ["kernels", "steps", "offload"]
    for name, part in record["parts"].items():
        assert "error" not in part and part["took_seconds"] >= 0, (name, part)
    kernels = record["parts"]["kernels"]
    assert 0 < kernels["accuracy"]["worst"]["torch, float32"] < 1e-5
    assert kernels["bits"][0]["torch"] is not None
    cases = record["parts"]["steps"]["cases"]
    assert [(one["model"], one["nodes"]) for one in cases] == [
        *(("given", 2), ("given", 3)),
        *(("8B", 2), ("8B", 2)),
    ]
    assert all(one["plain_ms"] > 0 and one["ratio"] > 0 for one in cases)
    offload = record["parts"]["offload"]
    assert offload["identical"] and offload["ratio_of_passes"] > 1


@pytest.mark.slow
def test_all_parts(tmp_path: Path, tiny_model: Path) -> None:
    out, record = run(tmp_path, tiny_model)
    assert tuple(record["parts"]) == ALL
    for name, part in record["parts"].items():
        assert "error" not in part and "stopped" not in part, (name, part)
    assert record["parts"]["exact"]["identical"]
    assert not record["parts"]["answers"]["different"] + record["parts"]["batch"]["different"]
    assert {line["case"] for line in record["parts"]["batch"]["cases"]} >= {"2 edits", "3 chats"}
    assert len(record["parts"]["host"]["cases"]) == 4 and "host [" in out
    names = [line["name"] for line in record["bars"]]
    assert "edits, drafts / plain" in names and "model: is_batch_invariant" in names


def test_a_part_without_time_and_one_that_fails_are_recorded(
    tmp_path: Path, tiny_model: Path
) -> None:
    _, record = run(tmp_path, tiny_model, "--only", "exact", "--seconds", "1")
    assert record["parts"]["exact"]["stopped"].startswith("no time was left for ")
    assert [line["met"] for line in record["bars"] if "no time" in line["name"]] == [False]
    gpu, bench = script("gpu"), script("gpu_bench")
    options = SimpleNamespace(model=None, default_model="none", seconds=9, chosen=["one", "two"])
    options = SimpleNamespace(**vars(options), usual=[], quick=True, name="", record=tmp_path)

    def fails(_: object, found: dict[str, Any]) -> None:
        found["half"] = 1
        raise RuntimeError("out of memory")

    parts = {"one": (fails, 5.0), "two": (lambda _, found: found.update(whole=2), 5.0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "PARTS", parts)
        figures = gpu.measure(bench.Bench(options, bench.SMOKE, smoke=True), options)
    assert figures["parts"]["one"]["half"] == 1 and figures["parts"]["two"]["whole"] == 2
    assert figures["parts"]["one"]["error"] == "RuntimeError: out of memory"
    (path,) = tmp_path.glob("*gpu-quick-one-two.json")
    assert json.loads(path.read_text())["parts"].keys() == {"one", "two"}


def test_a_text_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    exact, bars = script("gpu_exact"), script("gpu_bars")
    bench = SimpleNamespace(scale=SimpleNamespace(at_once=4), say=print)
    llm = SimpleNamespace(beside=lambda *drafter: drafter[0])
    asked = [exact.Asked([1, 2], None, leaves) for leaves in (None, None, 3)]

    def answers(wrong: bool) -> Any:
        def in_batches(_: object, side: str, some: list[Any], *__: object, **___: object) -> Any:
            texts = [[5, 6, 7 + (wrong and side == "suffix")] for _ in some]
            pairs = zip(texts, some, strict=True)
            # Who is cancelled ends with the step that was under way.
            return [t[:2] if one.leaves and side == "none" else t for t, one in pairs]

        return in_batches

    for wrong in (False, True):
        monkeypatch.setattr(exact, "in_batches", answers(wrong))
        found = exact._compare(bench, llm, asked)
        places = {(one["way"], one["text"], one["token"]) for one in found["different"]}
        assert places == (
            {(w, at, 2) for w in ("fixed", "adaptive") for at in (0, 1)} if wrong else set()
        )
        lines = bars.exact({"models": {"m": {"is_batch_invariant": True, "T 0": found}}})
        assert [line["met"] for line in lines] == [True, not wrong]


def test_what_a_row_of_a_tree_attends_to() -> None:
    kernels = script("gpu_kernels")
    #  0 - 1 - 2      the last token and its children 1 and 3; 2 below 1
    #    \ 3
    rows, stored, parents = 4, 5, (-1, 0, 1, 0)
    q = torch.zeros(rows, 2, 8)
    text = kernels.Text(q, torch.zeros(stored + rows, 1, 8), torch.zeros(9, 1, 8), parents)
    paths = [{0}, {0, 1}, {0, 1, 2}, {0, 3}]
    for window in (None, 1, 2, 3, 6):
        seen = text.visible(window)
        for row, path in enumerate(paths):
            whole = [*range(stored), *(stored + at for at in sorted(path))]
            wanted = whole if window is None else whole[-window:]
            assert torch.nonzero(seen[row]).flatten().tolist() == wanted, (window, row)


def test_the_reference_is_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, bench = script("gpu_kernels"), script("gpu_bench")
    case = kernels.Case(4, 2, 8, (5, 0), (3, 2), dtype=torch.float64)
    for text in case.texts(torch.device("cpu"), 1):
        given, seen = kernels.reference(text, case), text.visible()
        for row in range(len(text.q)):
            for head in range(4):
                keys, values = text.k[seen[row], head // 2], text.v[seen[row], head // 2]
                weights = [math.exp(float(text.q[row, head] @ key) / math.sqrt(8)) for key in keys]
                wanted = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
                assert torch.allclose(given[row, head], wanted)
    capped = dataclasses.replace(case, softcap=0.5)
    text = case.texts(torch.device("cpu"), 1)[0]
    assert not torch.allclose(kernels.reference(text, capped), kernels.reference(text, case))

    smoke = bench.Bench(SimpleNamespace(), bench.SMOKE, smoke=True)
    for wrong in (0.0, 1e-3):  # a kernel that is a little wrong is found, and one that is not
        monkeypatch.setattr(
            kernels,
            "tree_attention",
            lambda texts, case, wrong=wrong: (
                lambda: [kernels.reference(text, case).float() * (1 + wrong) for text in texts]
            ),
        )
        found = kernels.accuracy(smoke)
        assert found["cases"] == 2 and bool(found["bad"]) == bool(wrong)
        lines = script("gpu_bars").kernels({"accuracy": found})
        assert [line["met"] for line in lines] == [not wrong]


def test_prompts_are_different_and_always_the_same() -> None:
    prompts = script("gpu_prompts")
    edits, chats = prompts.edit_texts(256), prompts.chat_texts(256)
    assert len(set(edits)) == len(set(chats)) == 256
    for text in edits:
        lines = text.split("```")[1].strip("\n").split("\n")
        assert 18 <= len(lines) - 1 <= 60 and lines[1].startswith("def "), text
    assert prompts.edit_texts(256) == edits and prompts.chat_texts(256) == chats
    found = prompts.prompts_of(lambda text: range(len(text)), 4, 900)
    assert all(len(one.tokens) <= 900 for some in found.values() for one in some)
    with pytest.raises(ValueError, match="no prompt of kind 'edit' has at most 3 tokens"):
        prompts.prompts_of(lambda text: range(len(text)), 4, 3)


def test_drafts_of_steps_are_trees_of_that_size() -> None:
    bench = script("gpu_bench")
    assert bench.draft_of(0, 100) is None
    for nodes in (1, 2, 8, 16):
        draft = bench.draft_of(nodes, 100, seed=3)
        assert len(draft) == nodes and max(draft.depths) >= max(1, nodes * 3 // 4)


def test_time_on_the_device_is_counted_once() -> None:
    host = script("gpu_host")
    assert host.union([(10, 20), (15, 30), (40, 50), (42, 44)]) == 30
    phases = {"schedule": 0.1, "draft": 0.1, "forward": 0.5, "verify": 0.2, "commit": 0.1}
    line = host.line_of(phases, {"busy_ms": 0.6, "kernels_ms": 0.5, "copies_ms": 0.1})
    assert line.startswith("host [ssssddddffffffffffffffffffffvvvvvvvvcccc]")
    assert "[####################>>>>................]" in line


def test_bars_notice_what_is_missed() -> None:
    bars = script("gpu_bars")
    case = {"model": "8B", "batch": 8, "context": 16_384, "nodes": 8, "plain_ms": 9.0}
    for ratio, met in ((1.15, True), (1.16, False)):
        lines = bars.steps({"cases": [{**case, "ratio": ratio, "share_of_bound": 0.5}]})
        assert [line["met"] for line in lines] == [None, None, met]
    one_failed = bars.exact({"models": {"m": {"error": "RuntimeError: x"}}})
    assert [line["met"] for line in one_failed] == [False]
    failed = bars.bars({"offload": {"error": "RuntimeError: x"}})
    assert [line["met"] for line in failed] == [False]
    chats = {"different": [], "cases": [{"case": "64 chats", "ratio": 0.97}]}
    assert [line["met"] for line in bars.batch(chats)] == [True, False]
    part = {"cases": [{"requests": 1, "side": "plain", "outside_ms": 0.3, "outside_share": 0.2}]}
    assert [line["met"] for line in bars.host(part)] == [False]
    assert bars.vllm({"requests": 64, "ratio": 0.99})[0]["met"] is False


def test_without_a_gpu_or_a_model_it_ends_before_it_measures(tmp_path: Path) -> None:
    for arguments, said in (
        (["--only", "answers", "--cpu-smoke"], "--model is missing"),
        (["--vllm-ways", "fast", "--cpu-smoke"], "vLLM has no way 'fast'"),
    ):
        command = [BENCHMARKS / "gpu.py", *arguments, "--record-dirty"]
        done = forks.run(*command, cwd=tmp_path, server=forks.LIGHT)
        assert done.returncode == 2 and said in " ".join(done.stderr.split())
