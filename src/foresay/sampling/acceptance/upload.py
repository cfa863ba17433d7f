"""Small arrays of a step to the device, and its result back: one copy each way.

A copy from ordinary memory waits until the device has done all that was asked of it before, which
is the forward pass. So everything that the host knows of a step is packed into one pinned buffer
and sent without waiting; the one wait of a step is that for its result.

torch keeps a pinned buffer back from reuse until the copies out of it are done.

Mutates: nothing. Valid until: for ever; on the CPU, until the given arrays are written to, which
are not copied there. Raises: nothing. GIL: `download` releases it while it waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Arrays", "Download", "download", "upload"]

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
_ALIGNED = 16  # bytes: no number is longer, and Triton reads fastest from such addresses


def upload(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """The same arrays as tensors on the device, on a GPU views of one buffer. Does not wait."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    if device.type != "cuda":
        return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
    places, end = dict[str, int](), 0
    for name, array in arrays.items():
        places[name] = end
        end += -(-array.nbytes // _ALIGNED) * _ALIGNED
    pinned = torch.empty(end, dtype=torch.uint8, pin_memory=True)
    bytes_of = pinned.numpy()
    for name, array in arrays.items():
        there = slice(places[name], places[name] + array.nbytes)
        bytes_of[there] = array.reshape(-1).view(np.uint8)
    whole = pinned.to(device, non_blocking=True)
    return {
        name: whole[places[name] : places[name] + array.nbytes]
        .view(_DTYPES[array.dtype])
        .view(array.shape)
        for name, array in arrays.items()
    }


class Download:
    """A tensor's values on their way to the host; what the device is asked for afterwards is not
    waited for."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._done = tensor, None
        if tensor.device.type == "cuda":
            self._tensor = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(torch.cuda.current_stream(tensor.device))

    def values(self) -> NDArray[Any]:
        """The values, once they are there: the one wait of a step."""
        if self._done is not None:
            self._done.synchronize()
        values: NDArray[Any] = self._tensor.cpu().numpy()
        return values


def download(tensor: Tensor) -> NDArray[Any]:
    """The tensor's values, once the device has computed them."""
    return Download(tensor).values()


_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(dtype): getattr(torch, np.dtype(dtype).name)
    for dtype in (np.uint8, np.int32, np.int64, np.float32, np.float64)
}
