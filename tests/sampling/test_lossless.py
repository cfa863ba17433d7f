"""The command `foresay lossless`, and that each of its layers fails when the code is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foresay.errors import InputError
from foresay.sampling import reference
from foresay.sampling.batched import law
from foresay.sampling.batched import match as match_module
from foresay.sampling.batched import rejection as rejection_module
from foresay.sampling.kit import exact, sampled, schemes, scripts
from foresay.sampling.kit.prove import batched_match
from foresay.sampling.kit.schemes import RIGHT
from foresay.sampling.kit.user import load, prove_function
from sampling.test_servers import Toy, serving

FUNCTIONS = """
def right(p, q, tokens, parents, coins):
    for i, token in enumerate(tokens):
        drawn_from = q[i] or [int(v == token) for v in range(len(p[i]))]
        if not coins.accept(p[i][token] / drawn_from[token]):
            rest = [max(a - b, 0) for a, b in zip(p[i], drawn_from)]
            return [*tokens[:i], coins.draw(rest)]
    return [*tokens, coins.draw(p[-1])]

def resampling(p, q, tokens, parents, rng):
    for i, token in enumerate(tokens):
        if rng.random() >= p[i][token] / (q[i][token] if q[i] is not None else 1):
            return [*tokens[:i], rng.choice(len(p[i]), p=p[i])]
    return [*tokens, rng.choice(len(p[-1]), p=p[-1])]

def raising(p, q, tokens, parents, coins):
    raise RuntimeError("not today")
"""


def foresay(*arguments: str | Path) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "foresay", "lossless", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_quick_proof() -> None:
    status, out, err = foresay("--quick", "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert report["ok"]
    layers = [check["layer"] for check in report["checks"]]
    assert {"exact", "scripts", "law", "wrong"} == set(layers)
    assert layers.count("wrong") >= 30 and layers.count("exact") == len(RIGHT)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def test_a_user_s_function(functions: Path) -> None:
    status, out, _ = foresay("--quick", "--verify", f"{functions}:right")
    assert status == 0 and "2 proofs: all as it should be" in out
    status, out, _ = foresay("--quick", "--verify", f"{functions}:resampling")
    assert status == 1 and "SURPRISE" in out and "different" in out


def test_what_a_function_raises_is_a_failed_check(functions: Path) -> None:
    for check in prove_function(load(f"{functions}:raising"), 5):
        assert not check.ok and "RuntimeError: not today" in check.result


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("right", "'right' is no function; module:function or file.py:function is one"),
        ("no.such.module:f", "'no.such.module' cannot be imported"),
        ("nowhere.py:f", "'nowhere.py' cannot be imported"),
        ("json:nothing", "'json' has no function 'nothing'"),
        ("json:dumps", "coins .to be proved. or rng .to be tested. are needed"),
    ],
)
def test_what_is_no_function(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        list(prove_function(load(name)))


def test_two_servers() -> None:
    with serving(Toy()) as a, serving(Toy()) as b:
        status, out, _ = foresay("--servers", a, b, "--samples", "256", "--json")
        assert status == 0 and json.loads(out)["ok"]
    with serving(Toy()) as a, serving(Toy(turn=2)) as b:
        status, out, _ = foresay("--servers", a, b, "--samples", "0")
        assert status == 1 and "greedy: different in" in out


def test_wrong_usage() -> None:
    status, _, err = foresay("--verify", "a:b", "--servers", "http://x", "http://y")
    assert status == 1 and "two different proofs" in err
    status, _, err = foresay("--servers", "nonsense", "http://y")
    assert status == 1 and "'nonsense' is no server" in err


# That the proof is one: the code itself is broken, and the layer that covers it fails.


def test_a_broken_residual_is_found_by_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "residual", lambda p, q: p)
    assert exact.run(RIGHT["chain-drawn"], 20).differences
    assert exact.run(RIGHT["tree-drawn"], 20).differences


def test_a_broken_walk_is_found_by_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazy(tokens: Any, parents: Any, choose: Any) -> Any:
        return [], [choose(len(tokens) - 1)]

    monkeypatch.setattr(schemes, "follow_match", lazy)
    assert exact.run(RIGHT["match-chain-chosen"], 20).differences


def test_a_broken_batched_residual_is_found_by_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_module._Left, "take", lambda *_: None)
    for name in ("rejection, drawn chain", "rejection, tree, no replacement"):
        assert not sampled.test(sampled.SUBJECTS[name], total_variation=0.03).equal


def test_a_broken_batched_choice_is_found_by_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = match_module._choose

    def shifted(given: Any, rows: Any, asks: Any, kernel: Any, threads: int) -> Any:
        return right(given, rows, replace(asks, positions=asks.positions * 0), kernel, threads)

    monkeypatch.setattr(match_module, "_choose", shifted)
    assert scripts.run(batched_match("core"), 20, enough=1).differences


def test_a_law_that_forgets_the_path_is_found_by_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = law._penalise

    def forgetful(part: Any, which: Any, rows: Any, asks: Any) -> None:
        right(part, rows.starts[:-1][rows.request[which]], rows, asks)

    monkeypatch.setattr(law, "_penalise", forgetful)
    assert scripts.run(batched_match("core"), 40, enough=1).differences
