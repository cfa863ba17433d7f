"""What can be chosen when a model is loaded, checked before the long work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from foresay._core import cpu_level
from foresay.errors import InputError
from foresay.models.progress import Progress, silent

__all__ = [
    "Dtype",
    "LoadOptions",
    "Quantise",
    "check_device_name",
    "check_dtype",
    "check_quantise",
    "check_sizes",
    "check_threads",
]

Dtype = Literal["auto", "bfloat16", "float32"]
Quantise = Literal["q8_0", "q4_0"]
"""Weights of 8 bits or of 4, with a scale for each block of them."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is run, see `load.load`.

    Raises: InputError when constructed.
    """

    dtype: Dtype = "auto"
    quantize: Quantise | None = None
    deterministic: bool = True
    threads: int = 0
    progress: Progress = silent

    def __post_init__(self) -> None:
        check_threads(self.threads)
        check_dtype(self.dtype)
        if self.quantize is not None:
            check_quantise(self.quantize)
            if self.dtype != "auto":
                raise InputError(
                    f"quantize is {self.quantize!r} and dtype is {self.dtype!r}; expected one of "
                    "them"
                )

    @property
    def as_stored(self) -> bool:
        """Whether weights are used as a file stores them, where that can be."""
        return self.dtype == "auto" and self.quantize is None


def check_dtype(name: object) -> None:
    """Refuse a dtype that does not exist, and a FORESAY_CPU that this machine lacks.

    Raises: InputError.
    """
    _check_name("dtype", name, get_args(Dtype))
    cpu_level()


def check_quantise(name: object) -> None:
    """Refuse a format that does not exist.

    Raises: InputError.
    """
    _check_name("quantize", name, get_args(Quantise))


def _check_name(option: str, name: object, names: tuple[str, ...]) -> None:
    if not isinstance(name, str) or name not in names:
        raise InputError(f"{option} is {name!r}; expected {', '.join(names)}")


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
