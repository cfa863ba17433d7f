"""Updates of a module's weights, batch by batch, which an interrupt ends and a later call goes on
with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresay.errors import ModelError
from foresay.models.progress import Progress
from foresay.traces import Trace
from foresay.train.checkpoint import Done, load_checkpoint, save_checkpoint
from foresay.train.texts import batches_of, mark_of

__all__ = ["last_loss", "update_all"]

_SAVE_EVERY = 60.0  # seconds


def update_all(
    module: nn.Module,
    traces: Sequence[Trace],
    loss_of: Callable[[Sequence[Trace]], Tensor],
    settings: dict[str, Any],
    checkpoint: Path,
    progress: Progress,
    *,
    prepare: Callable[[Sequence[Trace]], None] | None = None,
) -> list[float]:
    """Train a module on all texts, `epochs` times; the loss of each update.

    loss_of     the loss of a batch, which has a gradient
    settings    `epochs`, `tokens` of a batch, `learning_rate`, `seed`; and all else that a later
                call must have in common to go on with this training
    checkpoint  what it goes on from, if there is such a file; written every minute and when it is
                interrupted
    prepare     called with the first batch, unless the training goes on

    Raises: as `checkpoint`; what `loss_of` and `progress` raise.
    """
    optimiser = torch.optim.AdamW(
        module.parameters(), lr=settings["learning_rate"], betas=(0.9, 0.95), weight_decay=0.05
    )
    batches = [
        batch
        for epoch in range(settings["epochs"])
        for batch in batches_of(
            traces, settings["tokens"], np.random.default_rng([settings["seed"], epoch])
        )
    ]
    settings = settings | {"corpus": mark_of(traces)}
    done = load_checkpoint(checkpoint, module, optimiser, settings)
    if done is None:
        done = Done(0, [])
        if prepare is not None:
            prepare(batches[0])
    saved, whole, total = monotonic(), True, len(batches)
    if done.updates > total:
        raise ModelError(
            f"'{checkpoint}' has {done.updates} updates; expected at most {total}, of all epochs"
        )
    progress("train", done.updates, total)
    try:
        for batch in batches[done.updates :]:
            for group in optimiser.param_groups:
                group["lr"] = settings["learning_rate"] * _share(done.updates / total)
            loss = loss_of(batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            whole = False
            optimiser.step()
            done.updates += 1
            done.losses.append(float(loss.detach()))
            whole = True
            if monotonic() - saved > _SAVE_EVERY:
                save_checkpoint(checkpoint, module, optimiser, settings, done)
                saved = monotonic()
            progress("train", done.updates, total)
    except BaseException:
        if whole and done.updates:  # not while weights are written
            save_checkpoint(checkpoint, module, optimiser, settings, done)
        raise
    return done.losses


def last_loss(losses: Sequence[float]) -> float:
    """The mean of the last tenth."""
    return float(np.mean(losses[-max(len(losses) // 10, 1) :]))


def _share(done: float) -> float:
    """Of the learning rate: it rises over a twentieth of the updates and falls to a twentieth."""
    if done < 0.05:
        return max(done / 0.05, 0.02)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (done - 0.05) / 0.95)) / 2
