"""What the documents say is true: the example runs, the map's files exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_examples_of_the_readme() -> None:
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 2
    for code in examples:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        promised = re.search(r"print\(.*\)  # (.*)", code)
        assert promised is not None and done.stdout.strip() == promised[1]


def test_the_links_of_the_documents() -> None:
    for document in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for link in re.findall(r"\]\((?!http)([^)#]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_rooms_of_the_map() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    rooms = re.search(r"src/foresay/\n(.*?)```", text, re.DOTALL)
    assert rooms is not None
    named = {line.split()[0].rstrip("/") for line in rooms[1].splitlines() if line.strip()}
    package = ROOT / "src" / "foresay"
    real = {p.name for p in package.iterdir() if not p.name.startswith(("_", "py.typed"))}
    assert named == real - {"data"}
