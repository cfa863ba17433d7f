"""Errors of a command in the words of its user: they name options, not Python's parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from foresay.errors import InputError

__all__ = ["naming_options"]

P = ParamSpec("P")
R = TypeVar("R")


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
