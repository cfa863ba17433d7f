"""What a training that was ended goes on from: weights, the optimiser's sums, and how far it was.

One file of safetensors, so that nothing in it can run; the rest is in its metadata.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW

from foresay.errors import InputError, ModelError
from foresay.files import whole_file
from foresay.models.weights.safetensors import read_tensors

__all__ = ["Done", "load_checkpoint", "save_checkpoint"]

_SUMS = ("exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class Done:
    """How far a training is: updates done, and the loss of each."""

    updates: int
    losses: list[float]


def save_checkpoint(
    path: Path, model: nn.Module, optimiser: AdamW, settings: dict[str, Any], done: Done
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
    noted = {"settings": json.dumps(settings), "updates": str(done.updates)}
    with whole_file(path) as part:
        # Not save_file, whose file only its owner can read.
        part.write_bytes(
            save(
                {name: tensor.contiguous().cpu() for name, tensor in tensors.items()},
                metadata={**noted, "losses": json.dumps(done.losses)},
            )
        )


def load_checkpoint(
    path: Path, model: nn.Module, optimiser: AdamW, settings: dict[str, Any]
) -> Done | None:
    """Go on from a file, if there is one: how far it was.

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
    return Done(updates, losses)


def _restore(
    path: Path, model: nn.Module, optimiser: AdamW, found: dict[str, Tensor], updates: int
) -> None:
    from torch import no_grad, tensor

    for name, weight in model.named_parameters():
        for kind in ("weight", *_SUMS):
            stored = found.get(f"{kind}.{name}")
            if stored is None or stored.shape != weight.shape:
                raise ModelError(f"'{path}' lacks '{kind}.{name}' of shape {list(weight.shape)}")
            if not stored.isfinite().all():
                raise ModelError(f"'{path}': '{kind}.{name}' holds what is no number")
        with no_grad():
            weight.copy_(found[f"weight.{name}"])
        optimiser.state[weight] = {"step": tensor(float(updates))} | {
            kind: found[f"{kind}.{name}"].to(weight.device) for kind in _SUMS
        }
