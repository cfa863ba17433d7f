"""New weights inside vLLM, as a trainer gives them: they are counted, and old text is dropped."""

from __future__ import annotations

import itertools
import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresay.drafters import SuffixDrafter
from foresay.errors import InputError
from foresay.integrations.verl.report import VersionLine, read_versions, summary
from foresay.integrations.vllm import SuffixProposer
from foresay.integrations.vllm.versions import (
    changes,
    run_hooks,
    watch,
    weights_changed,
    when_vllm_starts,
)
from integrations.vllm_side import config


@pytest.fixture(autouse=True)
def no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_MEASURE", "0")
    monkeypatch.setenv("FORESAY_VLLM_LEAST_CHANCE", "0")


@pytest.fixture
def new_versions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many versions were to be kept, for each call of `new_version`."""
    found: list[int] = []
    theirs = SuffixDrafter.new_version

    def new_version(self: Any, keep: int) -> None:
        found.append(keep)
        theirs(self, keep)

    monkeypatch.setattr(SuffixDrafter, "new_version", new_version)
    return found


class Model:
    """What vLLM's models have."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def load_weights(self, weights: list[tuple[str, float]]) -> set[str]:
        for name, value in weights:
            if value != value:
                raise ValueError(name)
            self.loaded.append(name)
        return {name for name, _ in weights}


def proposer_of() -> tuple[SuffixProposer, Model]:
    made = SuffixProposer(config(length=512))
    model = Model()
    made.load_model(model)
    return made, model


def step(proposer: SuffixProposer, *texts: list[int]) -> list[list[int]]:
    """A step in which each of these texts got its last token."""
    token_ids = np.zeros((8, 512), np.int32)
    lengths = np.zeros(8, np.int32)
    for row, text in enumerate(texts):
        token_ids[row, : len(text)], lengths[row] = text, len(text)
    drafts = proposer.propose([text[-1:] for text in texts], lengths, token_ids)
    assert proposer.stats().errors == 0
    return drafts


def another(proposer: SuffixProposer, numbers: Any = itertools.count(1000)) -> None:  # noqa: B008
    """A step with nothing but a text that was never seen."""
    step(proposer, [next(numbers), 9])


def write(proposer: SuffixProposer, prompt: list[int], answer: list[int], samples: int = 1) -> None:
    """Samples of a prompt, token by token, and one more step without them."""
    for length in range(1, len(answer) + 1):
        step(proposer, *[prompt + answer[:length]] * samples)
    another(proposer)


# ---- counting --------------------------------------------------------------------------------


def test_loading_is_counted_and_does_what_it_did() -> None:
    model, before = Model(), changes()
    watch(model)
    watch(model)
    assert model.load_weights([("a", 1.0), ("b", 2.0)]) == {"a", "b"} and model.loaded == ["a", "b"]
    assert changes() == before + 1
    with pytest.raises(ValueError, match="c"):
        model.load_weights([("d", 1.0), ("c", float("nan"))])  # d has changed
    assert changes() == before + 2
    watch(object())
    watch(None)


def test_many_loads_between_two_steps_are_one_version(new_versions: list[int]) -> None:
    proposer, model = proposer_of()
    step(proposer, [1, 2, 3])
    assert new_versions == [] and proposer.stats().versions == 0
    for bucket in range(5):
        model.load_weights([(str(bucket), 0.0)])
    step(proposer, [1, 2, 3, 4])
    step(proposer, [1, 2, 3, 4, 5])
    assert new_versions == [2] and proposer.stats().versions == 1
    assert proposer.stats().begun == 1  # it went on: asynchronous trainers do not wait for it
    weights_changed()  # as verl's plugin says it
    step(proposer, [1, 2, 3, 4, 5, 6])
    assert proposer.stats().versions == 2


def test_what_is_absent_is_finished_with_its_version(new_versions: list[int]) -> None:
    proposer, model = proposer_of()
    write(proposer, [1, 2, 3], [4, 5, 6, 7])
    assert proposer.stats().finished == 0  # 64 steps would have to pass
    model.load_weights([])
    step(proposer, [8, 8])
    assert proposer.stats().finished == 1 and len(new_versions) == 1


# ---- dropping --------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_groups_are_dropped_with_their_version(
    kept: int, monkeypatch: pytest.MonkeyPatch, new_versions: list[int]
) -> None:
    monkeypatch.setenv("FORESAY_VLLM_VERSIONS", str(kept))
    proposer, _ = proposer_of()
    write(proposer, [1, 2, 3], [4, 5, 6, 7], samples=2)
    groups = [proposer._drafter._core.groups]
    for _ in range(4):
        weights_changed()
        another(proposer)
        groups.append(proposer._drafter._core.groups)
    assert groups == [1] + [1] * kept + [0] * (4 - kept)
    assert not proposer._born and new_versions == [kept] * 4


@pytest.mark.parametrize(("kept", "drafts"), [(0, 0), (1, 1), (2, 2), (5, 4)])
def test_old_text_is_not_drafted_from(
    kept: int, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of the first version, and how often the weights change until it is no draft."""
    monkeypatch.setenv("FORESAY_VLLM_VERSIONS", str(kept))
    proposer, model = proposer_of()
    answer = [20, 21, 22, 23, 24, 25, 26, 27]
    write(proposer, [1, 2, 3], answer)
    found = []
    for version in range(4):
        model.load_weights([])
        (draft,) = step(proposer, [100 + version, 101, 102, *answer[:3]])
        found.append(draft[:3] == answer[3:6])
    assert sum(found) == drafts and found == sorted(found, reverse=True)


# ---- reporting -------------------------------------------------------------------------------


def test_each_version_is_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    new_versions: list[int],
) -> None:
    path = tmp_path / "versions.jsonl"
    monkeypatch.setenv("FORESAY_VLLM_VERSIONS_FILE", str(path))
    proposer, model = proposer_of()
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        model.load_weights([])  # as verl does before anything is asked
        for _ in range(2):
            for length in range(3, 9):
                step(proposer, list(range(length)))
            model.load_weights([])
        step(proposer, [1, 2])
    said = [r.getMessage() for r in caplog.records if "weights changed" in r.getMessage()]
    assert [line[:32] for line in said] == [
        f"foresay: weights changed {n} times;"[:32] for n in (2, 3)
    ]
    lines = read_versions(path)
    assert [(line.version, line.steps, line.rows, line.tokens) for line in lines] == [
        (1, 6, 6, 6),
        (2, 6, 6, 6),
    ]
    assert [line.tokens for line in lines] == [line.rows + line.accepted for line in lines]


def test_a_file_that_cannot_be_written_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_VERSIONS_FILE", "/nowhere/at/all")
    with pytest.raises(OSError, match="/nowhere/at/all"):
        proposer_of()


def test_lines_go_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which nobody can know how it ended."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setenv("FORESAY_VLLM_VERSIONS_FILE", str(path))
    proposer, model = proposer_of()
    for length in range(3, 5):
        step(proposer, list(range(length)))
        model.load_weights([])
    step(proposer, [1, 2])
    lines = os.read(reader, 1 << 16).decode().splitlines()
    os.close(reader)
    assert [json.loads(line)["version"] for line in lines] == [0, 1]


LINE = VersionLine(1, 3, steps=10, rows=20, tokens=50, drafted=60, accepted=30, seconds=0.02)


def test_ranks_and_replicas_are_summed(tmp_path: Path) -> None:
    path = tmp_path / "versions.jsonl"
    path.write_text("".join(json.dumps(asdict(LINE)) + "\n" for _ in range(2)))
    assert read_versions(path) == [LINE, LINE]
    other = VersionLine(2, 3, steps=10, rows=10, tokens=10, drafted=0, accepted=0, seconds=0.0)
    assert summary([LINE, LINE]) == summary([LINE])
    assert summary([LINE, other])[3] == {
        "foresay/tokens_per_step": 2.0,
        "foresay/accept_rate": 0.5,
        "foresay/drafting_ms_per_step": 1.0,
    }


@pytest.mark.parametrize("line", ["[1]", "{}", '{"pid": 1}', "no", '{"pid": 1{"pid": 2}'])
def test_a_wrong_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "versions.jsonl"
    path.write_text(json.dumps(asdict(LINE)) + "\n" + line + "\n")
    with pytest.raises(InputError, match=r"^line 2 of .* expected an object with pid, version"):
        read_versions(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_versions(tmp_path / "none")


def test_a_hook_that_fails_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    monkeypatch.setattr("foresay.integrations.vllm.versions._hooks", [])

    def fails() -> None:
        raise RuntimeError("no such class")

    when_vllm_starts(fails)
    when_vllm_starts(lambda: called.append("second"))
    run_hooks()
    proposer_of()
    assert called == ["second"] * 2 and "no such class" in caplog.text
