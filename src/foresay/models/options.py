"""What can be chosen when a model is loaded, checked before the long work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from foresay._core import cpu_level
from foresay.arrays import check_positive
from foresay.errors import InputError
from foresay.models.progress import Progress, silent

__all__ = [
    "Dtype",
    "LoadOptions",
    "Quantise",
    "check_device",
    "check_device_name",
    "check_dtype",
    "check_quantise",
    "check_sizes",
    "check_threads",
]

Dtype = Literal["auto", "bfloat16", "float32", "float16"]
"""Of weights; float16 on GPUs only."""
Quantise = Literal["q8_0", "q4_0"]
"""Weights of 8 bits or of 4, with a scale for each block of them."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is run, see `load.load`.

    device  "auto", "cpu", "cuda" or "cuda:N"; `device.device_for` says which one "auto" is
    memory  bytes for keys and values on a GPU; None: what its target takes
    weight_memory  bytes of weights on a GPU: layers beyond that wait in the host's memory and are
            streamed (layer offloading); None: all are there

    Raises: InputError when constructed, also for options that do not fit the device.
    """

    dtype: Dtype = "auto"
    quantize: Quantise | None = None
    deterministic: bool = True
    threads: int = 0
    progress: Progress = silent
    device: str = "auto"
    memory: int | None = None
    weight_memory: int | None = None

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
        check_device(self.device)
        if self.memory is not None:
            check_positive(self.memory, "memory")
        if self.weight_memory is not None:
            check_positive(self.weight_memory, "weight_memory")
        if self.quantize is not None and self.device.startswith("cuda"):
            raise InputError(
                f"quantize is {self.quantize!r} and device is {self.device!r}, where weights in "
                "blocks are widened; expected device 'cpu', or no quantize"
            )
        if self.dtype == "float16" and self.device == "cpu":
            raise InputError(
                "dtype is 'float16' and device is 'cpu'; expected bfloat16 or float32 there, or a "
                "CUDA device"
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


def check_device(device: object) -> None:
    """Refuse what is no device of `LoadOptions`, without asking torch whether it is there.

    Raises: InputError.
    """
    if device != "auto" and not _is_device(device):
        raise InputError(f"device is {device!r}; expected auto, cpu, cuda or cuda:N")


def check_device_name(device: object) -> None:
    """Refuse what is no device of torch that we know, without asking whether it is there.

    Raises: InputError.
    """
    if not _is_device(device):
        raise InputError(f"device is {device!r}; expected cpu, cuda or cuda:N")


def _is_device(device: object) -> bool:
    # No number of two digits and more begins with 0, and torch's has 8 bits.
    named = isinstance(device, str) and re.fullmatch(r"cpu|cuda(:(0|[1-9][0-9]{0,2}))?", device)
    return bool(named)


def check_sizes(hidden: int, heads: int) -> None:
    """Refuse a small model that cannot be made.

    Raises: InputError.
    """
    if hidden % (32 * heads):
        raise InputError(
            f"hidden is {hidden} with {heads} heads; expected a multiple of {32 * heads}, 32 for "
            "each head"
        )
