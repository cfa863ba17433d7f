"""The command `foresay lossless`, and that each of its layers fails when the code is wrong."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import forks
from foresay import _core
from foresay.errors import InputError
from foresay.lossless import exact, sampled, schemes, scripts
from foresay.lossless.prove import batched_match
from foresay.lossless.schemes import RIGHT
from foresay.lossless.user import load, prove_function
from foresay.sampling import Stream, noise, reference
from foresay.sampling.acceptance import match as match_module
from foresay.sampling.acceptance import processors
from foresay.sampling.acceptance import rejection as rejection_module
from foresay.sampling.acceptance.match import Kernel
from foresay.sampling.acceptance.rows import Rows
from lossless.example import example
from lossless.toy_server import Toy, serving
from tiny import call

FUNCTIONS = """
def resampling(p, q, tokens, parents, rng):
    for i, token in enumerate(tokens):
        if rng.random() >= p[i][token] / (q[i][token] if q[i] is not None else 1):
            return [*tokens[:i], rng.choice(len(p[i]), p=p[i])]
    return [*tokens, rng.choice(len(p[-1]), p=p[-1])]

def raising(p, q, tokens, parents, coins):
    raise RuntimeError("not today")

def leaving(p, q, tokens, parents, coins):
    raise SystemExit(0)
def leaving_test(p, q, tokens, parents, rng):
    raise SystemExit(0)

def none(p, q, tokens, parents, coins):
    return None
def none_test(p, q, tokens, parents, rng):
    return None

def drawn(p, q, tokens, parents, coins):
    return [coins.draw(p[0])]

def tested(p, q, tokens, parents, rng, strict=True, *more, **options):
    return [rng.choice(len(p[0]), p=p[0])]

def four(p, q, tokens, coins):
    return [0]

def keyword(p, q, tokens, parents, *, coins):
    return [0]

def six(p, q, tokens, parents, coins, more):
    return [0]

number = 7
"""


# Not found, as if not installed. (None in sys.modules would be simpler; scipy stumbles over it.)
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in without else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
from foresay.__main__ import main
main()
"""


def foresay(*arguments: str | Path, without: tuple[str, ...] = ()) -> tuple[int, str, str]:
    if not without:  # in this process, which has imported scipy
        here = call("lossless", *arguments)
        return here.status, here.out, here.err
    start = ["-c", f"without = {without!r}\n{WITHOUT}"]
    done = forks.run(*start, "lossless", *arguments, server=forks.LIGHT)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow  # its layers have tests of their own, of every right and every wrong rule
def test_the_quick_proof() -> None:
    done = forks.run("-m", "foresay", "lossless", "--quick", "--json")  # it starts processes
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["ok"]
    layers = [check["layer"] for check in report["checks"]]
    assert {"exact", "scripts", "engine", "sampled", "wrong"} == set(layers)
    assert layers.count("wrong") >= 30 and layers.count("exact") == len(RIGHT)


@pytest.mark.parametrize("name", sampled.SUBJECTS)
def test_the_distributions_of_the_batched_code(name: str) -> None:
    assert sampled.test(sampled.SUBJECTS[name], 0.05, family=len(sampled.SUBJECTS)).equal


@pytest.mark.parametrize("name", sampled.WRONG_SUBJECTS)
def test_wrong_distributions_are_found(name: str) -> None:
    assert not sampled.test(sampled.WRONG_SUBJECTS[name], 0.05).equal


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "functions.py"
    right = example().replace("def verify", "def right")
    path.write_text(right + FUNCTIONS)
    return path


def test_a_wrong_function_of_a_user(functions: Path) -> None:
    """The right one: test_what_needs_no_torch_does_not_import_it."""
    status, out, _ = foresay("--quick", "--verify", f"{functions}:resampling")
    assert status == 1 and "SURPRISE" in out and "different" in out
    assert "2 tests: " in out


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("raising",), "RuntimeError: not today"),
        (("leaving", "leaving_test"), "SystemExit: 0"),
        (("none", "none_test"), ": the function returned None; expected a list of token ids"),
    ],
)
def test_what_a_function_raises_is_a_failed_check(
    functions: Path, names: tuple[str, ...], said: str
) -> None:
    for name in names:
        for check in prove_function(load(f"{functions}:{name}"), 5):
            assert not check.ok and said in check.result


def test_a_function_s_limits_are_stated(functions: Path) -> None:
    for trees, nodes, deep in ((False, 3, 3), (True, 5, 2)):
        for check in prove_function(load(f"{functions}:drawn"), 12, trees):
            assert (
                f"(worlds of up to 5 tokens, drafts of up to {nodes} nodes and {deep} deep, texts "
                "of up to 4 tokens)"
            ) in check.result
            assert check.ok and check.kind == "proof"
    for check in prove_function(load(f"{functions}:tested"), total_variation=0.2):
        assert check.ok and "4 worlds (worlds of up to" in check.result and check.kind == "test"


def test_the_example_of_the_help() -> None:
    status, out, _ = foresay("--help")
    text = textwrap.dedent(out[out.index("    def verify") :].split("\n\n")[0])
    assert status == 0 and len(text.splitlines()) == 8
    space: dict[str, Any] = {}
    exec(text, space)
    assert all(check.ok for check in prove_function(space["verify"], 40))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ("a\0b", "cannot be imported: (Syntax|Value)Error"),  # as Python has it
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported(tmp_path: Path, text: str, sentence: str) -> None:
    path, before = tmp_path / "broken.py", list(sys.path)
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        load(f"{path}:f")
    assert "broken" not in sys.modules and sys.path == before


def test_a_file_is_imported_as_a_module_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("number = 7")
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "from typing import ClassVar\nimport beside_it\n\n@dataclass\nclass Options:\n"
        "    many: ClassVar[int] = beside_it.number\n\ndef f():\n    return Options.many\n"
    )
    for name in ("with_options.py", "json.py"):
        (tmp_path / name).write_text(text)
        assert load(f"{tmp_path / name}:f")() == 7
        assert load(f"{tmp_path / name}:f")() == 7
    assert sys.modules["json"] is json
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "with_options_too.py").write_text(text)
    assert load("with_options_too:f")() == 7


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("right", "'right' is no function; expected module:function or file.py:function"),
        ("no.such.module:f", "'no.such.module' cannot be imported"),
        ("nowhere.py:f", "'nowhere.py' cannot be imported"),
        ("json:nothing", "'json' has no function 'nothing'"),
        ("json:decoder", "'decoder' in 'json' is a value of type module; expected a function"),
        (".rel:f", "'.rel' cannot be imported: TypeError"),
        ("a\0b.py:f", "cannot be imported: "),
        ("builtins:max", "parameters cannot be read; expected p, q, tokens, parents and"),
        ("json:dumps", "parents and then coins .to be proved. or rng .to be tested."),
        ("FUNCTIONS:four", "and more only with defaults"),
        ("FUNCTIONS:keyword", "and more only with defaults"),
        ("FUNCTIONS:six", "and more only with defaults"),
    ],
)
def test_what_is_no_function(functions: Path, name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        list(prove_function(load(name.replace("FUNCTIONS", str(functions)))))


def test_what_needs_no_torch_does_not_import_it(functions: Path) -> None:
    status, out, err = foresay("--quick", "--verify", f"{functions}:right", without=("torch",))
    assert (status, err) == (0, "") and "2 proofs: all as it should be" in out
    with serving(Toy()) as a, serving(Toy()) as b:
        status, out, err = foresay("--servers", a, b, "--samples", "0", without=("torch",))
    assert (status, err) == (0, "") and "1 test: all as it should be" in out


def test_what_is_missing_is_named(functions: Path) -> None:
    install = "with: pip install '.[lossless]' in foresay's checkout\n"
    status, out, err = foresay(without=("torch", "scipy"))
    assert (status, out) == (1, "")
    assert err == f"foresay: foresay lossless needs torch and scipy; install them {install}"
    _, _, err = foresay(without=("torch",))
    assert err == f"foresay: foresay lossless needs torch; install it {install}"
    status, _, err = foresay("--verify", f"{functions}:right", without=("scipy",))
    assert (status, err) == (1, f"foresay: foresay lossless needs scipy; install it {install}")


def test_two_servers(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.write_text("the sea\na sky\nsalt\n")
    with serving(Toy()) as a, serving(Toy()) as b:
        some = "--prompts", prompts
        status, out, _ = foresay("--servers", a, b, *some, "--samples", "256", "--json")
        assert status == 0 and json.loads(out)["ok"]
    with serving(Toy()) as a, serving(Toy(turn=2)) as b:
        status, out, _ = foresay("--servers", a, b, "--samples", "0")
        assert status == 1 and "greedy: different in" in out
        assert "1 test: 1 SURPRISE (" in out and "prompt 0 ('def fibonacci(n):'): A writes" in out
        status, out, _ = foresay("--servers", a, b, "--samples", "0", "--tie", "0.5")
        assert status == 0
    with serving(Toy()) as a, serving(Toy()) as b:
        status, out, _ = foresay("--servers", a, b, *some, "--samples", "16")
        assert status == 1 and "2 tests: 1 SURPRISE (" in out


SERVERS = ["--servers", "http://127.0.0.1:9", "http://127.0.0.1:10"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([*SERVERS, "--max-tokens", "0"], "--max-tokens is 0; expected at least 1"),
        ([*SERVERS, "--samples", "-1"], "--samples is -1; expected 0 (only greedy answers), or at"),
        ([*SERVERS, "--samples", "15"], "--samples is 15; expected 0 (only greedy answers), or at"),
        ([*SERVERS, "--tie", "nan"], "--tie is nan; expected a margin in nats, finite and at leas"),
        ([*SERVERS, "--tie=-1"], "--tie is -1.0; expected"),
        ([*SERVERS, "--prompts", "PROMPTS"], "is not UTF-8 at byte 3; expected UTF-8 with one"),
        ([*SERVERS, "--trees"], "--trees goes with --verify only"),
        ([*SERVERS, "--quick"], "--quick does not go with --servers"),
        ([*SERVERS, "--verify", "a:b"], "both given; expected one"),
        (["--servers", "nonsense", "http://y"], "'nonsense' is no server"),
        (
            ["--trees", "--model", "x", "--tie", "0.01"],
            "foresay: --trees goes with --verify only; --model, --tie go with --servers only\n",
        ),
        # FORESAY_API_KEY is no option that was given.
        (["--verify", "json:nothing"], "foresay: 'json' has no function 'nothing'\n"),
        (
            ["--verify", "json:nothing", "--api-key", "x", "--samples", "0"],
            "foresay: --api-key, --samples go with --servers only\n",
        ),
    ],
)
def test_options_are_checked_before_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], sentence: str
) -> None:
    monkeypatch.setenv("FORESAY_API_KEY", "secret")
    path = tmp_path / "prompts"
    path.write_bytes(b"abc\xff\n")
    status, out, err = foresay(*[path if option == "PROMPTS" else option for option in options])
    assert (status, out) == (1, "") and sentence in err


def test_a_seed_below_0_is_refused() -> None:
    assert foresay("--seed", "-1")[0] == 2


# That the proof is one: the code itself is broken, and the layer that covers it fails.


def test_a_broken_rule_is_found_by_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "residual", lambda p, q: p)
    assert exact.run(RIGHT["chain-sampled"], 20).differences
    assert exact.run(RIGHT["tree-sampled"], 20).differences
    lazy: Any = lambda tokens, parents, choose: ([], [choose(len(tokens) - 1)])  # noqa: E731
    monkeypatch.setattr(schemes, "follow_match", lazy)
    assert exact.run(RIGHT["match-chain-chosen"], 20).differences


def test_a_broken_batched_residual_is_found_by_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection_module._Residual, "subtract", lambda *_: None)
    for name in ("rejection, sampled chain", "rejection, tree, no replacement"):
        assert not sampled.test(sampled.SUBJECTS[name], total_variation=0.04).equal


def test_a_broken_batched_choice_is_found_by_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(logits: Any, **given: Any) -> Any:
        return _core.choose(logits, **given | {"positions": given["positions"] * 0})

    broken = SimpleNamespace(match=_core.match, follow=_core.follow, choose=shifted)
    monkeypatch.setattr(match_module, "_core", broken)
    assert scripts.run(batched_match("core"), 20, enough=1).differences


@pytest.mark.parametrize("kernel", ["core", "torch"])
def test_a_walk_that_accepts_some_tokens_always_is_found_by_scripts(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Along what was chosen in every row, which for the core is half of the steps."""
    right = match_module.followed

    def wrong(codes: Any, drafts: Any, *others: Any) -> Any:
        rows, codes = Rows.of(drafts), codes.copy()
        always = np.flatnonzero(rows.token % 7 == 3)
        codes[rows.parent[always]] = rows.token[always]
        return right(codes, drafts, *others)

    monkeypatch.setattr(match_module, "followed", wrong)
    assert scripts.run(batched_match(kernel), 20, enough=1).differences


@pytest.mark.parametrize(
    "wrong",
    [
        lambda given: given | {"positions": given["positions"] * 0},
        lambda given: given | {"stops": given["stops"] * 0},
        lambda given: given | {"room": given["room"] + 1},
        lambda given: given | {"parents": given["parents"] * 0 - 1},
    ],
)
def test_a_broken_call_of_the_core_is_found_by_scripts(
    wrong: Callable[[dict[str, Any]], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = SimpleNamespace(
        match=lambda logits, **given: _core.match(logits, **wrong(given)),
        choose=_core.choose,
        follow=_core.follow,
    )
    monkeypatch.setattr(match_module, "_core", broken)
    assert scripts.run(batched_match("core"), 40, enough=1).differences


def test_a_penalty_that_forgets_the_path_is_found_by_scripts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = processors._penalise

    def forgetful(part: Any, which: Any, rows: Any, inputs: Any) -> None:
        right(part, rows.starts[:-1][rows.request[which]], rows, inputs)

    monkeypatch.setattr(processors, "_penalise", forgetful)
    assert scripts.run(batched_match("core"), 40, enough=1).differences


def test_coins_reused_between_steps_are_found_by_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = noise.uniform

    def stuttering(seeds: Any, positions: Any, tokens: Any, stream: int) -> Any:
        return right(seeds, positions * (stream != Stream.ACCEPT), tokens, stream)

    monkeypatch.setattr(rejection_module, "uniform", stuttering)
    subject = sampled.SUBJECTS["rejection, sampled chain"]
    assert not sampled.test(subject, total_variation=0.04).equal
