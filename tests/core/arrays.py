"""Arrays as tests write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def ints(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def longs(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def floats(*shape: int, fill: float = 1) -> NDArray[np.float32]:
    return np.full(shape, fill, np.float32)


def single(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def doubles(*values: float) -> NDArray[np.float64]:
    return np.array(values, np.float64)


def halves(*shape: int) -> NDArray[np.uint16]:
    return np.ones(shape, np.uint16)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
