"""How results and progress are shown: bars on a terminal only, plain text off it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from foresay.errors import InputError

__all__ = [
    "check_out",
    "harmless",
    "print_fields",
    "print_heading",
    "print_object",
    "print_table",
    "progress",
    "stages",
    "tolerate_encoding",
]


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
    """A bar for work in stages; each stage fills it once."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, done: bar.update(task, description=f"{stage:<8}", completed=done)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    # Results that are printed meanwhile go to stdout, not to stderr.
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)


def check_out(out: Path | None, file: Path) -> None:
    """Refuse a file to write to that is the one that is read, or is in no folder: before the work,
    not after it.

    Raises: InputError.
    """
    if out is not None and out.exists() and file.exists() and out.samefile(file):
        raise InputError(f"'{out}' is the file to be read; expected another one to write to")
    if out is not None and not out.parent.is_dir():
        raise InputError(f"'{out.parent}' is not a folder; expected a file in an existing folder")


def tolerate_encoding() -> None:
    """Print ? for characters that stdout's encoding does not have, instead of failing."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def harmless(text: str) -> str:
    """A model's text, on a terminal without its control characters."""
    return text.translate(_CONTROLS) if sys.stdout.isatty() else text


_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


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
        if number == 0:
            print_heading(line.rstrip())
        else:
            print(line.rstrip())


def print_heading(line: str) -> None:
    if sys.stdout.isatty():
        shown = Text(harmless(line), style="bold")
        Console(highlight=False).print(shown, soft_wrap=True)
    else:
        print(line)
