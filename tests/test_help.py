"""`-h` is `--help`, for every command and group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from foresay.cli import app
from tiny import call


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


PATHS = list(commands(typer.main.get_command(app)))


def test_all_are_tried() -> None:
    assert {(), ("corpus",), ("corpus", "build"), ("generate",), ("serve",)} <= {*PATHS}


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_short_help(path: tuple[str, ...]) -> None:
    short, long = call(*path, "-h"), call(*path, "--help")
    assert (short.status, short.out, short.complaints) == (0, long.out, "")
    assert "-h, --help" in short.out
