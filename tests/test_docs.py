"""What the documents say is true: their programs run and print what they promise, the map's files
exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forks
from documents import MODEL, ROOT, program, promised
from tiny import save_model


@pytest.mark.parametrize(
    ("page", "models", "lines"),
    [
        ("README.md", 0, 1),
        ("docs/exact.md", 0, 1),
        ("docs/drafter.md", 1, 2),
        ("docs/python.md", 3, 9),
        ("docs/structured.md", 1, 3),
    ],
)
def test_the_program_of(page: str, models: int, lines: int, tmp_path: Path) -> None:
    """As it names the default model so often and promises so many lines, and few others."""
    code = program(page)
    assert code.count(MODEL) == models and len(promised(code)) == lines
    folder = save_model(tmp_path)
    done = forks.run("-W", "error", "-c", code.replace(MODEL, repr(str(folder))))
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert page == "docs/python.md" or len(printed) == lines
    rest = iter(printed)
    for line in promised(code):
        assert line in rest, f"{line!r} was not printed, or not in this order"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_links_of_the_documents() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_rooms_of_the_map() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    rooms = re.search(r"src/foresay/\n(.*?)```", text, re.DOTALL)
    assert rooms is not None
    package = ROOT / "src" / "foresay"
    named: dict[str, set[str]] = {}  # by room, the modules on the lines below it
    for line in rooms[1].splitlines():
        if line.startswith("    "):
            names = re.match(r" {4}(\w+/?(?:, \w+)*)", line)
            assert names is not None, line
            named[list(named)[-1]] |= {n for n in names[1].split(", ") if not n.endswith("/")}
        else:
            named[line.split()[0].rstrip("/")] = set()
    real = {p.name for p in package.iterdir() if not p.name.startswith(("_", "py.typed"))}
    assert set(named) == real - {"data"}
    for room, modules in named.items():
        if modules:
            assert modules == {p.stem for p in (package / room).glob("[!_]*.py")}, room
