"""What this machine guarantees: whether a row's logits depend on its text alone, bit by bit.

The classes of row counts in `linears` and the order of sums in the core's attention are meant to
make it so, and `steady` for what is neither; `holds` tries it out on the loaded model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, activations

from foresay.draft import Draft
from foresay.models.linears import reading

if TYPE_CHECKING:
    from foresay.arrays import Int32s
    from foresay.models.target import Target

__all__ = ["holds", "steady"]

_VECTOR = 64  # numbers that torch takes at once, at most: two vectors of bfloat16
_GRAIN, _GRAIN_OF_GELU = 1 << 15, 1 << 14  # numbers from which on torch divides them among threads
_ROWS = 16
_ELEMENTWISE = (nn.SiLU, nn.GELU, nn.Sigmoid, nn.Softplus, nn.Mish)


def steady(model: PreTrainedModel) -> None:
    """Take care of what makes a row's bits depend on its place. An activation's last numbers, which
    fill no whole vector, are computed in another way than the others. Experts and their routers
    are chosen and multiplied in ways that depend on how many rows there are.

    Mutates: the model. Valid until: for ever. Raises: nothing. GIL: held.
    """
    # In bfloat16 rounding hid how experts are multiplied in every trial; parts would cost time.
    in_parts = model.dtype == torch.float32
    if in_parts and model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")  # the others look at who shares an expert
    for module in model.modules():
        if type(module).__module__ == activations.__name__ or isinstance(module, _ELEMENTWISE):
            module.forward = _in_whole_vectors(module.forward)
        elif in_parts and isinstance(getattr(module, "experts", None), nn.Module):
            module.forward = _by_equal_parts(module.forward)


def _in_whole_vectors(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        size = x.numel()
        if x.shape[-1] % _VECTOR == 0 and _is_whole(size):
            return function(x.contiguous())  # others are not computed as they are, and one row is
        whole = next(n for n in count(-(-size // _VECTOR) * _VECTOR, _VECTOR) if _is_whole(n))
        return function(nn.functional.pad(x.reshape(-1), (0, whole - size)))[:size].view(x.shape)

    return forward


def _is_whole(size: int) -> bool:
    """Whether each thread's share of so many numbers is made of whole vectors."""
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
        with reading(torch.zeros(0, dtype=torch.bool)):  # a part's rows are not the step's
            outs = [function(part) for part in torch.split(filled, _ROWS, 1)]
        if isinstance(outs[0], Tensor):
            return _joined(outs, rows)
        return tuple(_joined(column, rows) for column in zip(*outs, strict=True))

    return forward


def _joined(parts: Sequence[Tensor], rows: int) -> Tensor:
    axis = parts[0].shape.index(_ROWS)
    return torch.cat(list(parts), axis).narrow(axis, 0, rows)


def holds(target: Target, size: int = 44, last: int = 6) -> bool:
    """Whether the last tokens of a text have the same logits, to the bit, when they are computed
    one by one, as a chain of guesses, in a tree with wrong guesses, and beside another prompt.

    Mutates: nothing. Valid until: torch's threads change. Raises: nothing. GIL: released by torch.
    """
    random, size = np.random.default_rng(3), min(size, target.context)
    text = random.integers(0, target.vocabulary, size).astype(np.int32)
    wrong = random.integers(0, target.vocabulary, size).astype(np.int32)
    wanted = _one_by_one(target, text, last)
    ways = (_as_chain, _in_tree, _beside_another)
    same = all(torch.equal(way(target, text, wrong, last), wanted) for way in ways)
    return same and _in_pieces(target, random.integers(0, target.vocabulary, 300).astype(np.int32))


def _in_pieces(target: Target, text: Int32s) -> bool:
    """Whether a longer prompt gives the same logits when it is read at once and in three pieces."""
    text, rows = text[: target.context], []
    for cuts in ([], [len(text) // 7, len(text) // 2]):
        kv = target.open()
        for piece in np.split(text[:-1], cuts):
            part = target.part(kv, piece, wanted=False, read=len(piece))
            target.forward([part])
            part.keep()
        rows.append(target.forward([target.part(kv, text[-1:])]).logits)
    return torch.equal(*rows)


def _one_by_one(target: Target, text: Int32s, last: int) -> Tensor:
    kv = target.open()
    rows = []
    for piece in [text[:-last], *np.split(text[-last:], last)]:
        part = target.part(kv, piece, read=len(piece) - 1)
        rows.append(target.forward([part]).logits)
        part.keep()
    return torch.cat(rows)


def _as_chain(target: Target, text: Int32s, wrong: Int32s, last: int) -> Tensor:
    prompt, chain = text[:-last], Draft.chain(text[-last:])
    return target.forward([target.part(target.open(), prompt, chain, read=len(prompt) - 1)]).logits


def _in_tree(target: Target, text: Int32s, wrong: Int32s, last: int) -> Tensor:
    """Each right node has a wrong sibling before it, and the prompt comes in two pieces."""
    kv = target.open()
    part = target.part(kv, text[:7], wanted=False, read=7)
    target.forward([part])
    part.keep()
    tokens = np.stack([wrong[:last], text[-last:]], axis=1).reshape(-1)
    parents = np.repeat(np.arange(-1, 2 * last - 2, 2), 2)
    tree, rest = Draft(tokens, parents.astype(np.int32)), text[7:-last]
    rows = target.forward([target.part(kv, rest, tree, read=len(rest) - 1)]).logits
    return torch.cat([rows[:1], rows[2::2]])


def _beside_another(target: Target, text: Int32s, wrong: Int32s, last: int) -> Tensor:
    """Of another prompt nothing is read, so that rows of both kinds stand among each other."""
    other = target.part(target.open(), np.tile(wrong, 3)[: target.context], wanted=False)
    prompt, chain = text[:-last], Draft.chain(text[-last:])
    mine = target.part(target.open(), prompt, chain, read=len(prompt) - 1)
    return target.forward([other, mine]).logits
