"""docs/python.md is one program that runs and prints what its comments promise.

The default model is replaced by a tiny one: nothing is fetched, and the test takes seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

import forks
from tiny import save_model

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
MODEL = '"smollm2-135m"'


def test_the_examples_run_in_order(tmp_path: Path) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert program.count(MODEL) == 3
    folder = save_model(tmp_path)
    promised = re.findall(r"^ *print\(.*\)  # (.*)$", program, re.MULTILINE)
    assert len(promised) == 9
    done = forks.run("-W", "error", "-c", program.replace(MODEL, repr(str(folder))))
    assert done.returncode == 0, done.stderr
    printed = iter(done.stdout.splitlines())
    for line in promised:
        assert line in printed, f"{line!r} was not printed, or not in this order"
