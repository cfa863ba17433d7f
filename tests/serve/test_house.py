"""What is public in the server is documented, and a help text loads no server."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

import foresay.serve
import forks

NAMES = sorted(path.stem for path in Path(foresay.serve.__path__[0]).glob("[a-z]*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_public_is_documented(name: str) -> None:
    module = importlib.import_module(f"foresay.serve.{name}")
    for public, thing in vars(module).items():
        if public.startswith("_") or getattr(thing, "__module__", "") != module.__name__:
            continue
        listed = [(public, thing)]
        if inspect.isclass(thing):
            methods = inspect.getmembers(thing, inspect.isfunction)
            own = [(n, m) for n, m in methods if m.__module__ == module.__name__]
            listed += [(f"{public}.{n}", m) for n, m in own if not n.startswith("_")]
        for called, one in listed:
            assert inspect.getdoc(one), f"{name}.{called}"


def test_the_room_lists_its_files() -> None:
    about = foresay.serve.__doc__ or ""
    assert all(f"\n{name} " in about for name in NAMES)


def test_a_help_text_loads_no_server() -> None:
    code = "import sys, foresay.cli, foresay.serve; print(*sys.modules)"
    done = forks.run("-c", code, server=forks.LIGHT)
    assert done.returncode == 0
    assert not {"starlette", "uvicorn", "msgspec", "torch"} & set(done.stdout.split())
