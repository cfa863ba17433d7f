"""Attention as one would explain it, in float64: a row sees the stored text, its ancestors and
itself, in text order, and a softmax over their scores weighs their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Numbers = NDArray[Any]  # float32, or bfloat16 as uint16


def shortened(values: Doubles | NDArray[np.float32]) -> NDArray[np.uint16]:
    """To bfloat16, the nearest, of two the even one."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def doubles(numbers: Numbers) -> Doubles:
    if numbers.dtype == np.uint16:
        numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float64)


@dataclass(frozen=True)
class Rule:
    """What an attention layer of a model may ask for."""

    scaling: float = 0.125
    window: int = 0
    chunk: int = 0
    softcap: float = 0.0
    sinks: NDArray[np.float32] | None = None

    def sees(self, query: int, key: int) -> bool:
        """Both are text positions."""
        near = self.window == 0 or query - key < self.window
        return near and (self.chunk == 0 or query // self.chunk == key // self.chunk)


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    """From the root to the row."""
    path = [row]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def attend(
    stored: tuple[Numbers, Numbers],
    parents: Sequence[int],
    new: tuple[Numbers, Numbers, Numbers],
    rule: Rule,
    by_slot: bool = False,
) -> Doubles:
    """Keys and values are [heads, tokens, dim]; the result is [rows, heads, dim].

    by_slot is wrong on purpose: it takes the place of a key in memory for its place in the text.
    """
    query, keys, values = doubles(new[0]), *map(doubles, new[1:])
    length = stored[0].shape[1]
    keys = np.concatenate([doubles(stored[0]), keys], axis=1)
    values = np.concatenate([doubles(stored[1]), values], axis=1)
    group = len(query) // len(keys)
    out = np.empty((len(parents), len(query), values.shape[2]))
    for row in range(len(parents)):
        slots = [*range(length), *(length + node for node in path_to(row, parents))]
        places = slots if by_slot else range(len(slots))
        seen = [
            slot for slot, place in zip(slots, places, strict=True) if rule.sees(places[-1], place)
        ]
        for head, (its_keys, its_values) in enumerate(
            zip(keys[:, seen], values[:, seen], strict=True)
        ):
            mine = slice(head * group, (head + 1) * group)
            scores = rule.scaling * query[mine, row] @ its_keys.T
            if rule.softcap:
                scores = rule.softcap * np.tanh(scores / rule.softcap)
            if rule.sinks is not None:  # weights without values
                scores = np.concatenate([scores, rule.sinks[mine, None]], axis=1)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            out[row, mine] = weights[:, : len(seen)] @ its_values
    return out
