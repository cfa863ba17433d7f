"""Weights from the hub: what is fetched, what is shown, and without a network."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from foresay.errors import ModelError
from foresay.models import weights
from foresay.models.weights import hub


def test_the_hub_s_bars_report_bytes_and_show_nothing(
    small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def download(name: str, *, tqdm_class: Any, **options: Any) -> str:
        """Makes bars as the hub's library does: of bytes, and of files."""
        size = tqdm_class(desc="Downloading", total=0, initial=0, unit="B", unit_scale=True)
        size.total = (size.total or 0) + 100
        size.refresh()
        for _ in tqdm_class([1, 2], desc="Fetching 2 files", total=2):
            size.update(50)
        size.set_postfix_str("1 MB/s", refresh=False)
        size.close()
        return str(small)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    seen: list[tuple[str, int, int | None]] = []
    weights.find("org/name", progress=lambda *s: seen.append(s))
    assert seen == [("download", 0, None), ("download", 50, 100), ("download", 100, 100)]
    assert capfd.readouterr().err == ""


def test_nothing_that_could_run_is_fetched(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils._paths import filter_repo_objects

    given: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        given.update(options, name=name)
        return str(small)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert weights.find("org/name", revision="v1") == small
    assert (given["name"], given["revision"], given["cache_dir"]) == ("org/name", "v1", None)
    wanted = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "merges.txt"]
    wanted += ["tokenizer.model", "chat_template.jinja", "model.safetensors.index.json"]
    unwanted = ["pytorch_model.bin", "modeling.py", "m.pt", "onnx/config.json", "README.md"]
    unwanted += ["consolidated.safetensors", "x.gguf", "training_args.bin", "a.pkl"]
    left = filter_repo_objects(
        wanted + unwanted,
        allow_patterns=given["allow_patterns"],
        ignore_patterns=given["ignore_patterns"],
    )
    assert sorted(left) == sorted(wanted)


def test_without_a_network(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    match = r"'org/name' at revision 'v1' could not be fetched.*local folder or a .gguf file"
    with pytest.raises(ModelError, match=match):
        weights.find("org/name", revision="v1", cache=tmp_path)
    # What the hub's library fetched earlier is used.
    kept = tmp_path / "hub" / "models--org--name"
    shutil.copytree(small, kept / "snapshots" / "abc")
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("abc")
    assert hub.fetch_snapshot("org/name", cache=tmp_path / "hub").name == "abc"
    assert weights.find("org/name", cache=tmp_path).name == "abc"
    (kept / "snapshots" / "abc" / "model.safetensors").write_bytes(b"half")
    with pytest.raises(ModelError, match="not downloaded to its end"):
        weights.find("org/name", cache=tmp_path)
