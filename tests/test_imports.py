"""The import rules of docs/map.md, read from the source without running it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "foresay"
FILES = sorted(SRC.rglob("*.py"))

# Floors from the ground up. A room imports only from floors below its own, and from itself.
FLOORS = [
    ["_core", "errors", "counts", "plot", "files", "machine"],
    ["arrays"],
    ["draft", "verdict", "traces"],
    ["sampling", "models", "oracle", "corpus"],
    ["structured"],
    ["drafter"],
    ["abilities"],
    ["budget"],
    ["drafters"],
    ["engine"],
    ["edge", "lossless", "rl", "train"],
    ["serve", "bench"],
    ["doctor", "integrations"],
    ["cli"],
    ["__main__"],
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}

# Rooms on one floor, or drafters, that must not know each other in spite of the floors.
FORBIDDEN = {
    "sampling": {"models"},
}
MODEL_DRAFTERS = {
    *("model", "self_draft", "mtp"),
    *(f"eagle/{name}" for name in ("drafter", "files", "head")),
    *(f"decoding/{name}" for name in ("drafter", "next_tokens", "state", "tree_builder")),
    *(f"head/{name}" for name in ("drafter", "requests")),
    "worker/main",  # which makes the parameters of a request anew
}
"""Drafters that run a model, and what they are made of; they may also sample, with a request's
noise and processors."""
SHARED = {"decoding", "head"}
"""No drafters: what two of them are made of."""
SAMPLING = {
    *(
        f"foresay.sampling.{name}"
        for name in ("verification", "noise", "params", "processors", "signals")
    ),
    *(f"foresay.sampling.acceptance.{name}" for name in ("processors", "rows")),
}
HOSTS = {"vllm", "trl", "verl", "transformers"}
TORCH_FREE = {
    *(
        "__init__",
        "abilities",
        "arrays",
        "counts",
        "draft",
        "drafter",
        "errors",
        "files",
        "machine",
        "oracle",
        "traces",
        "verdict",
    ),
    *(
        f"drafters/{name}"
        for name in (
            *("__init__", "suffix", "ngram", "model", "self_draft", "grammar"),
            *("decoding/__init__", "decoding/drafter", "decoding/shapes", "decoding/state"),
            "decoding/noise_weight",
            *("recycle/__init__", "recycle/drafter", "recycle/table_file"),
            *("external", "merge/__init__", "merge/drafter", "merge/gating", "merge/union"),
            "merge/uniting",
            *("worker/__init__", "worker/drafter", "worker/frames", "worker/life"),
            *("worker/main", "worker/values"),
        )
    ),
    *(f"edge/{name}" for name in ("__init__", "ids", "json_frames", "messages", "prefix", "wire")),
    *(f"edge/{name}" for name in ("ahead", "client", "connection", "drafting", "gating", "link")),
    *(f"edge/{name}" for name in ("preset", "settings", "statistics", "stream", "text")),
    *("edge/text_patterns", "edge/text_rules", "drafters/lineup"),
    *("engine/proposal", "engine/text"),
    *(f"structured/{name}" for name in ("__init__", "grammars", "lead", "matcher", "tree")),
    *(
        f"sampling/{name}"
        for name in (
            "params",
            "verification",
            "noise",
            "processors",
            "reference",
            "signals",
        )
    ),
}


def test_the_names_above_are_files() -> None:
    drafters = {f"drafters/{name}" for name in MODEL_DRAFTERS}
    sampling = {name.removeprefix("foresay.").replace(".", "/") for name in SAMPLING}
    for name in TORCH_FREE | drafters | sampling:
        assert (SRC / f"{name}.py").exists(), name


def name_of(path: Path) -> str:
    return path.relative_to(SRC).with_suffix("").as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[str]:
    """All modules a file names in an import, also inside functions."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            found |= {f"{module}.{a.name}" for a in node.names} if module == "foresay" else {module}
    return frozenset(found)


def room(module: str) -> str:
    """foresay.drafters.ngram -> drafters; foresay.__version__ -> __init__."""
    part = module.split(".")[1] if "." in module else "__init__"
    return part if part in FLOOR else "__init__"


def of_each(files: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test for all files: a thousand cases would take longer than their work."""

    def of_all(check: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            for path in files:
                check(path)

        return test

    return of_all


@of_each(FILES)
def test_floors(path: Path) -> None:
    own = name_of(path).split("/")[0]
    if own == "__init__":
        used = {room(m) for m in imports(path) if m.startswith("foresay")}
        values = {"draft", "drafter", "verdict", "errors", "sampling"}
        assert used <= {*values, "engine"}  # LLM: for types only
        return
    assert own in FLOOR, f"{path} is in no room of the map"
    for module in imports(path):
        if not module.startswith("foresay"):
            continue
        used_room = room(module)
        if used_room in ("__init__", own):
            continue
        assert FLOOR[used_room] < FLOOR[own], f"{own} must not import {module}"
        assert used_room not in FORBIDDEN.get(own, set()), f"{own} must not import {module}"
        if used_room in ("models", "sampling") and own == "drafters":
            drafter = name_of(path).removeprefix("drafters/")
            assert drafter in MODEL_DRAFTERS, f"{drafter} runs no model"
            assert used_room == "models" or module in SAMPLING, f"{drafter} verifies nothing"


def test_no_two_files_import_each_other() -> None:
    """Nor for types alone: what two files need of each other belongs in a third."""
    files = {f"foresay.{name_of(path)}".replace("/", "."): path for path in FILES}
    above = {name: imports(path) & files.keys() - {name} for name, path in files.items()}
    done: set[str] = set()
    while free := {name for name in above.keys() - done if above[name] <= done}:
        done |= free
    left = sorted(above.keys() - done)
    assert not left, {name: sorted(above[name] - done) for name in left}


@of_each(sorted((SRC / "drafters").rglob("*.py")))
def test_a_drafter_never_imports_another(path: Path) -> None:
    name = name_of(path).removeprefix("drafters/")
    if name not in ("__init__", "lineup", "worker/main"):  # which name them all
        used = {m for m in imports(path) if m.startswith("foresay.drafters")}
        assert {m.split(".")[2] for m in used} <= {name.split("/")[0], *SHARED}


@of_each(FILES)
def test_frameworks_stay_in_their_files(path: Path) -> None:
    tops = {module.split(".")[0] for module in imports(path)}
    name = name_of(path)
    if name in TORCH_FREE or name.startswith("budget/"):
        assert "torch" not in tops
    if "triton" in tops:
        assert name.startswith(("sampling/acceptance/triton", "models/gpu/"))
    for host in HOSTS & tops:
        allowed = name.startswith(f"integrations/{host}/") or (
            host == "transformers" and name.startswith("models/")
        )
        assert allowed, f"{name} must not import {host}"
    if name.split("/")[0] not in ("cli", "__main__"):
        assert not tops & {"typer", "rich"}


def test_importing_foresay_imports_only_numpy() -> None:
    code = (
        "import sys, foresay, foresay.drafters; from foresay.drafters import *;"
        "import foresay.budget.policy, foresay.budget.urgency;"
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {"torch", "typer", "rich", *HOSTS}


def test_only_the_bindings_know_python() -> None:
    for path in sorted((ROOT / "csrc").rglob("*.?pp")):
        if path.parent.name != "bind":
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"#include\s*[<\"](nanobind|Python\.h)", text), path.name


@of_each(FILES)
def test_nothing_that_runs_what_it_reads(path: Path) -> None:
    assert not imports(path) & {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("eval", "exec", "torch.load", "np.load", "numpy.load"), called


def test_files_are_short_enough_to_hold_in_the_head() -> None:
    found = [
        path
        for folder in ("src", "csrc", "tests", "benchmarks")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".cpp", ".hpp", ".js", ".css")
    ]
    assert len(found) > 400
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in found}
    assert not {str(path): lines for path, lines in sizes.items() if lines > 400}


LOOKED_FOR = re.compile(r"\b_?(drafter|policy|target|member)s?\b")


def lookups(tree: ast.AST) -> list[str]:
    """Where an attribute of a drafter, a policy or a target is looked for by its name."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and LOOKED_FOR.search(ast.unparse(node.args[0]))
    ]


def test_what_a_drafter_or_a_target_can_do_is_looked_for_in_one_place() -> None:
    """`abilities_of` for drafters, `check_target` for targets."""
    places = {SRC / "abilities.py", SRC / "models" / "target.py"}
    found = {name_of(path): lookups(parsed(path)) for path in FILES if path not in places}
    assert {name: calls for name, calls in found.items() if calls} == {}
    assert all(lookups(parsed(path)) for path in places)
    assert lookups(ast.parse("take = getattr(self._drafter, 'propose_more', None)"))
