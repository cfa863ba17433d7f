"""The keyed noise for many rows at once, in torch, on any device.

The torch twin of `foresay.sampling.noise`, which is the specification: the uniforms are the same,
bit for bit. The logarithm is that of torch on the device, so a Gumbel may differ from numpy's in
its last bits; another token can win only where two perturbed values are closer than that.

A seed is 64 bits; torch computes with int64, so a seed is given as the int64 with the same bits.

Mutates: nothing. Valid until: for ever. Raises: TokenTypeError for a tensor of another dtype or
shape than stated, InputError for a stream outside 32 bits. The values in the tensors (a position
or token below 0, a negative temperature) are not looked at, since that would wait for the device.
GIL: held while the work is handed to the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from foresay.errors import InputError, TokenTypeError
from foresay.sampling.noise import Stream
from foresay.sampling.processors import RowStatus

__all__ = ["Choice", "choose", "gumbel", "uniform"]

_SLICE = 1 << 22  # perturbed logits held at once: some 300 MB with all that computes them
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF


class Choice(NamedTuple):
    """The chosen token of each row."""

    tokens: Tensor
    """int64[R]; -1 where nothing was chosen."""
    values: Tensor
    """float64[R]: the winner's perturbed logit; NaN where nothing was chosen."""
    status: Tensor
    """uint8[R]: a RowStatus."""


def uniform(seeds: Tensor, positions: Tensor, tokens: Tensor, stream: int = 0) -> Tensor:
    """The uniforms float64[R, n] of the token ids int64[n] for each row's int64 seed and position.

    Raises: TokenTypeError, InputError.
    """
    _check("seeds", seeds, [torch.int64], [len(seeds)])
    _check("positions", positions, [torch.int64], [len(seeds)])
    _check("tokens", tokens, [torch.int64], [len(tokens)])
    _check_stream(stream)
    # Words of 32 bits in int64. Their product wraps to a negative number, whose bits are right: the
    # mask drops the signs that the shift brings in. What depends on the row only, or on the token
    # only, stays [R, 1] or [1, n] for as long as it can.
    keys = seeds[:, None] & _LOW, (seeds[:, None] >> 32) & _LOW
    c0, c1 = positions[:, None], tokens[None]
    c2, c3 = torch.full_like(c0, stream), torch.zeros_like(c0)
    for r in range(10):
        k0, k1 = ((keys[i] + r * _WEYL[i]) & _LOW for i in (0, 1))
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((product1 >> 32) & _LOW) ^ c1 ^ k0, product1 & _LOW
        c2, c3 = ((product0 >> 32) & _LOW) ^ c3 ^ k1, product0 & _LOW
    numbers = (c0 << 20) | (c1 >> 12)
    return numbers.double().add_(0.5).mul_(2.0**-52)


def gumbel(seeds: Tensor, positions: Tensor, tokens: Tensor, stream: int = 0) -> Tensor:
    """The standard Gumbel noise float64[R, n], with the arguments of `uniform`.

    Raises: TokenTypeError, InputError.
    """
    return uniform(seeds, positions, tokens, stream).log_().neg_().log_().neg_()


def choose(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    stream: int = Stream.TARGET,
) -> Choice:
    """The token of each row with the largest logit / temperature + noise, the lowest id of equals.

    `logits` is float32[R, V] (bfloat16 and float16 are converted), `temperatures` float32[R] with 0
    for greedy rows, which get no noise; `seeds` and `positions` are int64[R]. The division is
    rounded to float32, the sum to float64. A row whose scaled logits hold NaN or +inf, or nothing
    but -inf, chooses nothing.

    Raises: TokenTypeError, InputError.
    """
    check_rows(logits, temperatures, seeds, positions, stream)
    rows, vocabulary = logits.shape
    greedy = (temperatures == 0)[:, None]
    scale = torch.where(greedy, 1.0, temperatures[:, None])
    best = torch.full([rows], -torch.inf, dtype=torch.float64, device=logits.device)
    tokens = torch.full([rows], -1, dtype=torch.int64, device=logits.device)
    step = max(1, _SLICE // max(1, rows))
    for begin in range(0, vocabulary, step):
        ids = torch.arange(begin, min(begin + step, vocabulary), device=logits.device)
        noise = gumbel(seeds, positions, ids, stream).masked_fill_(greedy, 0.0)
        values = noise.add_(logits[:, begin : begin + step].float() / scale)
        top = values.amax(1)  # NaN if any is
        # Not argmax, which may name any of several equals: the lowest id by its own minimum.
        first = ids.where(values == top[:, None], vocabulary).amin(1)
        tokens = first.where(top > best, tokens)  # equals go to the earlier slice
        best = best.maximum(top)
    status = torch.zeros_like(tokens, dtype=torch.uint8)
    status.masked_fill_(best.isneginf(), int(RowStatus.EMPTY))
    status.masked_fill_(best.isposinf(), int(RowStatus.INFINITE))
    status.masked_fill_(best.isnan(), int(RowStatus.NAN))
    good = status == RowStatus.GOOD
    return Choice(tokens.where(good, -1), best.where(good, torch.nan), status)


def check_rows(
    logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor, stream: int
) -> None:
    """Refuse what `choose` does not take. Raises: TokenTypeError, InputError."""
    floats = [torch.float32, torch.bfloat16, torch.float16]
    _check("logits", logits, floats, [len(logits), logits.shape[-1]])
    _check("temperatures", temperatures, [torch.float32], [len(logits)])
    _check("seeds", seeds, [torch.int64], [len(logits)])
    _check("positions", positions, [torch.int64], [len(logits)])
    _check_stream(stream)


def _check(name: str, tensor: Tensor, dtypes: list[torch.dtype], shape: list[int]) -> None:
    if tensor.dtype not in dtypes or list(tensor.shape) != shape:
        kind = str(dtypes[0]).removeprefix("torch.")
        found = f"{tensor.dtype}{list(tensor.shape)}".removeprefix("torch.")
        raise TokenTypeError(f"{name} is {found}; expected a tensor {kind}{shape}")


def _check_stream(stream: int) -> None:
    if not 0 <= stream < 1 << 32:
        raise InputError(f"stream {stream} is not valid; expected 0 to 2**32 - 1")
