"""Whether a target is batch-invariant on this machine: a row's logits have the same bits whatever
else is in the step. Tested on the loaded model.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.errors import ModelError
from foresay.models.target import SequenceInput, Target, TextKv

__all__ = ["is_batch_invariant"]

_SIZE, _LAST = 44, 6  # tokens of the text, and of its end, whose logits are compared
_PIECE = 7
_LEAST = 14  # tokens that a context needs for that


def is_batch_invariant(target: Target, prompt: int = 300, *, hidden: bool = False) -> bool:
    """Whether the last tokens of a text have the same logits, to the bit, when they are computed
    one by one, as a drafted chain, in a draft tree with wrong nodes, and beside another prompt; and
    whether a prompt of `prompt` tokens gives the same ones with prefill in one piece and in three.
    If `hidden`, their last hidden states too: rounding may hide a difference from the logits.

    Raises: ModelError for a context that is too short to try it.
    """
    if target.context < _LEAST:
        raise ModelError(
            f"the model's context is {target.context} tokens; expected {_LEAST} or more"
        )
    random, size = np.random.default_rng(3), min(_SIZE, target.context)
    text, wrong, long = (
        random.integers(0, target.vocabulary, count).astype(np.int32)
        for count in (size, size, prompt)
    )
    begin, end = text[:-_LAST], text[-_LAST:]

    def part(tokens: Int32s, draft: Draft | None = None, kv: TextKv | None = None) -> SequenceInput:
        """All tokens but the last one are prefill."""
        kv = target.open() if kv is None else kv
        return SequenceInput.of(target, kv, tokens, draft, prefill=len(tokens) - 1)

    def rows(*parts: SequenceInput) -> Tensor:
        given = target.forward(parts, hidden=hidden)
        return given.logits if given.hidden is None else torch.cat([given.logits, given.hidden], 1)

    def stored(*pieces: Int32s) -> TextKv:
        kv = target.open()
        for piece in pieces:
            one = SequenceInput.of(target, kv, piece, needs_logits=False, prefill=len(piece))
            target.forward([one])
            one.keep()
        return kv

    kv, singles = target.open(), []
    for piece in [begin, *np.split(end, _LAST)]:
        one = part(piece, kv=kv)
        singles.append(rows(one))
        one.keep()
    wanted, chain = torch.cat(singles), Draft.chain(end)
    if not torch.equal(rows(part(begin, chain)), wanted):
        return False
    # Each right node has a wrong sibling before it, and the prompt comes in two pieces.
    tokens = np.stack([wrong[:_LAST], end], axis=1).reshape(-1)
    parents = np.repeat(np.arange(-1, 2 * _LAST - 2, 2), 2)
    both = Draft(tokens, parents.astype(np.int32))
    tree = rows(part(begin[_PIECE:], both, stored(begin[:_PIECE])))
    if not torch.equal(torch.cat([tree[:1], tree[2::2]]), wanted):
        return False
    # The other prompt is decoded, so that prefill and decode rows are mixed.
    beside = np.tile(wrong, 3)[: target.context]
    other = SequenceInput.of(target, target.open(), beside, needs_logits=False)
    if not torch.equal(rows(other, part(begin, chain)), wanted):
        return False
    long = long[: target.context]
    whole, pieces = (
        rows(part(long[-1:], kv=stored(*np.split(long[:-1], cuts))))
        for cuts in ([], [len(long) // 7, len(long) // 2])
    )
    return torch.equal(whole, pieces)
