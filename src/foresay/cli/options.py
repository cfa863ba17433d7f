"""Of all commands: which options are given, which packages are missing, and errors in the words of
a user, which name options, not Python's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from importlib.util import find_spec
from inspect import signature
from typing import ParamSpec, TypeVar

import typer

from foresay.errors import InputError

__all__ = ["SERVER", "given", "naming_options", "require"]

SERVER = ("starlette", "uvicorn", "msgspec", "prometheus-client", "websockets")
"""The packages of a server."""

P = ParamSpec("P")
R = TypeVar("R")


def given(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line; an environment variable does not count."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def require(command: str, extra: str, *packages: str) -> None:
    """Refuse to continue without the packages of an extra.

    Raises: ModuleNotFoundError.
    """
    missing = [name for name in packages if find_spec(name.replace("-", "_")) is None]
    if missing:
        raise ModuleNotFoundError(
            f"foresay {command} needs {' and '.join(missing)}; install "
            f"{'them' if len(missing) > 1 else 'it'} with: "
            f"pip install '.[{extra}]' in foresay's checkout"
        )


def naming_options(
    others: Mapping[str, str] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a command: `held_out is 2; …` becomes `--held-out is 2; …`, and a parameter in backticks
    its option.

    others  what else an error may call an option, such as {"layers": "--layer"}
    """

    def named(command: Callable[P, R]) -> Callable[P, R]:
        options = {name: "--" + name.replace("_", "-") for name in signature(command).parameters}
        options |= others or {}
        any_name = "|".join(map(re.escape, options))
        first, quoted = re.compile(rf"({any_name}) (is|are)\b"), re.compile(rf"`({any_name})`")

        @wraps(command)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return command(*args, **kwargs)
            except InputError as error:
                said = quoted.sub(lambda found: options[found[1]], str(error))
                begin = first.match(said)
                if begin:
                    said = f"{options[begin[1]]} is{said[begin.end() :]}"
                if said == str(error):
                    raise
                raise type(error)(said) from error

        return call

    return named
