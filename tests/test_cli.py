"""The command line as its users meet it: a process, its output and its exit status.

The processes are forked from one that has imported the command line already.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import foresay
import forks
from foresay import doctor

RECORDED = Path(__file__).parent / "recorded.jsonl.gz"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forks.run("-m", "foresay", *arguments, server=forks.LIGHT)


def ok(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout  # plain text off a terminal
    return done.stdout


def refused(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


FIELDS = [
    "tokens_per_step",
    "drafted_per_step",
    "steps",
    "tokens",
    "requests",
    "propose_us_per_request",
    "observe_us_per_token",
    "acceptance_by_depth",
    "bytes_per_token",
]


def test_replay_json() -> None:
    out = json.loads(ok("replay", RECORDED, "--drafter", "ngram", "--budget", 8, "--json"))
    assert list(out) == FIELDS
    assert out["tokens_per_step"] == out["tokens"] / out["steps"] > 1.5
    assert out["requests"] == 52
    assert len(out["acceptance_by_depth"]) == 8


def test_replay_is_deterministic() -> None:
    options = ("--share", "all", "--lockstep", 8, "--order", "stagger", "--json")
    first, second = (json.loads(ok("replay", RECORDED, *options)) for _ in range(2))
    timed = {"propose_us_per_request", "observe_us_per_token"}
    assert {k: v for k, v in first.items() if k not in timed} == {
        k: v for k, v in second.items() if k not in timed
    }


@pytest.mark.parametrize("drafter", ["suffix", "sam", "ngram", "merge"])
def test_replay_every_drafter(drafter: str) -> None:
    assert (
        json.loads(ok("replay", RECORDED, "--drafter", drafter, "--json"))["tokens_per_step"] > 1.3
    )


def test_replay_text_curve_and_plot(tmp_path: Path) -> None:
    csv, svg = tmp_path / "c.csv", tmp_path / "c.svg"
    text = ok("replay", RECORDED, "--drafter", "ngram", "--curve", csv, "--plot", svg)
    assert "acceptance rate" in text and "0-1000" in text
    assert csv.read_text().startswith("position_from,")
    assert svg.read_text().startswith("<svg")


def test_chain_and_sharing_change_the_numbers() -> None:
    base = ("replay", RECORDED, "--budget", 8, "--json")
    alone = json.loads(ok(*base))["tokens_per_step"]
    assert json.loads(ok(*base, "--share", "all"))["tokens_per_step"] > alone
    assert json.loads(ok(*base, "--chain"))["drafted_per_step"] <= 8


def test_corpus_commands(tmp_path: Path) -> None:
    index = tmp_path / "recorded.foresay"
    ok("corpus", "build", RECORDED, "-o", index)
    assert json.loads(ok("corpus", "inspect", index, "--json"))
    assert json.loads(ok("corpus", "verify", index, "--json"))["ok"] is True
    base = ("replay", RECORDED, "--budget", 8, "--json")
    with_corpus = json.loads(ok(*base, "--corpus", index))["tokens_per_step"]
    assert with_corpus > json.loads(ok(*base))["tokens_per_step"]
    assert json.loads(ok(*base, "--drafter", "corpus", "--corpus", index))["tokens_per_step"] > 2
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    assert "foresay: " in refused("corpus", "verify", index)


def test_doctor() -> None:
    report = json.loads(ok("doctor", "--json"))
    assert report["ok"] is True and report["foresay"] == foresay.__version__
    assert {"numpy", "torch"} <= {library["name"] for library in report["libraries"]}
    text = ok("doctor")
    assert "numpy" in text and "any causal LM of transformers" in text


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny import call

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "gguf" else real(name))
    lines = [line for line in call("doctor").out.splitlines() if "pip install" in line]
    assert len(lines) == 1
    assert lines[0].startswith("gguf") and "pip install '.[engine]'" in lines[0]


def test_help_says_what_ngram_sees() -> None:
    assert "ngram always uses own text only" in " ".join(ok("replay", "--help").split())


@pytest.mark.parametrize(
    "command",
    [
        *("generate", "demo", "replay", "simulate", "tail", "doctor", "edge"),
        *("corpus build", "corpus inspect", "corpus verify", "bench drafters"),
    ],
)
def test_help_has_examples_and_json(command: str) -> None:
    text = ok(*command.split(), "--help")
    assert "Examples:" in text and f"foresay {command}" in text and "--json" in text


def test_version() -> None:
    """In a process that Python starts."""
    command = [sys.executable, "-m", "foresay", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ok("--version") == f"foresay {foresay.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["replay", RECORDED, "--budget", 0], "the budget is 0 (--budget); expected 1 to 4096"),
        (["replay", RECORDED, "--budget", -4], "the budget is -4"),
        (
            ["replay", RECORDED, "--budget", 99999],
            "the budget is 99999 (--budget); expected 1 to 4096",
        ),
        (
            ["generate", "hi", "--drafter", "none", "--corpus", "x"],
            "--corpus is 'x' and drafter is 'none'; expected a drafter that drafts from it",
        ),
        (
            ["serve", "--drafter", "edge", "--corpus", "x"],
            "corpus is 'x' and drafter is 'edge'; expected a drafter that drafts from it",
        ),
        (["replay", RECORDED, "--lockstep", 0], "lockstep is 0; expected 1 or more"),
        (
            ["replay", RECORDED, "--drafter", "oracle"],
            "no drafter 'oracle'; expected one of suffix",
        ),
        (["replay", RECORDED, "--drafter", "corpus"], "has no corpus file"),
        (["replay", RECORDED, "--drafter", "recycle"], "'recycle' needs the target's own work"),
        (["replay", RECORDED, "--drafter", "first:sam+self"], "'self' needs the target's own work"),
        (["replay", RECORDED, "--drafter", "ngram", "--corpus", "x"], "own text only"),
        (["replay", "missing.jsonl"], "missing.jsonl cannot be read: No such file"),
        (["replay", RECORDED, "--corpus", "missing.foresay"], "missing.foresay"),
        (["replay", RECORDED, "--drafter", "ngram", "--plot", "no/such/x.svg"], "is not a folder"),
        (["corpus", "inspect", "missing.foresay"], "missing.foresay"),
        (["corpus", "verify", RECORDED], "recorded.jsonl.gz"),
    ],
)
def test_failures_are_one_sentence(arguments: list[object], sentence: str) -> None:
    error = refused(*arguments)
    assert error.startswith("foresay: ") and sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["replay"], ["nonsense"], ["replay", RECORDED, "--share", "most"]]
)
def test_wrong_usage_exits_2(arguments: list[object]) -> None:
    assert run(*arguments).returncode == 2
    assert "Usage" in refused(*arguments)


def test_nobody_reads_the_output() -> None:
    """As with >&- in a shell."""
    for command in ("doctor", f"replay {RECORDED} --drafter ngram"):
        line = f"{sys.executable} -m foresay {command} >&-"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_without_the_command_line_libraries() -> None:
    code = (
        "import sys; sys.modules['typer'] = None; sys.argv = ['foresay'];"
        "from foresay.__main__ import main; main()"
    )
    done = forks.run("-c", code, server=forks.LIGHT)
    assert done.returncode == 2
    assert done.stderr == (
        "foresay: the command line needs typer; install it with: "
        "pip install '.[cli]' in foresay's checkout\n"
    )


def test_outputs_never_replace_inputs(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    line = '{"id": "a", "group": "g", "prompt": [1, 2, 3], "output": [1, 2, 3]}\n'
    trace.write_text(line)
    os.mkfifo(tmp_path / "pipe")
    for arguments in (
        ["replay", str(trace), "--curve", str(trace)],
        ["replay", str(trace), "--plot", str(trace)],
        ["replay", str(trace), "--curve", str(tmp_path / "no" / "c.csv")],
        ["corpus", "build", str(trace), "-o", str(trace)],
        ["corpus", "build", str(trace), "-o", str(tmp_path / "pipe")],
        ["corpus", "build", str(trace), "-o", str(tmp_path / "no" / "index")],
    ):
        done = run(*arguments)
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        assert re.search("expected (another|a file in)", done.stderr)
    assert trace.read_text() == line
    link = tmp_path / "link.foresay"
    link.symlink_to(tmp_path / "real.foresay")
    ok("corpus", "build", trace, "-o", link)
    assert link.is_symlink() and (tmp_path / "real.foresay").is_file()


def test_doctor_says_which_level_of_processor_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORESAY_CPU", raising=False)
    cpu = json.loads(ok("doctor", "--json"))["cpu"]
    assert cpu["level"] == cpu["levels"][0] and cpu["levels"][-1] == "plain"
    assert f"cpu       {cpu['level']}, the best that this machine can run" in ok("doctor")
    monkeypatch.setenv("FORESAY_CPU", "plain")
    forced = json.loads(ok("doctor", "--json"))["cpu"]
    assert forced["level"] == "plain" and forced["levels"] == cpu["levels"]
    reasons = {better["level"]: better["why"] for better in forced["better"]}
    for level in cpu["levels"][:-1]:
        assert reasons[level] == "plain is forced by FORESAY_CPU"
        assert f"{level} would be faster, but {reasons[level]}" in ok("doctor")


def test_doctor_says_that_a_level_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_CPU", "abacus")
    done = run("doctor")
    assert done.returncode == 1 and done.stderr == ""
    assert 'FORESAY_CPU is "abacus", a level that cannot be run here; expected ' in done.stdout
    assert ok("--version").strip() and "Examples" in ok("doctor", "--help")
    report = json.loads(run("doctor", "--json").stdout)
    assert report["ok"] is False and report["cpu"]["level"] is None


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe")
    assert "latin.txt is not UTF-8 after line 0; expected UTF-8" in refused(
        "replay", tmp_path / "latin.txt"
    )
