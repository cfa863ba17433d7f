"""Updates of a module's weights, batch by batch, which an interrupt ends and a later call goes on
with.

It goes on from a checkpoint: weights, the optimiser's sums, and how far it was, as one file of
safetensors, so that nothing in it can run; the rest is in its metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from foresay.errors import InputError, ModelError
from foresay.files import whole_file
from foresay.models.progress import Progress
from foresay.models.weights.safetensors import read_tensors
from foresay.traces import Trace
from foresay.train.lesson import batches_of, mark_of

__all__ = ["last_loss", "load_checkpoint", "update_all"]

_SAVE_EVERY = 60.0  # seconds
_SUMS = ("exp_avg", "exp_avg_sq")


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

    Raises: as `load_checkpoint`, OSError; what `loss_of` and `progress` raise.
    """
    optimiser = AdamW(
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
    if done is None and prepare is not None:
        prepare(batches[0])
    losses, total = done or [], len(batches)
    saved, whole = monotonic(), True
    if len(losses) > total:
        raise ModelError(
            f"'{checkpoint}' has {len(losses)} updates; expected at most {total}, of all epochs"
        )
    progress("train", len(losses), total)
    try:
        for batch in batches[len(losses) :]:
            for group in optimiser.param_groups:
                group["lr"] = settings["learning_rate"] * _share(len(losses) / total)
            loss = loss_of(batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            whole = False
            optimiser.step()
            losses.append(float(loss.detach()))
            whole = True
            if monotonic() - saved > _SAVE_EVERY:
                _save_checkpoint(checkpoint, module, optimiser, settings, losses)
                saved = monotonic()
            progress("train", len(losses), total)
    except BaseException:
        if whole and losses:  # not while weights are written
            _save_checkpoint(checkpoint, module, optimiser, settings, losses)
        raise
    return losses


def last_loss(losses: Sequence[float]) -> float:
    """The mean of the last tenth."""
    return float(np.mean(losses[-max(len(losses) // 10, 1) :]))


def _share(done: float) -> float:
    """Of the learning rate: it rises over a twentieth of the updates and falls to a twentieth."""
    if done < 0.05:
        return max(done / 0.05, 0.02)
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (done - 0.05) / 0.95)) / 2


def _save_checkpoint(
    path: Path, model: nn.Module, optimiser: AdamW, settings: dict[str, Any], losses: list[float]
) -> None:
    """Write the file; it appears under its name only when it is complete.

    Raises: OSError.
    """
    from safetensors.torch import save

    tensors = {}
    for name, weight in model.named_parameters():
        tensors[f"weight.{name}"] = weight.detach()
        for kind in _SUMS:
            if weight in optimiser.state:
                tensors[f"{kind}.{name}"] = optimiser.state[weight][kind]
    noted = {"settings": json.dumps(settings), "updates": str(len(losses))}
    with whole_file(path) as part:
        # Not save_file, whose file only its owner can read.
        part.write_bytes(
            save(
                {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
                metadata={**noted, "losses": json.dumps(losses)},
            )
        )


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: AdamW, settings: dict[str, Any]
) -> list[float] | None:
    """Go on from a file, if there is one: the losses of the updates that were done.

    Raises: InputError for one that was begun with other settings, ModelError for a damaged one.
    """
    if not path.exists():
        return None
    from safetensors import SafetensorError, safe_open

    read_tensors(path)  # a damaged file is found here, in a sentence
    try:
        with safe_open(path, framework="pt") as file:
            noted = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        before, updates = json.loads(noted["settings"]), int(noted["updates"])
        losses = [float(loss) for loss in json.loads(noted["losses"])]
        if not isinstance(before, dict) or updates != len(losses):
            raise ValueError(f"{updates} updates, {len(losses)} losses")
    except (
        *(KeyError, ValueError, TypeError, OverflowError, RecursionError),
        SafetensorError,
    ) as error:
        raise ModelError(f"'{path}' is no checkpoint of a training: {error!r}") from error
    if before != settings:
        differ = sorted(key for key in {*before, *settings} if before.get(key) != settings.get(key))
        raise InputError(
            f"'{path}' was begun with another `{'`, `'.join(differ)}`; expected the same "
            "settings, to go on with it, or another folder"
        )
    _restore(path, model, optimiser, found, updates)
    return losses


def _restore(
    path: Path, model: nn.Module, optimiser: AdamW, found: dict[str, Tensor], updates: int
) -> None:
    for name, weight in model.named_parameters():
        for kind in ("weight", *_SUMS):
            stored = found.get(f"{kind}.{name}")
            if stored is None or stored.shape != weight.shape:
                raise ModelError(f"'{path}' lacks '{kind}.{name}' of shape {list(weight.shape)}")
            if not stored.isfinite().all():
                raise ModelError(f"'{path}': '{kind}.{name}' holds what is no number")
        with torch.no_grad():
            weight.copy_(found[f"weight.{name}"])
        optimiser.state[weight] = {"step": torch.tensor(float(updates))} | {
            kind: found[f"{kind}.{name}"].to(weight.device) for kind in _SUMS
        }
