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

ALL = ("kernels", "exact", "steps", "deterministic", "answers", "batch", "vllm", "offload", "host")


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


def test_kernels_steps_offloading_and_the_host(tmp_path: Path, tiny_model: Path) -> None:
    _, record = run(tmp_path, tiny_model, "--only", "kernels,steps,offload,host")
    assert record["gpu"] == "none" and [*record["parts"]] == ["kernels", "steps", "offload", "host"]
    for name, part in record["parts"].items():
        assert "error" not in part and part["took_seconds"] >= 0, (name, part)
    kernels = record["parts"]["kernels"]
    assert 0 < kernels["accuracy"]["worst"]["torch, float32"] < 1e-5
    (time,) = kernels["attention"]
    assert 0 < time["far"] < 1e-5 and 0 < time["far_sdpa"] < 1e-5
    assert min(time["sdpa_heads_us"], time["sdpa_rows_us"], time["sdpa_plain_us"]) > 0
    cases = record["parts"]["steps"]["cases"]
    assert [(one["model"], one["nodes"]) for one in cases] == [
        *(("given", 2), ("given", 3)),
        *(("8B", 2), ("8B", 2)),
    ]
    assert all(one["plain_ms"] > 0 and one["ratio"] > 0 for one in cases)
    offload = record["parts"]["offload"]
    assert offload["identical"] and offload["ratio_of_passes"] > 1
    host = record["parts"]["host"]["cases"]
    assert [(one["requests"], one["side"]) for one in host] == [(2, "plain"), (2, "drafts")]
    for one in host:
        profiled, timed = one["profiled"], one["timed"]
        assert profiled["steps"] == timed["steps"] == 3
        assert one["side"] == "drafts" or profiled["tokens_per_step"] == 1
        assert 0 < profiled["busy_ms"] <= profiled["step_ms"]
        assert one["outside_ms"] == pytest.approx(
            profiled["step_ms"] - profiled["busy_ms"], abs=1e-3
        )
        off = timed["step_ms"] - profiled["busy_ms"]
        assert one["outside_ms_profiler_off"] == pytest.approx(off, abs=1e-3)
        assert 0 < one["median_outside_share"] < 1 and "device [" in one["time_line"]


@pytest.mark.slow
def test_all_parts(tmp_path: Path, tiny_model: Path) -> None:
    out, record = run(tmp_path, tiny_model)
    assert tuple(record["parts"]) == ALL
    for name, part in record["parts"].items():
        assert "error" not in part and "stopped" not in part, (name, part)
    assert record["parts"]["exact"]["identical"]
    assert not record["parts"]["answers"]["different"] + record["parts"]["batch"]["different"]
    assert {line["case"] for line in record["parts"]["batch"]["cases"]} >= {"2 edits", "3 chats"}
    assert "host [" in out
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
    options.into = None

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


def test_a_record_is_added_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu, bench, harness = script("gpu"), script("gpu_bench"), script("harness")
    path = tmp_path / "whole.json"
    options = SimpleNamespace(model=None, default_model="none", seconds=9, into=path, quick=True)

    def run(count: int, *chosen: str) -> Any:
        options.chosen = list(chosen)
        parts = {
            name: (lambda _, found: found.update(count=count), 1.0) for name in ("one", "two", "x")
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gpu, "PARTS", parts)
            gpu.measure(bench.Bench(options, bench.SMOKE, smoke=True), options)
        return json.loads(path.read_text())

    assert run(1, "one", "two")["parts"].keys() == {"one", "two"}
    record = run(2, "two", "x")
    counts = {name: part["count"] for name, part in record["parts"].items()}
    assert counts == {"one": 1, "two": 2, "x": 2}
    assert [one["parts"] for one in record["runs"]] == [["one", "two"], ["two", "x"]]

    path.write_text(json.dumps(record | {"commit": "another"}))
    arguments = ["gpu.py", "--cpu-smoke", "--into", str(path), "--record-dirty", "--only", "steps"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("sys.argv", arguments)
        patch.setattr(harness, "commit", lambda: "this")
        patch.setattr(gpu, "SMOKE", True)
        gpu.main()
    said = " ".join(capsys.readouterr().err.split())
    assert "whole.json is of commit another; expected this" in said


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
        found: dict[str, Any] = {"cases": 0, "worst": {}, "bad": []}
        kernels.accuracy(smoke, found)
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
    host, now = script("gpu_host"), 1_800_000_000_000_000_000
    spans = [(now + a, now + b) for a, b in [(10, 20), (40, 50), (15, 30), (42, 44)]]
    assert host.union(spans) == 30 and host.union([]) == 0
    times = [now + at for at in (0, 12, 30, 35, 45, 60)]
    assert host.busy_until(spans, times).tolist() == [0, 2, 20, 20, 25, 30]
    phases = {"schedule": 0.1, "draft": 0.1, "forward": 0.5, "verify": 0.2, "commit": 0.1}
    step = now + 1000, now + 1400
    kernels, copies = [(step[0] + 100, step[0] + 300)], [(step[0] + 305, step[0] + 309)]
    line = host.time_line(phases, step, kernels, copies)
    assert line.startswith("host [ssssddddffffffffffffffffffffvvvvvvvvcccc]")
    assert line.endswith(f"[{10 * '.'}{20 * '#'}>{9 * '.'}]")


@pytest.mark.parametrize("ahead", [False, True])
def test_outside_of_the_device_is_what_it_does_not_work(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """A device that works 6 of each 10 ns, for this step or for what the step before launched."""
    host, now = script("gpu_host"), 1_800_000_000_000_000_000
    marks = [now + 10 * at for at in range(5)]
    window = host.Window(marks, marks[-1] + 6 * ahead, 4, {"forward": 1.0})
    begins = [mark + (10 if ahead else 2) for mark in marks[:4]]

    class Event:
        def __init__(self, begin: int, kind: str, name: str) -> None:
            self.begin, self.kind, self.called = begin, kind, name

        device_type = property(lambda self: lambda: self.kind)
        start_ns = property(lambda self: lambda: self.begin)
        end_ns = property(lambda self: lambda: self.begin + 6)
        name = property(lambda self: lambda: self.called)

    events = [Event(begin, "device", "attend") for begin in begins]
    events += [Event(mark, "host", "cudaGraphLaunch") for mark in marks[:4]]
    monkeypatch.setattr(host, "_device_type", lambda _: "device")
    monkeypatch.setattr(host, "_window", lambda *_, **__: (window, events))
    line: dict[str, Any] = {"requests": 1, "side": "plain", "timed": {"step_ms": 9e-6}}
    monkeypatch.setattr(host, "round", lambda value, *_: value, raising=False)
    monkeypatch.setattr(host, "time_line", lambda *_: "")
    host._profiled(None, line)
    whole = 46 if ahead else 40
    assert line["outside_ms"] == pytest.approx((whole - 24) / 4 * 1e-6)
    assert line["outside_ms_profiler_off"] == pytest.approx(3e-6)
    assert line["median_outside_ms"] == pytest.approx(4e-6)
    assert line["median_outside_share"] == pytest.approx(0.4)
    profiled = line["profiled"]
    assert profiled["launches"] == profiled["graphs_launched"] == 1 and not profiled["graphs_made"]
    for event in events:
        event.begin += 10**12
    host._profiled(None, line)
    assert "another one" in line["clock"]


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
    one = {"side": "plain", "outside_ms": 0.3, "outside_share": 0.2, "outside_ms_profiler_off": 0.1}
    for requests, wanted in ((1, [False, None, None]), (128, [None, False, None])):
        lines = bars.host({"cases": [{"requests": requests, **one}]})
        assert [line["met"] for line in lines] == wanted
    assert [line["met"] for line in bars.vllm({"plain": {"error": "WorkerError: x"}})] == [False]
    assert bars.vllm({"requests": 64, "ratio": 0.99})[0]["met"] is False


def test_without_a_gpu_or_a_model_it_ends_before_it_measures(tmp_path: Path) -> None:
    for arguments, said in (
        (["--only", "answers", "--cpu-smoke"], "--model is missing"),
        (["--vllm-ways", "fast", "--cpu-smoke"], "vLLM has no way 'fast'"),
    ):
        command = [BENCHMARKS / "gpu.py", *arguments, "--record-dirty"]
        done = forks.run(*command, cwd=tmp_path, server=forks.LIGHT)
        assert done.returncode == 2 and said in " ".join(done.stderr.split())
