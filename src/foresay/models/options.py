"""What can be chosen when a model is loaded, checked before the long work."""

from __future__ import annotations

from typing import Literal, get_args

from foresay._core import cpu_level
from foresay.errors import InputError

__all__ = ["Dtype", "check_device_name", "check_dtype", "check_sizes", "check_threads"]

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


def check_device_name(device: object) -> None:
    """Refuse what is no device, without asking torch whether it is there.

    Raises: InputError.
    """
    if not isinstance(device, str) or device.split(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"device is {device!r}; expected cpu or cuda")


def check_sizes(hidden: int, heads: int) -> None:
    """Refuse a small model that cannot be made.

    Raises: InputError.
    """
    if hidden % (32 * heads):
        raise InputError(
            f"hidden is {hidden} with {heads} heads; expected a multiple of {32 * heads}, 32 for "
            "each head"
        )
