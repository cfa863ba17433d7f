"""Prompts and answers of a batch as one padded table, as a trainer's forward pass takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foresay.errors import InputError

__all__ = ["Example", "Padded", "padded"]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and an answer to it, as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]

    @property
    def tokens(self) -> int:
        """Of both together."""
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True, slots=True)
class Padded:
    """Texts as one table, padded on the right; the model sees all but the last column, and what it
    has to say are all but the first.

    inputs     int64[B, T]
    attention  int64[B, T]: 1 for tokens of the text
    answers    int64[B, T]: the token after each input
    mask       bool[B, T]: which of these belong to an answer
    """

    inputs: Tensor
    attention: Tensor
    answers: Tensor
    mask: Tensor

    def to(self, device: str | torch.device) -> Padded:
        """On another device."""
        parts = (self.inputs, self.attention, self.answers, self.mask)
        return Padded(*(part.to(device) for part in parts))


def padded(examples: Sequence[Example], pad: int = 0) -> Padded:
    """The examples in one table.

    Raises: InputError without examples.
    """
    if not examples:
        raise InputError("there are no examples; expected at least one")
    longest = max(example.tokens for example in examples)
    table = np.full((len(examples), longest), pad, np.int64)
    is_text = np.zeros(table.shape, np.int64)
    is_answer = np.zeros(table.shape, bool)
    for row, example in enumerate(examples):
        begin, end = len(example.prompt), example.tokens
        table[row, :begin], table[row, begin:end] = example.prompt, example.answer
        is_text[row, :end] = 1
        is_answer[row, begin:end] = True
    tokens, texts, answers = (torch.from_numpy(a) for a in (table, is_text, is_answer))
    return Padded(tokens[:, :-1], texts[:, :-1], tokens[:, 1:], answers[:, 1:])
