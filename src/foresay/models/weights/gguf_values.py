"""The values of a GGUF file's tensors: their bytes, decoded and encoded with the package gguf."""

from __future__ import annotations

import os
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.gguf_header import GgmlType, Tensor

__all__ = ["BLOCK", "decoded", "dequantised", "not_installed", "quantised", "tensor_bytes"]

BLOCK = 32
"""Weights of a row that share a scale, of those that `quantised` makes."""


def tensor_bytes(
    file: str | os.PathLike[str], tensor: Tensor, begin: int = 0, count: int | None = None
) -> NDArray[np.uint8]:
    """The bytes of a tensor as the file has them, or `count` of them from `begin` on: uint8[count].
    They are read and not mapped: who truncates a file in place would end every process that reads a
    mapping.

    Raises: ModelError naming the tensor if the file has become shorter, or cannot be read.
    """
    count = tensor.size if count is None else count
    try:
        with open(file, "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if tensor.start < 0 or tensor.size < 1 or tensor.start + tensor.size > size:
                raise ModelError(
                    f"'{file}' was changed: the tensor '{tensor.name}' should have {tensor.size} "
                    f"bytes at {tensor.start}, but the file has {size} bytes"
                )
            opened.seek(tensor.start + begin)
            found = np.fromfile(opened, np.uint8, count)
    except (OSError, ValueError) as error:
        raise ModelError(f"'{file}': the tensor '{tensor.name}' cannot be read: {error}") from error
    if len(found) != count:
        raise ModelError(f"'{file}' became shorter: it ends inside the tensor '{tensor.name}'")
    return found


def decoded(
    file: str | os.PathLike[str], tensor: Tensor, raw: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """Whole rows of a tensor, from their bytes: float32[rows, values]. A scale may be no number.

    Raises: UnsupportedModel for a type that cannot be decoded; ModelError without the package.
    """
    width = tensor.size // (tensor.shape[0] if len(tensor.shape) > 1 else 1)
    try:
        return dequantised(raw.reshape(-1, width), tensor.kind)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"'{file}': the tensor '{tensor.name}' is {error}") from error


def dequantised(rows: NDArray[np.uint8], kind: GgmlType) -> NDArray[np.float32]:
    """Rows of whole blocks of that kind as numbers: float32[rows, values].

    Raises: UnsupportedModel for a type that cannot be decoded; ModelError without the package.
    """
    gguf = _package()
    try:
        with np.errstate(all="ignore"):
            values = gguf.dequantize(rows, gguf.GGMLQuantizationType(kind))
    except NotImplementedError as error:
        raise UnsupportedModel(f"of type {kind.name}, which cannot be decoded") from error
    found: NDArray[np.float32] = values.reshape(len(rows), -1)
    return found


def quantised(values: NDArray[np.float32], format: str) -> NDArray[np.uint8]:
    """Rows of whole blocks as bytes in a format of `options.Quantise`: uint8[rows, bytes].

    Raises: ModelError without the package.
    """
    gguf = _package()
    with np.errstate(all="ignore"):  # a scale that is no number is refused by the core
        found: NDArray[np.uint8] = gguf.quantize(values, gguf.GGMLQuantizationType[format.upper()])
    return found


def not_installed(error: ImportError) -> ModelError:
    """The error to raise for a package that is missing."""
    package = (error.name or "gguf").split(".")[0]
    return ModelError(
        f"a GGUF file is read with the package '{package}', which is not installed; "
        "install it with: pip install '.[engine]' in foresay's checkout"
    )


def _package() -> ModuleType:
    try:
        import gguf
    except ImportError as error:
        raise not_installed(error) from error
    return gguf
