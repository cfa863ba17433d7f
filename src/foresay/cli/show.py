"""How results and progress are shown: bars on a terminal only, plain text off it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["print_fields", "print_object", "print_table", "progress", "stages"]


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while the body runs, only if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)


@contextmanager
def stages() -> Iterator[Callable[[str, float], None] | None]:
    """The same for work in stages, each of which fills the bar once."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, done: bar.update(task, description=f"{stage:<8}", completed=done)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def print_object(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(value))
    else:
        print_fields(value)


def print_fields(fields: dict[str, Any]) -> None:
    width = max(len(name) for name in fields) + 2
    for name, value in fields.items():
        shown = (
            f"{value:.4f}" if isinstance(value, float) else "unknown" if value is None else value
        )
        print(f"{name.replace('_', ' '):<{width}}{shown}")


def print_table(head: list[str], body: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    for number, row in enumerate([head, *body]):
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        if number == 0 and sys.stdout.isatty():
            Console(highlight=False).print(line.rstrip(), style="bold", soft_wrap=True)
        else:
            print(line.rstrip())
