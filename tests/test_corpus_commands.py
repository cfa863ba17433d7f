"""Corpus files from the shell."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

import forks
from foresay import corpus
from trace_files import RECORDS, good_trace, names, write_trace


def shell(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forks.run("-m", "foresay", *arguments, server=forks.LIGHT)


def test_the_commands(tmp_path: Path) -> None:
    trace, out, tokenizer = tmp_path / "t.jsonl.gz", tmp_path / "index", tmp_path / "tokenizer.json"
    good_trace(trace)
    tokenizer.write_text("words")
    done = shell("corpus", "build", trace, "-o", out, "--tokenizer", tokenizer, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == corpus.inspect(out)
    assert shell("corpus", "inspect", out, "--json").stdout == done.stdout
    text = shell("corpus", "inspect", out).stdout
    assert hashlib.sha256(b"words").hexdigest() in text and "bytes per token" in text
    done = shell("corpus", "verify", out, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"file": str(out), "ok": True})
    done = shell("corpus", "build", trace, trace, "-o", out, "--field", "output")
    assert (done.returncode, corpus.inspect(out)["tokens"]) == (0, 12)
    assert "not bound to a tokenizer" in done.stdout


def test_replay_refuses_another_tokenizer(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.jsonl", [json.dumps(RECORDS[0])])
    corpus.build([trace], tmp_path / "index", tokenizer_hash=corpus.tokenizer_hash_of(b"words"))
    (tmp_path / "mine").write_text("words")
    (tmp_path / "other").write_text("letters")
    for drafter in ("suffix", "sam", "corpus", "merge"):
        replay = ("replay", trace, "--drafter", drafter, "--corpus", tmp_path / "index")
        done = shell(*replay, "--share", "all", "--tokenizer", tmp_path / "mine")
        assert (done.returncode, done.stderr) == (0, "")
        done = shell(*replay, "--tokenizer", tmp_path / "other")
        assert done.returncode == 1 and "was built with the tokenizer" in done.stderr
    done = shell("replay", trace, "--tokenizer", tmp_path / "mine")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "--corpus" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["build", "missing.jsonl", "-o", "index"], "missing.jsonl cannot be read: No such file"),
        (
            ["build", "t.jsonl", "-o", "no/such/index"],
            "no/such' is not a folder; expected",
        ),
        (["build", "t.jsonl", "-o", "index", "--vocabulary", "4"], "token 4; expected 0 to 3"),
        (
            ["build", "t.jsonl", "-o", "index", "--vocabulary", "-4"],
            "expected a whole number from 1 to 16777216",
        ),
        (["build", "t.jsonl", "-o", "index", "--tokenizer", "x.json"], "x.json: No such file"),
        (["build", "t.npy", "-o", "index"], "t.npy cannot be read: No such file"),
        (["inspect", "missing"], "missing"),
        (
            ["verify", "t.jsonl"],
            "'t.jsonl' is no corpus file; expected one that `foresay corpus build`",
        ),
    ],
)
def test_the_commands_refuse_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    good_trace(Path("t.jsonl"))
    done = shell("corpus", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("foresay: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert names(tmp_path) == ["t.jsonl"]


def test_a_bar_on_a_terminal_only(tmp_path: Path) -> None:
    trace = good_trace(tmp_path / "t.jsonl")
    ours, theirs = pty.openpty()
    with forks.start(
        *("-m", "foresay", "corpus", "build", trace, "-o", tmp_path / "index"),
        server=forks.LIGHT,
        environ={"TERM": "xterm"},
        streams=(None, None, theirs),
    ) as process:
        out, _ = process.communicate()
    os.close(theirs)
    shown = os.read(ours, 1 << 16)
    os.close(ours)
    assert process.returncode == 0 and "\x1b" not in out
    assert b"write" in shown and b"\x1b" in shown
