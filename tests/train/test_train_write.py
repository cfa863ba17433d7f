"""A target writes its corpus: what it writes is its own answer, and the file is complete."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from foresay import SamplingParams
from foresay.engine.plain import logits_of, plain
from foresay.errors import InputError, TraceError
from foresay.models import teacher
from foresay.models.load_transformers import target_of
from foresay.models.tokenizer import Tokenizer
from foresay.traces import read_traces
from foresay.train.write import write
from tiny import call, one_thread, save_model

QUESTIONS = ["What is that?", "Who?", "Please say it again, in other words.", "No."]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    fields = ("prompt", "question", "turns", "prompt")
    lines = [
        {field: [text, "and then?"] if field == "turns" else text}
        for field, text in zip(fields, QUESTIONS, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_greedy_answers_are_those_of_the_plain_loop(
    model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where texts of different lengths are in one batch, and some of them end early."""
    monkeypatch.setattr(teacher, "_CLEAR", 4)
    with one_thread():
        done = write(
            model, tmp_path / "a.jsonl.gz", prompts=[prompts], temperatures=[0.0], most=24, batch=3
        )
    tokenizer = Tokenizer(model)
    target = target_of(AutoModelForCausalLM.from_pretrained(model))
    traces = read_traces(tmp_path / "a.jsonl.gz")
    assert done.answers == len(traces) == 4
    assert done.tokens == sum(len(trace.output) for trace in traces)
    params = SamplingParams(temperature=0.0, max_tokens=24)
    for trace, question in zip(traces, QUESTIONS, strict=True):
        asked = tokenizer.chat([{"role": "user", "content": question}])
        assert trace.prompt.tolist() == asked.tolist()
        assert trace.output.tolist() == _until_end(
            plain(logits_of(target), asked.tolist(), params, 0), tokenizer.ends
        )


def _until_end(text: list[int], ends: Sequence[int]) -> list[int]:
    stops = [at for at, token in enumerate(text) if token in ends]
    return text[: stops[0] + 1] if stops else text


def test_what_ends_early_leaves_the_batch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts end at different places, wherever the batch is cleared."""
    target = teacher.Teacher(model, device="cpu")
    texts = [np.arange(1 + 3 * at, 6 + 7 * at, dtype=np.int32) for at in range(6)]
    whole = target.continued(texts, most=20, ends=[500], temperature=0.0)
    ends = [int(whole[1][3]), int(whole[4][9])]
    wanted = [_until_end(text.tolist(), ends) for text in whole]
    assert len({len(text) for text in wanted}) > 1
    for clear in (1, 3, 32):
        monkeypatch.setattr(teacher, "_CLEAR", clear)
        found = target.continued(texts, most=20, ends=ends, temperature=0.0)
        assert [text.tolist() for text in found] == wanted


def test_samples_are_of_the_targets_distribution(model: Path) -> None:
    """The first token of many samples, against the softmax at that temperature."""
    import torch

    target = teacher.Teacher(model, device="cpu")
    text = np.array([5, 9, 70], np.int32)
    torch.manual_seed(3)
    found = target.continued([text] * 4000, most=1, ends=[1], temperature=0.7)
    counts = np.bincount([int(each[0]) for each in found], minlength=len(target.embedding))
    states = target.states(torch.from_numpy(text[None].astype(np.int64)), torch.ones(1, 3).long())
    law = ((states[1][0, -1] @ target.output.T) / 0.7).softmax(-1).detach().numpy()
    assert abs(counts / 4000 - law).max() < 4 * np.sqrt(law.max() / 4000)


class Brief(Tokenizer):
    """Some letters end what is said: of itself the model ends after hundreds of tokens."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ends = (*self.ends, *range(0, 256, 32))


def test_invented_conversations(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users' turns are written by the model, too, and come back in later prompts."""
    writing = import_module("foresay.train.write")
    monkeypatch.setattr(writing, "Tokenizer", Brief)
    monkeypatch.setattr(writing, "_MOST_SAID", 32)
    with one_thread():
        options: dict[str, Any] = {"invented": 12, "turns": 2, "most": 12, "batch": 5}
        done = write(model, tmp_path / "a.jsonl.gz", seed=4, **options)
        again = write(model, tmp_path / "b.jsonl.gz", seed=4, **options)
        other = write(model, tmp_path / "c.jsonl.gz", seed=5, **options)
    assert done.sha256 == again.sha256 != other.sha256
    content = gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes())
    assert content == gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes())
    tokenizer = Tokenizer(model)
    traces = read_traces(tmp_path / "a.jsonl.gz")
    assert 0 < len(traces) == done.answers <= 24
    first = {trace.group: trace for trace in traces if trace.id.endswith(".0")}
    second = [trace for trace in traces if trace.id.endswith(".1")]
    assert second and all(trace.group in first for trace in second)
    for trace in second:
        before = tokenizer.decode(first[trace.group].prompt.tolist(), special=True)
        assert tokenizer.decode(trace.prompt.tolist(), special=True).startswith(before[:-7])
    assert not list(tmp_path.glob("*.part"))


def test_what_cannot_be_written(model: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl.gz"
    refused: list[tuple[dict[str, Any], str]] = [
        ({}, "there are no prompts; expected a file of them .`prompts`., or some to"),
        ({"invented": -1}, "invented is -1; expected a whole number from 0 on"),
        ({"invented": 1, "temperatures": []}, r"temperatures are \[\]; expected numbers from 0"),
        ({"invented": 1, "temperatures": [-1.0]}, "expected numbers from 0 to 10"),
        ({"invented": 1, "batch": 0}, "batch is 0"),
        ({"prompts": [prompts], "longest": 20, "most": 20}, "or a larger `longest`"),
    ]
    for options, sentence in refused:
        with pytest.raises(InputError, match=sentence):
            write(model, out, **options)
    with pytest.raises(InputError, match=r"expected a file name that ends with .jsonl.gz"):
        write(model, tmp_path / "a.txt", invented=1)
    (tmp_path / "folder.jsonl.gz").mkdir()
    for place in (tmp_path / "folder.jsonl.gz", prompts / "a.jsonl.gz"):
        with pytest.raises(InputError, match="which cannot be a file; expected one in a folder"):
            write(model, place, invented=1)
    (tmp_path / "bad.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(TraceError, match=r"bad.jsonl, line 1 has no prompt; expected one of"):
        write(model, out, prompts=[tmp_path / "bad.jsonl"])
    silent = save_model(tmp_path / "silent", chats=False)
    with pytest.raises(InputError, match="has no chat template; expected a model that answers"):
        write(silent, out, invented=1)
    assert not out.exists()


def test_the_command(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl.gz"
    done = call(
        *("train", "write", "--target", str(model), "-o", str(out), "--invented", "12"),
        *("--most", "8", "--temperature", "0", "--json"),
    )
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["answers"] == len(read_traces(out)) and found["target"] == str(model)
