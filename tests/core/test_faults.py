"""When memory runs out the core has changed nothing, or refuses every further call.

`faults.cpp` lets each allocation fail in turn. It is a program of its own, since an allocation that
fails inside nanobind or Python would tell nothing of the core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CSRC = HERE.parent.parent / "csrc"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COMPILER = shutil.which("c++") or shutil.which("g++")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler here"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="it has sanitizers of its own"),
]


def built(folder: Path, *options: str) -> Path:
    sources = [
        HERE / "faults.cpp",
        *(CSRC / f"{name}.cpp" for name in ("slab", "drafts", "threads")),
    ]
    sources += [*(CSRC / "suffix").glob("*.cpp"), *(CSRC / "corpus").glob("*.cpp")]
    program = folder / "faults"
    flags = ["-std=c++20", "-Og", "-pthread", f"-I{CSRC}", *options]
    subprocess.run([str(COMPILER), *flags, *map(str, sources), "-o", str(program)], check=True)
    return program


@pytest.mark.parametrize(
    "options",
    [
        # Each slab is an allocation that can fail, and whose end is known.
        pytest.param(["-DFORESAY_SANITIZE", *SANITIZERS], id="sanitized"),
        pytest.param([], id="slabs"),  # as they are
    ],
)
def test_every_allocation_fails_once(tmp_path: Path, options: list[str]) -> None:
    done = subprocess.run([str(built(tmp_path, *options))], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every allocation has failed once\n")
