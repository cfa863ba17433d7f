"""What the documents say is true: the example runs, the map's files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forks

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/exact.md"])
def test_the_example_of(page: str) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    done = forks.run("-c", code)
    assert done.returncode == 0, done.stderr
    promised = re.search(r"print\(.*\)  # (.*)", code)
    assert promised is not None and done.stdout.strip() == promised[1]


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
