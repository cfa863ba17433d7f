"""Wrong options of the commands are refused at once, by the names that a user typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forks
from tiny import call

_RUN = """
import json, sys
sys.modules["torch"] = None  # whoever imports it fails
from foresay.cli import run
for arguments in json.load(sys.stdin):
    sys.argv = ["foresay", *arguments]
    try:
        run()
    except SystemExit as end:
        assert end.code == 1, end.code
    else:
        raise AssertionError(arguments)
"""

_DRAFTERS = ["bench", "drafters"]


def test_wrong_options_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    corpus = tmp_path / "answers.jsonl"
    corpus.write_text('{"id": "1", "group": "1", "prompt": [1], "output": [2]}\n')
    (tmp_path / "file").touch()
    out = ["--corpus", str(corpus), "-o", str(tmp_path / "out")]
    model, eagle = ["train", "model", *out], ["train", "eagle", *out]
    boost = ["train", "boost", *out, "--model", str(tmp_path / "none")]
    write = ["train", "write", "-o", str(tmp_path / "a.jsonl.gz")]
    refused = [
        ([*model, "--held-out", "0.9"], "--held-out is 0.9; expected at most 0.5"),
        ([*model, "--learning-rate", "0"], "--learning-rate is 0.0; expected a number above 0"),
        ([*model, "--hidden", "100"], "--hidden is 100 with 4 heads; expected a multiple of 128"),
        ([*model, "--device", "gpu"], "--device is 'gpu'; expected cpu, cuda or cuda:N"),
        ([*model, "-o", str(tmp_path / "file")], "which is a file; expected a folder"),
        ([*model, "--corpus", str(tmp_path / "none")], "none cannot be read"),
        ([*eagle, "--intermediate", "0"], "--intermediate is 0; expected a whole number from 1"),
        ([*eagle, "--intermediate", "10000000"], "--intermediate is 10000000; expected at most"),
        ([*eagle, "--steps", "1000"], "--steps is 1000; expected at most 64"),
        ([*model, "--layers", "1000000000"], "--layers is 1000000000; expected at most 4096"),
        ([*eagle, "--seed", "-4"], "--seed is -4; expected a whole number from 0 on"),
        ([*boost, "--covered", "2"], "--covered is 2.0; expected a number above 0, at most 1"),
        (boost, "there is no folder"),
        (write, "expected a file of them (--prompts), or some to invent (--invented)"),
        ([*write, "--invented", "1", "--temperature", "20"], "--temperature is [20.0]; expected"),
        ([*write, "--invented", "-1"], "--invented is -1; expected a whole number from 0 on"),
        ([*_DRAFTERS, "--nodes", "0"], "--nodes is 0; expected 1 to"),
        ([*_DRAFTERS, "--per-category", "0"], "--per-category is 0; expected 1 or more"),
        ([*_DRAFTERS, "--max-tokens", "0"], "--max-tokens is 0; expected a whole number from 1"),
        ([*_DRAFTERS, "--temperature", "-1"], "--temperature is -1.0; expected 0 (greedy)"),
    ]
    given = json.dumps([arguments for arguments, _ in refused])
    done = forks.run("-c", _RUN, input=given, server=forks.LIGHT)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len(said) == len(refused), said
    for line, (arguments, sentence) in zip(said, refused, strict=True):
        assert line.startswith("foresay: ") and sentence in line, (arguments, line)


@pytest.mark.parametrize("drafter", ["eagle:./none", "suffix+model:./none", "worker:model:./none"])
def test_drafters_without_files_are_refused_before_a_model_is_loaded(
    drafter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("bench", "drafters", "--drafters", drafter)
    assert done.status == 1 and "none'" in done.complaints
    assert "loading the libraries" not in done.err


def test_what_only_the_model_tells_is_named_so_too(
    folder: Path, corpus: Path, tmp_path: Path
) -> None:
    shared = ["--target", folder, "--corpus", corpus, "-o", tmp_path / "out"]
    done = call("train", "eagle", *shared, "--layer", "9")
    assert done.complaints == "foresay: --layer is [9]; expected numbers from 0 to 1\n"
    done = call("train", "model", *shared, "--hidden", "64", "--heads", "1")
    assert done.complaints == "foresay: --hidden is 64; expected at most 32, the target's\n"
