"""What can be chosen when a model is loaded, checked before the long work."""

from __future__ import annotations

from typing import Literal, get_args

from foresay._core import cpu_level
from foresay.errors import InputError

__all__ = ["Dtype", "check_dtype", "check_threads"]

Dtype = Literal["auto", "bfloat16", "float32"]


def check_dtype(name: object) -> None:
    """Refuse a dtype that does not exist, and a FORESAY_CPU that this machine lacks.

    Raises: InputError.
    """
    if not isinstance(name, str) or name not in get_args(Dtype):
        raise InputError(f"dtype is {name!r}; expected {', '.join(get_args(Dtype))}")
    cpu_level()


def check_threads(threads: object) -> None:
    """Refuse a number of threads that attention cannot have.

    Raises: InputError.
    """
    if type(threads) is not int or not 0 <= threads <= 256:
        raise InputError(f"threads is {threads!r}; expected 0 to 256, where 0 is as torch uses")
