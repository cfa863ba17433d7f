"""Which device a model runs on. torch takes seconds to import, so it is asked only where it can be
decisive: without the driver's library there is no CUDA device.
"""

from __future__ import annotations

import sys
from ctypes import CDLL
from importlib.util import find_spec
from typing import NamedTuple

from foresay.errors import InputError
from foresay.models.options import LoadOptions

__all__ = ["CudaDevices", "cuda_devices", "device_for", "has_driver"]

_NONE = "this machine has no CUDA device that torch can use"


class CudaDevices(NamedTuple):
    """usable   how many torch can use
    missing  why a model cannot run on one, as a part of a sentence; None: it can
    """

    usable: int
    missing: str | None


def device_for(options: LoadOptions) -> str:
    """The device of these options: "cpu", "cuda" or "cuda:N". "auto" is CUDA where torch sees a
    device and triton is there, else the CPU; with `quantize` always the CPU.

    Raises: InputError for a device that is not there or lacks what it needs, or a dtype that the
    CPU does not run.
    """
    device = options.device
    if device == "cpu" or (device == "auto" and options.quantize is not None):
        return "cpu"
    if device == "auto" and not has_driver():
        return _on_cpu(options, _NONE)
    found = cuda_devices()
    if device == "auto":
        return "cuda" if found.missing is None else _on_cpu(options, found.missing)
    if found.missing is not None:
        raise InputError(f"device is {device!r}; {found.missing}; expected cpu")
    number = int(device.partition(":")[2] or 0)
    if number >= found.usable:
        last = "" if found.usable == 1 else f" to cuda:{found.usable - 1}"
        raise InputError(
            f"device is {device!r}; this machine has {found.usable} CUDA "
            f"device{'' if found.usable == 1 else 's'}; expected cpu, cuda or cuda:0{last}"
        )
    return device


def cuda_devices() -> CudaDevices:
    """The CUDA devices of this machine. It imports torch, which takes seconds."""
    try:
        import torch
    except ImportError:
        return CudaDevices(0, "torch is not installed")
    if not torch.backends.cuda.is_built() and not torch.cuda.is_available():
        return CudaDevices(0, f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        return CudaDevices(0, _NONE)
    if find_spec("triton") is None:
        return CudaDevices(
            torch.cuda.device_count(), "triton is not installed, which comes with torch for CUDA"
        )
    return CudaDevices(torch.cuda.device_count(), None)


def _on_cpu(options: LoadOptions, why: str) -> str:
    if options.dtype == "float16":
        raise InputError(f"dtype is 'float16', but {why}; expected bfloat16 or float32")
    return "cpu"


def has_driver() -> bool:
    """Whether NVIDIA's driver is installed, without which torch finds no device."""
    try:
        CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
