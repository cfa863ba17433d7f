"""What this machine guarantees: whether a row's logits depend on its text alone, bit by bit.

The classes of row counts in `linears` and the order of sums in the core's attention are meant to
make it so; this tries it out on the loaded model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from foresay.draft import Draft

if TYPE_CHECKING:
    from foresay.arrays import Int32s
    from foresay.models.target import Target

__all__ = ["holds"]


def holds(target: Target, size: int = 44, last: int = 6) -> bool:
    """Whether the last tokens of a text have the same logits, to the bit, when they are computed
    one by one, as a chain of guesses, in a tree with wrong guesses, and beside another prompt.

    Mutates: nothing. Valid until: torch's threads change. Raises: nothing. GIL: released by torch.
    """
    random = np.random.default_rng(3)
    text = random.integers(0, target.vocabulary, size).astype(np.int32)
    wrong = random.integers(0, target.vocabulary, size).astype(np.int32)
    wanted = _one_by_one(target, text, last)
    ways = (_as_chain, _in_tree, _beside_another)
    return all(torch.equal(way(target, text, wrong, last), wanted) for way in ways)


def _one_by_one(target: Target, text: Int32s, last: int) -> Tensor:
    kv = target.open()
    rows = []
    for piece in [text[:-last], *np.split(text[-last:], last)]:
        part = target.part(kv, piece)
        rows.append(target.forward([part]))
        part.keep()
    return torch.cat(rows)


def _as_chain(target: Target, text: Int32s, wrong: Int32s, last: int) -> Tensor:
    return target.forward([target.part(target.open(), text[:-last], Draft.chain(text[-last:]))])


def _in_tree(target: Target, text: Int32s, wrong: Int32s, last: int) -> Tensor:
    """Each right node has a wrong sibling before it, and the prompt comes in two pieces."""
    kv = target.open()
    part = target.part(kv, text[:7], wanted=False)
    target.forward([part])
    part.keep()
    tokens = np.stack([wrong[:last], text[-last:]], axis=1).reshape(-1)
    parents = np.repeat(np.arange(-1, 2 * last - 2, 2), 2)
    rows = target.forward([target.part(kv, text[7:-last], Draft(tokens, parents.astype(np.int32)))])
    return torch.cat([rows[:1], rows[2::2]])


def _beside_another(target: Target, text: Int32s, wrong: Int32s, last: int) -> Tensor:
    others = [target.part(target.open(), np.tile(wrong, 3), wanted=False)]
    mine = target.part(target.open(), text[:-last], Draft.chain(text[-last:]))
    return target.forward([*others, mine])
