"""The table of mutants does not rot: each can be applied, and its test is there. `make mutants`
says whether the tests find them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutants.run import Tree, verdict_of
from mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_can_be_applied(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.old) == 1 and mutant.old != mutant.new
    if mutant.file.endswith(".py"):
        ast.parse(text.replace(mutant.old, mutant.new))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_test_is_there(mutant: Mutant) -> None:
    file, _, name = mutant.test.partition("::")
    module = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    found = [
        node
        for node in module
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    assert len(found) == 1
    marks = [*found[0].decorator_list, *(node for node in module if isinstance(node, ast.Assign))]
    assert not any("mark.slow" in ast.unparse(mark) for mark in marks)


def test_there_are_enough_in_every_room() -> None:
    assert len(MUTANTS) >= 40 and sum(mutant.core for mutant in MUTANTS) >= 12
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    packages = {path.parent.name for path in (ROOT / "src" / "foresay").glob("*/__init__.py")}
    folders = {f"csrc/{path.name}" for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert packages | folders - {"csrc/bind"} <= {mutant.room for mutant in MUTANTS}


def test_a_mutant_lasts_as_long_as_it_is_tested(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\n")
    with Tree(tmp_path).with_mutant(Mutant("two", "a.py", "= 1", "= 2", "")):
        assert (tmp_path / "a.py").read_text() == "one = 2\n"
    assert (tmp_path / "a.py").read_text() == "one = 1\n"
    with (
        pytest.raises(AssertionError, match="not exactly once"),
        Tree(tmp_path).with_mutant(Mutant("none", "a.py", "= 3", "= 2", "")),
    ):
        pass


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(0, "survived"), (1, "found"), (2, "broken"), (4, "broken"), (5, "broken"), (-1, "broken")],
)
def test_only_a_failed_test_finds_anything(status: int, verdict: str) -> None:
    assert verdict_of(status) == verdict
