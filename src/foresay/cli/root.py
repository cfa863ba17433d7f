"""The root of all commands, and what happens when one fails."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from foresay import __version__
from foresay.errors import ForesayError

__all__ = ["AsJson", "app", "run"]

app = typer.Typer(
    name="foresay",
    help="Language models answer faster without changing a single answer.",
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command and group
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def run() -> None:
    """Run the command line and exit: 0 on success, 1 on failure, 2 on wrong usage."""
    try:
        app()
    except ForesayError as error:
        _fail(str(error))
    except OSError as error:
        reason = error.strerror or str(error)
        _fail(f"{error.filename}: {reason}" if error.filename else reason)
    except ModuleNotFoundError as error:
        # Without a name it is a message of our own.
        _fail(
            f"{error.name} is not installed; `foresay doctor` says how to get it"
            if error.name
            else str(error)
        )


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"foresay {__version__}")
        raise typer.Exit


def _fail(sentence: str) -> None:
    print(f"foresay: {sentence}", file=sys.stderr)
    raise SystemExit(1)
