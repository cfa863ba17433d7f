"""Supervised training on recorded answers, before reinforcement learning begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import nn
from torch.nn.functional import cross_entropy

from foresay.rl.padding import Example, padded

__all__ = ["WarmStart", "warm_start"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """How much is learned, and how fast.

    updates        steps of the optimiser
    tokens         of a batch, with padding
    learning_rate  the highest; it rises over a tenth of the updates and falls to a twentieth
    """

    updates: int
    tokens: int = 4096
    learning_rate: float = 3e-3
    weight_decay: float = 0.01


def warm_start(
    model: nn.Module,
    draw: Callable[[Generator], Example],
    settings: WarmStart,
    *,
    seed: int,
    device: str = "cpu",
    progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train a model on examples, each seen once; the loss of each update, per token of an answer.

    model     of transformers: called with input_ids and attention_mask, it returns logits
    draw      the next example
    progress  called after each update: progress(updates, loss); what it raises ends the training

    Mutates: the model, which is on `device` afterwards.
    """
    model.to(device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    batches = _batches(draw, settings.tokens, np.random.default_rng(seed))
    losses = []
    for update in range(settings.updates):
        batch = padded(next(batches)).to(device)
        for setting in optimiser.param_groups:
            setting["lr"] = settings.learning_rate * _share(update / settings.updates)
        logits = model(input_ids=batch.inputs, attention_mask=batch.attention).logits
        loss = cross_entropy(logits[batch.mask].float(), batch.answers[batch.mask])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(float(loss.detach()))
        if progress is not None:
            progress(update + 1, losses[-1])
    return losses


def _share(done: float) -> float:
    """Of the learning rate."""
    if done < 0.1:
        return max(done / 0.1, 0.01)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (done - 0.1) / 0.9)) / 2


def _batches(
    draw: Callable[[Generator], Example], tokens: int, rng: Generator
) -> Iterator[list[Example]]:
    """Batches of about `tokens` with padding. Examples of about one length are together, so that
    little is padding; the batches come in random order.
    """
    while True:
        drawn = sorted((draw(rng) for _ in range(1024)), key=lambda example: example.tokens)
        batches: list[list[Example]] = [[]]
        for example in drawn:
            longest = example.tokens  # so far
            if batches[-1] and longest * (len(batches[-1]) + 1) > tokens:
                batches.append([])
            batches[-1].append(example)
        for at in rng.permutation(len(batches)):
            yield batches[int(at)]
