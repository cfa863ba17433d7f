"""The Python of the documents as programs. The default model is replaced by a tiny one: nothing is
fetched, and a test takes seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["MODEL", "ROOT", "blocks", "program", "promised"]

ROOT = Path(__file__).parent.parent
MODEL = '"smollm2-135m"'


def blocks(page: str) -> list[str]:
    """Those of a page, by its path from the root of the repository."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def program(page: str, *replaced: tuple[str, str]) -> str:
    """All of them in order, with other words in place of some."""
    code = "\n".join(blocks(page))
    for old, new in replaced:
        assert old in code, f"{page} has no {old}"
        code = code.replace(old, new)
    return code


def promised(code: str) -> list[str]:
    """What its comments say that it prints."""
    return re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
