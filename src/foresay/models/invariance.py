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
from foresay.models.target import Part, Target

__all__ = ["is_batch_invariant"]


def is_batch_invariant(
    target: Target, size: int = 44, last: int = 6, prompt: int = 300, *, hidden: bool = False
) -> bool:
    """Whether the last tokens of a text have the same logits, to the bit, when they are computed
    one by one, as a drafted chain, in a draft tree with wrong nodes, and beside another prompt; and
    whether a prompt of `prompt` tokens gives the same ones with prefill in one piece and in three.
    If `hidden`, their last hidden states too: rounding may hide a difference from the logits.

    Raises: ModelError for a context that is too short to try it.
    """
    least = last + 8  # the beginning of a text, and its last tokens
    if target.context < least:
        raise ModelError(
            f"the model's context is {target.context} tokens; expected {least} or more"
        )
    random, size = np.random.default_rng(3), min(size, target.context)
    text = random.integers(0, target.vocabulary, size).astype(np.int32)
    wrong = random.integers(0, target.vocabulary, size).astype(np.int32)
    wanted = _one_by_one(target, text, last, hidden)
    ways = (_as_chain, _in_tree, _beside_another)
    same = all(torch.equal(way(target, text, wrong, last, hidden), wanted) for way in ways)
    return same and _in_pieces(
        target, random.integers(0, target.vocabulary, prompt).astype(np.int32), hidden
    )


def _rows(target: Target, parts: list[Part], hidden: bool) -> Tensor:
    """The logits of a step, and if asked for the hidden states beside them."""
    given = target.forward(parts, hidden=hidden)
    return given.logits if given.hidden is None else torch.cat([given.logits, given.hidden], 1)


def _in_pieces(target: Target, text: Int32s, hidden: bool) -> bool:
    """Whether a longer prompt gives the same rows with prefill in one piece and in three."""
    text, rows = text[: target.context], []
    for cuts in ([], [len(text) // 7, len(text) // 2]):
        kv = target.open()
        for piece in np.split(text[:-1], cuts):
            part = Part.of(target, kv, piece, needs_logits=False, prefill=len(piece))
            target.forward([part])
            part.keep()
        rows.append(_rows(target, [Part.of(target, kv, text[-1:])], hidden))
    return torch.equal(*rows)


def _one_by_one(target: Target, text: Int32s, last: int, hidden: bool) -> Tensor:
    kv = target.open()
    rows = []
    for piece in [text[:-last], *np.split(text[-last:], last)]:
        part = Part.of(target, kv, piece, prefill=len(piece) - 1)
        rows.append(_rows(target, [part], hidden))
        part.keep()
    return torch.cat(rows)


def _as_chain(target: Target, text: Int32s, wrong: Int32s, last: int, hidden: bool) -> Tensor:
    prompt, chain = text[:-last], Draft.chain(text[-last:])
    part = Part.of(target, target.open(), prompt, chain, prefill=len(prompt) - 1)
    return _rows(target, [part], hidden)


def _in_tree(target: Target, text: Int32s, wrong: Int32s, last: int, hidden: bool) -> Tensor:
    """Each right node has a wrong sibling before it, and the prompt comes in two pieces."""
    kv = target.open()
    part = Part.of(target, kv, text[:7], needs_logits=False, prefill=7)
    target.forward([part])
    part.keep()
    tokens = np.stack([wrong[:last], text[-last:]], axis=1).reshape(-1)
    parents = np.repeat(np.arange(-1, 2 * last - 2, 2), 2)
    tree, rest = Draft(tokens, parents.astype(np.int32)), text[7:-last]
    rows = _rows(target, [Part.of(target, kv, rest, tree, prefill=len(rest) - 1)], hidden)
    return torch.cat([rows[:1], rows[2::2]])


def _beside_another(target: Target, text: Int32s, wrong: Int32s, last: int, hidden: bool) -> Tensor:
    """The other prompt is decoded, so that prefill and decode rows are mixed."""
    other = Part.of(target, target.open(), np.tile(wrong, 3)[: target.context], needs_logits=False)
    prompt, chain = text[:-last], Draft.chain(text[-last:])
    mine = Part.of(target, target.open(), prompt, chain, prefill=len(prompt) - 1)
    return _rows(target, [other, mine], hidden)
