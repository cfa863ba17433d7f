"""The scripts of benchmarks/ as modules. Their folder is on the path only while one is imported:
`core`, `drafters` and `edge` are folders of tests, too, and other processes are given the path."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
BENCHMARKS = TESTS.parent / "benchmarks"


@cache
def script(name: str) -> Any:
    path = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        if not (TESTS / name).is_dir():
            return import_module(name)
        spec = spec_from_file_location(f"benchmarks_{name}", BENCHMARKS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path[:] = path
