"""`foresay edge` against a small cloud: what it says when something is wrong, and presets: their
values, what is refused, and that no preset changes a text."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

import forks
from edge.asking import answered
from edge.toy_cloud import VOCABULARY, ToyCloud, plain, toy_cloud
from foresay.cli.edge import PresetName
from foresay.cli.edge_shown import cost_line
from foresay.edge.gating import Gate, Thresholds
from foresay.edge.messages import Open, Sampling
from foresay.edge.preset import PRESETS, PUBLISHED, EdgePreset, preset_of
from foresay.edge.statistics import StreamStatistics
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams
from tiny import Done, call, save_model

BLOCKED = ("torch", "transformers", "safetensors", "gguf", "scipy", "starlette", "uvicorn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose vocabulary is said to be the toy cloud's."""
    made = save_model(tmp_path_factory.mktemp("toy"))
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))
    return made


@contextmanager
def beside(**faults: Any) -> Iterator[ToyCloud]:
    """A toy cloud in a thread of its own."""
    ready = threading.Event()
    found: list[Any] = []
    loop = asyncio.new_event_loop()

    async def run() -> None:
        async with toy_cloud(**faults) as cloud:
            end = asyncio.Event()
            found.extend([cloud, end])
            ready.set()
            await end.wait()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        finally:
            loop.close()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(10)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(found[1].set)
        thread.join(10)


def asked(cloud: str, folder: Path, *options: object, **how: Any) -> Done:
    fixed = ("edge", "--cloud", cloud, "--model", folder, "--max-tokens", 30)
    return call(*fixed, "one two one two", *options, **how)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_cancelled_answer_fails(folder: Path, as_json: bool) -> None:
    options = ["--retry-seconds", 0, "--seed", 7, "--drafter", "none"]
    with beside(cancels=[5] * 50) as cloud:
        done = asked(cloud.url, folder, *options, *(["--json"] if as_json else []))
    assert done.status == 1
    assert "foresay: the cloud cancelled the answer before its end" in done.complaints
    assert "5 tokens are committed: ask again with --seed 7 for the same text" in done.complaints
    assert done.out.endswith("\n") or as_json
    assert not as_json or not done.out


def test_a_failed_answer_fails_and_ends_its_line(folder: Path) -> None:
    with beside(fails=5) as cloud:
        done = asked(cloud.url, folder, "--drafter", "none")
    assert done.status == 1 and done.out.endswith("\n") and len(done.out) > 1
    assert "foresay: the cloud failed while it answered; its log says why." in done.complaints
    assert "ask again with --seed 77 for the same text" in done.complaints


def test_a_legend_on_a_terminal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with beside() as cloud:
        coloured = asked(cloud.url, folder, "--max-tokens", 150, terminal=True)
        simple = asked(cloud.url, folder)
    lines = re.sub("\x1b\\[[0-9;]*m", "", coloured.out).splitlines()
    assert lines[-1] == "drafted from: own text"
    assert "\x1b[4;32mown text\x1b[0m" in coloured.out
    assert "drafted from" not in simple.out and "\x1b" not in simple.out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--retry-seconds", "-1"], "--retry-seconds is -1.0; expected a finite number"),
        (["--retry-seconds", "nan"], "--retry-seconds is nan; expected a finite number"),
        (["--dropout", "-3"], "--dropout is -3; expected 0, or a whole number of passes from 2"),
        (["--api-key", "sk-\nsecret"], "--api-key is no key; expected printable ASCII"),
        (["--drafter", "nonsense"], "there is no drafter 'nonsense'; expected one of suffix, sam"),
        (["--drafter", "suffix+mtp"], "the drafter 'mtp' needs to see the target"),
        (["--drafter", "eagle:nowhere"], "the drafter 'eagle:nowhere' needs to see the target"),
    ],
)
def test_options_are_refused_by_their_names(
    folder: Path, options: list[str], sentence: str
) -> None:
    done = asked("http://127.0.0.1:9", folder, *options)
    assert done.status == 1 and sentence in done.complaints
    assert "secret" not in done.err and "recycle" not in done.complaints
    if "drafter" in sentence:
        assert "model:NAME, several with + between, or none" in done.complaints
        assert not re.search(r"expected.*(eagle|mtp|self)", done.complaints)


def test_one_of_a_thing() -> None:
    stats = StreamStatistics(tokens=1, sent=1, rounds=1, resumes=1, reopens=2)
    said = cost_line(stats)
    assert "[1 token in" in said and "0 of 1 drafted token accepted in 1 round;" in said
    assert "1 resume, 2 new starts" in said


def without(modules: tuple[str, ...], *arguments: object) -> subprocess.CompletedProcess[str]:
    """`foresay` in a process that cannot import these."""
    code = (
        "import sys\n"
        f"for name in {modules!r}: sys.modules[name] = None\n"
        "from foresay.__main__ import main\n"
        "main()"
    )
    return forks.run("-c", code, *arguments, server=forks.LIGHT)


def test_drafting_from_text_needs_no_torch(folder: Path) -> None:
    options = ("edge", "--model", folder, "--max-tokens", 30, "one two", "--cloud")
    with beside() as cloud:
        done = without(BLOCKED, *options, cloud.url)
        assert done.returncode == 0, done.stderr
        assert "drafted tokens accepted" in done.stderr
    done = without(BLOCKED, *options, "http://127.0.0.1:9", "--draft-model", folder)
    assert done.returncode == 1
    assert "foresay edge with a model that drafts needs torch and" in done.stderr
    assert "pip install '.[engine]'" in done.stderr


def test_the_missing_extra_is_named() -> None:
    done = without(("websockets",), "edge", "--cloud", "http://127.0.0.1:9", "Hello")
    assert done.returncode == 1
    assert done.stderr == (
        "foresay: foresay edge needs websockets; install it with: pip install '.[edge]' in "
        "foresay's checkout\n"
    )
    libraries = json.loads(call("doctor", "--json").out)["libraries"]
    (found,) = [library for library in libraries if library["name"] == "websockets"]
    assert "foresay edge" in found["use"] and found["get"] == "pip install '.[edge]'"


def test_help() -> None:
    said = " ".join(call("edge", "--help").out.split())
    assert 'one per token; "" is a token of the server\'s model itself' in said
    assert "answers.foresay" in said and "2 to 256 passes" in said


def test_an_interrupt_while_it_is_imported_leaves_no_traceback() -> None:
    code = (
        "import builtins, foresay.__main__\n"
        "real = builtins.__import__\n"
        "def slow(name, *rest):\n"
        "    if name == 'foresay.cli': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = slow\n"
        "foresay.__main__.main()"
    )
    done = forks.run("-c", code, server=forks.LIGHT)
    assert done.returncode == 130 and not done.stderr


# -- presets -----------------------------------------------------------------------------------


def test_the_published_values() -> None:
    params = PUBLISHED.sampling(max_tokens=9, seed=4)
    assert params == SamplingParams(
        max_tokens=9, seed=4, temperature=1.0, top_p=0.9, repetition_penalty=1.1
    )
    assert params.rule == "match"  # nothing else is committed but what the cloud chooses
    assert (PUBLISHED.k, PUBLISHED.least, PUBLISHED.most) == (6, 3, 12)
    assert (PUBLISHED.up, PUBLISHED.down) == (0.8, 0.4)
    assert not PUBLISHED.gate
    assert PUBLISHED.thresholds == Thresholds(
        nll=None, entropy_bits=2.5, margin=0.2, hard_ratio=0.3
    )
    assert PUBLISHED.nll_quantile == 0.8 and PUBLISHED.draft_seconds == 0.4
    options = PUBLISHED.client_options()
    assert options["rule"].next_k() == 6 and options["gate"] is None
    assert options["wait"] == "block" and options["ahead"] is False
    assert PUBLISHED.client_options()["rule"] is not options["rule"]  # k is of one client
    on = replace(PUBLISHED, gate=True).client_options()["gate"]
    assert isinstance(on, Gate) and on.thresholds.hard_ratio == 0.3
    assert preset_of("published") is PUBLISHED
    assert get_args(PresetName) == tuple(PRESETS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperature": -1.0}, r"^temperature is -1\.0; expected"),
        ({"top_p": 0.0}, "^top_p is"),
        ({"repetition_penalty": 0.0}, "^repetition_penalty is"),
        ({"k": 2}, "^least is 3; expected"),
        ({"k": 13}, "^most is 12; expected"),
        ({"up": 0.3}, r"^down is 0\.4 and up 0\.3; expected"),
        ({"gate": "no"}, "^gate is 'no'; expected True or False$"),
        ({"ahead": 1}, "^ahead is 1; expected True or False$"),
        ({"thresholds": 0.3}, r"^thresholds is 0\.3; expected Thresholds$"),
        ({"nll_quantile": 80}, "^nll_quantile is 80; expected 0 to 1$"),
        ({"wait": ""}, "^wait is ''; expected one of block, free-run, adaptive$"),
        ({"wait": []}, r"^wait is \[\]; expected one of"),
        ({"draft_seconds": -0.4}, r"^draft_seconds is -0\.4; expected"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        EdgePreset(**changes)


def test_an_unknown_name() -> None:
    unknown: list[Any] = ["lossy", None, []]
    for name in unknown:
        with pytest.raises(InputError, match=r"^preset is .*; expected one of published$"):
            preset_of(name)


async def test_the_text_is_that_of_the_plain_loop() -> None:
    """The toy cloud heeds the temperature alone."""
    async with toy_cloud() as cloud:
        options = PUBLISHED.client_options()
        asked = PUBLISHED.sampling(max_tokens=40)
        found = await answered(cloud.url, VOCABULARY, [5, 6, 7, 5, 6], asked, seed=3, **options)
        assert list(found.tokens) == plain([5, 6, 7, 5, 6], 40, 1.0, 3)
        told = cloud.heard[0]
        assert isinstance(told, Open) and told.wait == "block"
        assert told.sampling == Sampling(1.0, top_p=0.9, repetition_penalty=1.1)
        assert found.statistics.alpha_mean is not None and found.statistics.la_over_k is not None


def test_options_that_are_given_count(folder: Path) -> None:
    def told(*options: object) -> Open:
        with beside(window=64) as cloud:
            done = asked(cloud.url, folder, "--seed", 1, "--json", *options)
            assert done.status == 0, done.complaints
        first = cloud.heard[0]
        assert isinstance(first, Open)
        return first

    first = told("--preset", "published")
    assert first.sampling == Sampling(1.0, top_p=0.9, repetition_penalty=1.1)
    assert first.wait == "block"
    first = told("--preset", "published", "--temperature", 0, "--wait", "free-run", "--gate")
    assert first.sampling == Sampling(0.0, top_p=0.9, repetition_penalty=1.1)
    assert first.wait == "free-run"
    first = told("--repetition-penalty", 1.2)
    assert first.sampling == Sampling(0.0, repetition_penalty=1.2) and first.wait == ""
