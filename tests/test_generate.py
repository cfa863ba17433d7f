"""`foresay generate` with a tiny model: prompts in, answers out, and every way to get it wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import foresay
from foresay.drafter import Source
from foresay.engine.llm import LLM
from foresay.engine.request import Request
from foresay.errors import LogitsError
from foresay.sampling.params import SamplingParams
from tiny import CONTEXT, Done, call, one_thread, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with one_thread():
        yield save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def answer(model: Path) -> str:
    """What the model says to "Hello", asked without the command line."""
    llm = LLM(model, dtype="float32", drafter=None)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    return llm.generate("Hello", params, chat=True)[0].text


def generate(model: Path, *arguments: object, **how: Any) -> Done:
    fixed = ["--model", model, "--dtype", "float32", "--max-tokens", 12]
    return call("generate", *fixed, *arguments, **how)


def good(model: Path, *arguments: object, **how: Any) -> str:
    done = generate(model, *arguments, **how)
    assert done.status == 0 and done.complaints == "", done
    return done.out


def objects(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_on_a_terminal_the_answer_is_streamed(model: Path, answer: str) -> None:
    out = good(model, "Hello", terminal=True)
    shown = "".join(c for c in answer if c in "\n\t" or c.isprintable() or ord(c) > 159)
    assert out.replace("\ufffd", "") == shown.replace("\ufffd", "") + "\n"
    assert "\x1b" not in out


def test_json(model: Path, answer: str) -> None:
    (value,) = objects(good(model, "Hello", "--json"))
    assert list(value) == ["prompt", "text", "token_ids", "finish_reason", "stats"]
    assert value["prompt"] == "Hello" and value["text"] == answer
    assert value["finish_reason"] in ("length", "stop") and len(value["token_ids"]) <= 12
    assert value["stats"]["tokens"] == len(value["token_ids"])


def test_speculation_changes_nothing(model: Path) -> None:
    asked = ("a b a b a b", "Hello", "a b a b a b", "--json", "-n", 2, "--temperature", 0.9)
    seeded = (*asked, "--seed", 5, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01)
    texts = [
        [value["token_ids"] for value in objects(good(model, *seeded, *options))]
        for options in (
            ("--drafter", "none"),
            ("--drafter", "suffix", "--policy", "fixed"),
            ("--drafter", "ngram", "--policy", "dynamic-k"),
            ("--policy", "none"),
        )
    ]
    assert len(texts[0]) == 6 and all(other == texts[0] for other in texts[1:])


def test_many_prompts_keep_their_order(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\ufeffsecond\r\n\n  third \u2028 line\n", encoding="utf-8")
    values = objects(good(model, "first", "--file", file, "--json", "-n", 2))
    assert [(value["prompt"], value["sample"]) for value in values] == [
        (prompt, sample)
        for prompt in ("first", "second", "  third \u2028 line")
        for sample in (0, 1)
    ]
    text = good(model, "first", "--file", file, "-n", 2)
    assert text.index("[1.2] first") < text.index("[2.1] second") < text.index("[3.1] third")
    assert good(model, "first", "-n", 2).startswith("[1]\n")


def test_json_lines(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one\\ntwo", "id": 3}\n{"prompt": "Hello"}\n')
    values = objects(good(model, "--file", file, "--json"))
    assert [value["prompt"] for value in values] == ["one\ntwo", "Hello"]


def test_arguments_and_stdin(model: Path, answer: str) -> None:
    assert good(model, "Hello") == answer + "\n"
    assert good(model, stdin=b"Hello\n") == answer + "\n"
    assert good(model, "-", stdin=b"Hello") == answer + "\n"
    (value,) = objects(good(model, "--json", stdin=b"one\ntwo\n"))
    assert value["prompt"] == "one\ntwo"
    values = objects(good(model, "--file", "-", "--json", stdin=b"one\ntwo\n"))
    assert [value["prompt"] for value in values] == ["one", "two"]


def test_raw_and_models_without_template(model: Path, tmp_path: Path) -> None:
    (chat,) = objects(good(model, "Hello", "--json"))
    (raw,) = objects(good(model, "Hello", "--raw", "--json"))
    assert raw["stats"]["prompt_tokens"] == 5 < chat["stats"]["prompt_tokens"]
    plain = save_model(tmp_path, chats=False)
    assert objects(good(plain, "Hello", "--json"))[0]["token_ids"] == raw["token_ids"]


def test_stop(model: Path, answer: str) -> None:
    letter = next(c for c in answer[1:] if c.isprintable() and c != "\ufffd" and c != answer[0])
    assert good(model, "Hello", "--stop", letter) == answer[: answer.index(letter)] + "\n"


def test_sources(model: Path) -> None:
    asked = ("Hello", "--max-tokens", 60, "--policy", "fixed", "--sources")
    (value,) = objects(good(model, *asked, "--json"))
    assert len(value["sources"]) == len(value["token_ids"])
    assert "own" in value["sources"], "a greedy tiny model repeats itself"
    shown = good(model, *asked)
    assert "«" in shown and "»" in shown and "\x1b" not in shown
    assert objects(good(model, "Hello", "--drafter", "none", "--sources", "--json"))
    # Which drafter is not which source: merged drafts were called 0 and 1 once.
    for drafter in ("merge", "ngram"):
        (value,) = objects(good(model, *asked, "--drafter", drafter, "--json"))
        assert {"own"} <= set(value["sources"]) <= set(Source)
        assert "«" in good(model, *asked, "--drafter", drafter)


def test_sources_on_a_terminal(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    asked = ("Hello", "--max-tokens", 60, "--policy", "fixed", "--sources")
    shown = good(model, *asked, terminal=True)
    assert "\x1b[4;32m" in shown and "«" not in shown
    text = re.sub("\x1b\\[[0-9;]*m", "", shown)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text)  # the model wrote such bytes
    monkeypatch.setenv("NO_COLOR", "1")
    shown = good(model, *asked, terminal=True)
    assert "«" in shown and "\x1b" not in shown


def test_a_request_that_fails_does_not_take_the_others_along(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = foresay.engine.engine.Engine.step

    def failing(self: Any) -> list[Request]:
        for request in self.scheduler.running:
            if request.number == 1 and not request.finished:
                self._finish(request, "error", LogitsError("the logits are invalid"))
                return [request]
        changed: list[Request] = step(self)
        return changed

    monkeypatch.setattr(foresay.engine.engine.Engine, "step", failing)
    done = generate(model, "one", "two", "three")
    assert done.status == 1
    assert done.complaints == "foresay: prompt 2: the logits are invalid\n"
    assert "[1] one" in done.out and "[3] three" in done.out and "[2]" not in done.out
    done = generate(model, "one", "two", "three", "--json")
    errors = [value.get("error") for value in objects(done.out)]
    assert errors == [None, "the logits are invalid", None]


def refused(done: Done, sentence: str) -> None:
    assert done.status == 1 and done.out == "", done
    assert done.complaints.startswith("foresay: ") and done.complaints.count("\n") == 1, done.err
    assert sentence in done.complaints


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([""], "prompt 1 is empty"),
        (["Hello", " \n"], "prompt 2 is empty"),
        (["-"], "what was piped in is empty"),
        ([], "what was piped in is empty"),
        (["--file", "-"], "what was piped in holds no prompt"),
        (["Hello", "--max-tokens", 0], "--max-tokens is 0"),
        (["Hello", "--temperature", -1], "--temperature is -1.0"),
        (["Hello", "--top-p", 0], "--top-p is 0"),
        (["Hello", "--min-p", 2], "--min-p is 2.0"),
        (["Hello", "--processor-order", "top-k"], "--processor-order is ['top_k']; expected"),
        (["Hello", "--top-k", -1], "--top-k is -1"),
        (["Hello", "--seed", -1], "--seed is -1"),
        (["Hello", "-n", 0], "-n is 0"),
        (["Hello", "--stop", ""], "a stop string is empty"),
        (["Hello", "--drafter", "oracle"], "drafter is 'oracle'; expected one of suffix"),
        (["Hello", "--drafter", "corpus"], "has no corpus file"),
        (["Hello", "--corpus", "missing.foresay"], "missing.foresay"),
        (["Hello", "--policy", "brave"], "brave"),
        (["Hello", "--model", "smollm"], "'smollm' is no model"),
        (["Hello", "--model", "."], "config.json"),
        (["Hello", "--model", ""], "'' is no model; expected a folder"),
        (["x" * CONTEXT], f"the model takes {CONTEXT}"),
        (["--file", "missing.txt"], "missing.txt: No such file"),
        (["--file", "."], ".: Is a directory"),
    ],
)
def test_refusals(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[object],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(generate(model, *arguments), sentence)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no prompt"),
        (b"\n \n", "holds no prompt"),
        (b"good\nb\xff\xfed\n", "is not UTF-8 at byte 6"),
        (b'{"prompt": "a"}\n{"text": "b"}\n', "object with one, like line 1\n"),
        (b'{"prompt": "a"}\n\nplain\n', "line 3 of "),
        (b'{"prompt": 3}\n', 'has no text as "prompt"; expected a JSON object with one\n'),
        (b'{"prompt": ""}\n', "line 1 of "),
    ],
)
def test_bad_files(model: Path, tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    refused(generate(model, "--file", file), sentence)
    if b"\xff" in content:
        refused(generate(model, stdin=content), "what was piped in is not UTF-8")


def test_wrong_usage_exits_2(model: Path) -> None:
    for arguments in (["--dtype", "int8"], ["--max-tokens", "many"], ["--nonsense"]):
        done = call("generate", "Hello", *arguments)
        assert done.status == 2 and "Usage" in done.err


@pytest.mark.parametrize("command", ["generate", "demo"])
def test_without_the_libraries(command: str) -> None:
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n in ('torch', 'transformers') else real(n, *a)\n"
        f"sys.argv = ['foresay', '{command}'{', ' + repr('Hi') if command == 'generate' else ''}]\n"
        "from foresay.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"foresay: foresay {command} needs torch and transformers; install them with: "
        "pip install '.[engine]' in foresay's checkout\n"
    )


def test_an_encoding_that_lacks_a_character(model: Path, answer: str) -> None:
    assert not answer.isascii()
    assert good(model, "Hello", encoding="ascii").isascii()
