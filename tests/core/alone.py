"""Python processes that begin afresh, with the core that is tested here: what is decided once in a
process, and what may end it."""

from __future__ import annotations

import os
import subprocess
import sys


def python(code: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What becomes of code. Without site under the sanitizers: the paths of packages are given."""
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment
    command = [sys.executable, *(["-S"] if sys.flags.no_site else []), "-c", code, *words]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, check=False, timeout=120
    )
