"""The head's steps on its own features, as in drafting: EAGLE-3's training-time test.

Rows are pairs, as in drafting: the feature before a token of the answer, and that token. In step 0
all features are the target's. In step j the feature of row i is the output of row i - 1 in step
j - 1: the row is the j-th node of a chain that hangs from row i - j. So it sees the target's rows
up to i - j, then one row of each step: row i - j + m of step m.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from foresay.drafters.eagle.head import EagleHead

__all__ = ["unrolled"]


def unrolled(head: EagleHead, features: Tensor, tokens: Tensor, steps: int) -> Iterator[Tensor]:
    """The head's output [B, N, hidden] in each step; those of rows before the step mean nothing.

    features  [B, N, width]: of the target
    tokens    int64[B, N]
    """
    size, device = tokens.shape[1], tokens.device
    embedded, places = head.embedded(tokens), torch.arange(size, device=device)
    positions = places[None].expand(len(tokens), -1)
    rows = head.fc(features.to(head.fc.weight.dtype))
    groups = head.shape.heads // head.shape.kv_heads
    steps_before: list[tuple[Tensor, Tensor]] = []
    for step in range(steps):
        query, key, value = head.project(rows, embedded, positions)
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        steps_before.append((key, value))
        visible = places <= places[:, None] - step
        scale = head.shape.head_dim**-0.5
        scores = (query @ steps_before[0][0].mT).masked_fill(~visible, -torch.inf)
        near = [
            (query * _later(keys, step - m)).sum(-1, keepdim=True)
            for m, (keys, _) in enumerate(steps_before[1:], 1)
        ]
        weights = (torch.cat([scores, *near], -1).float() * scale).softmax(-1).to(value.dtype)
        attended = weights[..., :size] @ steps_before[0][1]
        for m, (_, values) in enumerate(steps_before[1:], 1):
            attended = attended + weights[..., size + m - 1, None] * _later(values, step - m)
        output = head.complete(rows, attended)
        yield output
        rows = output.roll(1, 1)


def _later(rows: Tensor, count: int) -> Tensor:
    """At each place the row that was `count` places before."""
    return rows.roll(count, 2)
