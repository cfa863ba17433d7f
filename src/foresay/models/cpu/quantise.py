"""Weights quantised as llama.cpp quantises them."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError
from foresay.models.weights.stored import not_installed

__all__ = ["BLOCK", "Quantise", "check_quantise", "quantised"]

Quantise = Literal["q8_0", "q4_0"]
"""Weights of 8 bits or of 4, with a scale for each block of them."""

BLOCK = 32
"""Weights of a row that share a scale."""


def check_quantise(name: object) -> None:
    """Refuse a format that does not exist.

    Raises: InputError.
    """
    if not isinstance(name, str) or name not in get_args(Quantise):
        raise InputError(f"quantize is {name!r}; expected {', '.join(get_args(Quantise))}")


def quantised(values: NDArray[np.float32], format: Quantise) -> NDArray[np.uint8]:
    """Rows of whole blocks as bytes: uint8[rows, bytes].

    Raises: ModelError if the package gguf is not installed.
    """
    try:
        from gguf import GGMLQuantizationType, quants
    except ImportError as error:
        raise not_installed(error) from error
    with np.errstate(all="ignore"):  # a scale that is no number is refused by the core
        found: NDArray[np.uint8] = quants.quantize(values, GGMLQuantizationType[format.upper()])
    return found
