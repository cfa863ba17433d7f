"""Make a model's activations and experts batch-invariant; attention and linear layers are so by
the core and `linears`. `models/invariance.py` tests the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import gcd
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, activations

from foresay.models.cpu.linears import prefilling

__all__ = ["make_batch_invariant"]

_VECTOR = 64  # numbers that torch takes at once, at most: two vectors of bfloat16
_GRAIN, _GRAIN_OF_GELU = 1 << 15, 1 << 14  # numbers from which on torch divides them among threads
_ROWS = 16
_ELEMENTWISE = (nn.SiLU, nn.GELU, nn.Sigmoid, nn.Softplus, nn.Mish)


def make_batch_invariant(model: PreTrainedModel) -> None:
    """Replace operations whose results depend on a row's place. An activation's last numbers, which
    fill no whole vector, are computed in another way than the others. Experts and their routers
    are chosen and multiplied in ways that depend on how many rows there are.
    """
    # In bfloat16 rounding hid the difference in every test; parts would cost time.
    in_parts = model.dtype == torch.float32
    if in_parts and model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")  # others depend on the experts of other rows
    for module in model.modules():
        if type(module).__module__ == activations.__name__ or isinstance(module, _ELEMENTWISE):
            module.forward = _in_whole_vectors(module.forward)
        elif in_parts and isinstance(getattr(module, "experts", None), nn.Module):
            module.forward = _by_equal_parts(module.forward)


def _in_whole_vectors(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        size = x.numel()
        if x.shape[-1] % _VECTOR == 0 and _is_whole(size):
            return function(x.contiguous())  # strided ones are computed in another way
        whole = next(n for n in count(-(-size // _VECTOR) * _VECTOR, _VECTOR) if _is_whole(n))
        return function(nn.functional.pad(x.reshape(-1), (0, whole - size)))[:size].view(x.shape)

    return forward


def _is_whole(size: int) -> bool:
    """Whether each thread's share of `size` numbers is made of whole vectors."""
    threads = torch.get_num_threads()
    shares = min(threads, -(-size // _GRAIN)) or 1
    if size > _GRAIN_OF_GELU:
        shares *= threads // gcd(shares, threads)
    return size % (_VECTOR * shares) == 0


def _by_equal_parts(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Of a function of rows [1, T, width] that returns one tensor or several, row by row."""

    def forward(x: Tensor) -> Any:
        rows = x.shape[1]
        filled = nn.functional.pad(x, (0, 0, 0, -rows % _ROWS))
        with prefilling(torch.zeros(0, dtype=torch.bool)):  # a part's rows are not the step's
            outs = [function(part) for part in torch.split(filled, _ROWS, 1)]
        if isinstance(outs[0], Tensor):
            return _joined(outs, rows)
        return tuple(_joined(column, rows) for column in zip(*outs, strict=True))

    return forward


def _joined(parts: Sequence[Tensor], rows: int) -> Tensor:
    axis = parts[0].shape.index(_ROWS)
    return torch.cat(list(parts), axis).narrow(axis, 0, rows)
