"""A process that is killed, at any moment: the next one with the same arguments does the same."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foresay.integrations.verl.report import read_versions, summary
from lives import Nursery, survivors

SAME = ("step", "tokens_digest", "loss", "norm", "reward", "parameters", "logprob", "kept")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("rl.dying") as made:
        yield made


@pytest.fixture(scope="module")
def writers() -> Iterator[Nursery]:
    with Nursery("rl.dying_writers") as made:
        yield made


class Lives:
    """Processes one after the other, all with the same folders."""

    def __init__(self, nursery: Nursery, root: Path) -> None:
        self.nursery, self.root, self.number = nursery, root, 0
        self.folder = root / "out"
        self.temporary = root / "temporary"
        for folder in (self.folder, self.temporary):
            folder.mkdir(parents=True)

    def begin(self, function: str, **given: Any) -> int:
        self.number += 1
        environ = {"TMPDIR": str(self.temporary), "FORESAY_CACHE": str(self.root / "cache")}
        return self.nursery.begin(function, self.log, environ=environ, **given)

    def end(self, life: int) -> int | None:
        status = self.nursery.end(life)
        assert not survivors(life) and not list(self.temporary.iterdir())
        return status

    def live(self, function: str, **given: Any) -> int | None:
        return self.end(self.begin(function, **given))

    @property
    def log(self) -> Path:
        return self.root / f"{self.number}.log"

    @property
    def said(self) -> str:
        """By the last one."""
        return self.log.read_text()

    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.iterdir())


@pytest.fixture
def lives(writers: Nursery, tmp_path: Path) -> Lives:
    return Lives(writers, tmp_path)


def whole_lines(file: Path) -> list[Any]:
    """Those that were written to their end."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


# ---- rollouts --------------------------------------------------------------------------------


@pytest.mark.slow
def test_rollouts(nursery: Nursery, tmp_path: Path) -> None:
    """Each life is killed later than the one before it, and what it had written by then is right;
    then some at any moment; and the last one is left alone."""
    plain = Lives(nursery, tmp_path / "plain")
    assert plain.live("roll", folder=str(plain.folder), drafter="none") == 0, plain.said
    expected = whole_lines(plain.folder / "tokens.jsonl")
    assert len(expected) == 2 and expected[0]["tokens"] != expected[1]["tokens"]

    lives = Lives(nursery, tmp_path / "killed")
    folder, tokens, steps = str(lives.folder), lives.folder / "tokens.jsonl", "steps.jsonl"
    began = time.monotonic()
    assert lives.live("roll", folder=folder) == 0, lives.said
    took, whole = time.monotonic() - began, tokens.read_bytes()
    passes = len(whole_lines(lives.folder / steps))
    assert same_texts(whole_lines(tokens), expected)
    for name in lives.files():
        (lives.folder / name).unlink()

    for moment, lines in (
        ({"step": 1}, 0),
        ({"step": passes // 2}, 0),
        ({"size": 300}, 0),  # in the log of steps
        ({"weights": True}, 1),
        ({"step": passes * 3 // 2}, 1),
    ):
        status = lives.live("roll", folder=folder, **moment)
        assert status == -(signal.SIGXFSZ if "size" in moment else signal.SIGKILL), lives.said
        found = tokens.read_bytes()
        assert whole.startswith(found) and found.count(b"\n") == lines, moment
        if "size" in moment:
            cut = lives.folder / steps
            assert cut.stat().st_size == 300
            number = cut.read_text().count("\n") + 1
            assert lives.live("tail", file=str(cut)) == 1
            assert f"{cut}, line {number} is not JSON" in lives.said

    for share in (0.3, 0.6, 0.9):
        life = lives.begin("roll", folder=folder)
        time.sleep(share * took)
        lives.nursery.kill(life)
        assert lives.end(life) in (-signal.SIGKILL, 0)
        assert whole.startswith(tokens.read_bytes() if tokens.exists() else b"")

    assert lives.live("roll", folder=folder) == 0, lives.said
    assert tokens.read_bytes() == whole and lives.files() == [steps, "tokens.jsonl"]
    assert lives.live("tail", file=str(lives.folder / steps)) == 0


def same_texts(one: list[Any], other: list[Any]) -> bool:
    return [line["tokens"] for line in one] == [line["tokens"] for line in other]


# ---- training --------------------------------------------------------------------------------


def records(file: Path) -> list[dict[str, Any]]:
    """But for the seconds."""
    return [{name: line[name] for name in SAME} for line in whole_lines(file)]


@pytest.mark.slow
def test_training(nursery: Nursery, tmp_path: Path) -> None:
    calm = Lives(nursery, tmp_path / "calm")
    assert calm.live("train", folder=str(calm.folder)) == 0, calm.said
    expected = records(calm.folder / "seed-1-on.jsonl")
    assert len(expected) == 3 and all(line["loss"] and line["kept"] for line in expected)
    assert len({line["parameters"] for line in expected}) == 3
    line = (calm.folder / "seed-1-on.jsonl").read_bytes().index(b"\n")

    lives = Lives(nursery, tmp_path / "killed")
    folder, file = str(lives.folder), lives.folder / "seed-1-on.jsonl"
    for moment, lines in (
        ({"size": 2000}, 0),  # in the file of the warm start
        ({"step": 3}, 0),  # of the rollout
        ({"size": line + line // 2}, 1),  # in the record of the second step
        ({"update": 5}, 2),  # the first of two in the third step
    ):
        status = lives.live("train", folder=folder, **moment)
        assert status == -(signal.SIGXFSZ if "size" in moment else signal.SIGKILL), lives.said
        assert records(file) == expected[:lines], moment
        if "size" in moment and lines:
            text = file.read_text()
            assert text.count("\n") == 1 and not text.endswith("\n")
            assert lives.live("draw", folder=folder) == 0, lives.said
            assert f"line 2 of {file} is cut off; it is left out" in lives.said
            for drawn in (*lives.folder.glob("*.svg"), lives.folder / "summary.json"):
                drawn.unlink()

    assert lives.live("train", folder=folder) == 0, lives.said
    assert records(file) == expected
    assert lives.files() == ["seed-1-on.jsonl", "warm-start-1.safetensors"] == calm.files()
    warm = [each.folder / "warm-start-1.safetensors" for each in (calm, lives)]
    assert warm[0].read_bytes() == warm[1].read_bytes()


def test_a_record_that_is_wrong_within_is_refused(lives: Lives) -> None:
    file = lives.folder / "seed-1-on.jsonl"
    file.write_text('{"seed": 1, "drafts": "on"\n{"seed": 1, "drafts": "on"}\n')
    assert lives.live("draw", folder=str(lives.folder)) == 2
    assert f"line 1 of {file} is " in lives.said and "Traceback" not in lives.said


# ---- files of the integrations and of the engine ---------------------------------------------


def test_versions_and_steps_of_a_worker_inside_vllm(lives: Lives) -> None:
    """The file is appended to by all of them: what one has left half written harms no other."""
    versions, steps = lives.folder / "versions.jsonl", lives.folder / "steps.jsonl"
    files = {"file": str(versions), "steps_file": str(steps)}
    assert lives.live("version", **files, versions=2) == 0, lives.said
    line = versions.read_bytes().index(b"\n") + 1
    size = 2 * line + line // 2
    quiet = {"file": str(versions), "steps_file": ""}
    assert lives.live("version", **quiet, versions=2, size=size) == -signal.SIGXFSZ
    assert versions.stat().st_size == size
    assert len(read_versions(versions)) == 2  # a line that is being written looks the same
    assert lives.live("version", **files, versions=3) == 0, lives.said
    found = read_versions(versions)
    assert [each.version for each in found] == [0, 1, 0, 1, 2]
    assert {(each.steps, each.rows, each.tokens) for each in found} == {(3, 6, 15)}
    assert summary(found)[0]["foresay/tokens_per_step"] == 2.5

    before = steps.stat().st_size
    assert lives.live("version", **files, versions=1, size=before + 40) == -signal.SIGXFSZ
    assert lives.live("version", **files, versions=1) == 0, lives.said
    lines = steps.read_text().splitlines()
    assert [json.loads(each)["step"] for each in lines[-3:]] == [1, 2, 3]
    assert len([each for each in lines if not each.endswith("}")]) == 1
    assert lives.files() == ["steps.jsonl", "versions.jsonl"]


def test_remembered_times(lives: Lives) -> None:
    folder = str(lives.folder)
    assert lives.live("remember", folder=folder, size=100) == -signal.SIGXFSZ
    assert not [name for name in lives.files() if name.endswith(".json")]
    assert lives.live("remember", folder=folder) == 0, lives.said
    assert json.loads(lives.said) is None
    [name] = lives.files()  # and nothing of the one that was killed
    file = lives.folder / name
    assert name.endswith(".json")
    assert lives.live("remember", folder=folder) == 0 and len(json.loads(lives.said)) == 40
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # as a disk that was full might leave it
    assert lives.live("remember", folder=folder) == 0, lives.said
    assert json.loads(lives.said) is None and lives.files() == [name]
    assert lives.live("remember", folder=folder) == 0 and len(json.loads(lives.said)) == 40
