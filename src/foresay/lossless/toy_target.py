"""A toy as the engine's target: prefilled and decoded tokens differ as much as two tokens can.

A real target computes prefill and decode by different kernels, whose results may differ in the last
bits; so the engine keeps apart which stored tokens were prefilled. Mistakes there change an answer
so rarely that no test with a real model would see them. After this target's texts they change every
row of logits: a prefilled token is another token to the toy.

Mutates: the texts given to `forward`. Valid until: for ever. GIL: held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Floats, Int32s
from foresay.draft import Draft
from foresay.errors import InputError
from foresay.lossless.toy import Toy
from foresay.models.target import Hidden, Outputs, SequenceInput

__all__ = ["ToyKv", "ToyTarget", "as_stored"]


def as_stored(tokens: Sequence[int], prefill: int, vocabulary: int) -> list[int]:
    """A text as a toy reads it: its first `prefill` tokens are raised by the vocabulary."""
    raised = [int(token) + vocabulary for token in tokens[:prefill]]
    return [*raised, *map(int, tokens[prefill:])]


class ToyKv:
    """What is stored of one text: the tokens themselves, prefilled ones raised by the vocabulary.

    Raises: InputError for lengths and rows that do not exist.
    """

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.new: list[int] = []
        """Rows of the last step."""

    @property
    def length(self) -> int:
        return len(self.stored)

    @property
    def capacity(self) -> int:
        return len(self.stored) + len(self.new)

    def keep(self, path: Int32s, /) -> None:
        """As `TextKv`."""
        rows = path.tolist()
        if any(not 0 <= row < len(self.new) for row in rows):
            raise InputError(f"the rows are {rows}; expected 0 to {len(self.new) - 1}")
        self.stored += [self.new[row] for row in rows]
        self.new = []

    def cut(self, length: int, /) -> None:
        """As `TextKv`."""
        if not 0 <= length <= len(self.stored):
            raise InputError(f"length is {length}; expected 0 to {len(self.stored)}")
        self.stored, self.new = self.stored[:length], []

    def copy_from(self, other: ToyKv, length: int, /) -> None:
        """As `TextKv`."""
        if self.stored or not 0 <= length <= len(other.stored):
            raise InputError(
                f"length is {length}; expected 0 to {len(other.stored)}, and nothing stored"
            )
        self.stored = other.stored[:length]

    def check_integrity(self) -> None:
        """As `TextKv`: there is nothing that could be violated."""


class ToyTarget:
    """A `Target` whose logits are a toy's rows. Raises: see the methods."""

    exact: bool | None = True
    version: int = 0
    depth: int = 0
    threads: int = 1
    identity: str | None = None
    bytes_per_token: int = 1

    def __init__(self, toy: Toy, context: int = 4096) -> None:
        self.toy = toy
        self.vocabulary = toy.vocabulary
        self.context = context

    def open(self) -> ToyKv:
        """A new text, of which nothing is stored."""
        return ToyKv()

    def open_filled(self, tokens: int) -> ToyKv:
        """As if `tokens` of a text were stored."""
        kv = ToyKv()
        kv.stored = [0] * tokens
        return kv

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        """As `Target`, but for hidden states, which a toy has none of.

        Raises: InputError for no parts, or hidden states.
        """
        if not parts or hidden:
            raise InputError(f"{len(parts)} parts, hidden is {hidden}; expected parts and False")
        own: list[Floats] = []
        prefilled: list[Floats] = []
        for part in parts:
            kv = part.kv
            assert isinstance(kv, ToyKv)
            tokens = as_stored(part.tokens.tolist(), part.prefill, self.vocabulary)
            kv.new = [*tokens, *part.draft.tokens.tolist()]
            text = [*kv.stored, *tokens]
            if part.needs_logits:
                own.append(self.toy.rows(text, part.draft))
            end = len(kv.stored) + part.prefill
            prefilled += [
                self.toy.rows(text[: at + 1], Draft.empty())
                for at in range(end - part.prefill_logits, end)
            ]
        rows = own + prefilled or [np.empty((0, self.vocabulary), np.float32)]
        return Outputs(torch.from_numpy(np.concatenate(rows)))

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """None: a toy has no weights."""
        return {}

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        """Refused: a toy has no weights.

        Raises: InputError.
        """
        raise InputError("a toy has no weights; expected none to be replaced")
