"""Masks of tokens over many rows: what a request does not allow gets -inf, before all else.

Mutates: the rows. Valid until: for ever. Raises: InputError for rows that are not there. GIL: held
but for the work of torch and of the core.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay import _core
from foresay.draft import DraftBatch
from foresay.sampling.acceptance.inputs import threads_of
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.verification import VerificationBatch

__all__ = ["forbid", "forbid_on_device", "forbidden_in_place", "masks_of"]


def masks_of(
    rows: Rows, inputs: VerificationBatch, which: Longs
) -> tuple[Longs, NDArray[np.int32]]:
    """Which of the rows `which` are masked, as places among these, and their masks."""
    if not inputs.masked:
        return np.empty(0, np.int64), np.empty((0, 0), np.int32)
    masks, begins = inputs.masks
    request = rows.request[which]
    mine = np.flatnonzero(begins[request] >= 0)
    owner = request[mine]
    return mine, masks[begins[owner] + which[mine] - rows.starts[owner]]


def forbid(part: Tensor, mine: Longs, masks: NDArray[np.int32]) -> None:
    """Write -inf where the masks of the rows `mine` have no bit, but not over a NaN or +inf, which
    must be seen. For rows of float32 in the host's memory."""
    _core.forbid(part.numpy(), rows=mine, masks=masks, threads=threads_of(0))


def forbidden_in_place(
    drafts: DraftBatch, logits: Tensor, inputs: VerificationBatch
) -> VerificationBatch:
    """The inputs without their masks, which are written into the logits: a copy of these would take
    longer than all else. The inputs themselves where the logits are not in the host's memory, or no
    float32.

    Mutates: the logits, unless it returns the inputs.
    """
    if not inputs.masked or logits.device.type != "cpu" or logits.dtype != torch.float32:
        return inputs
    rows = Rows.of(drafts)
    forbid(logits, *masks_of(rows, inputs, np.arange(len(rows))))
    return VerificationBatch([one.along(np.asarray(one.output)) for one in inputs.inputs])


def forbid_on_device(part: Tensor, mine: Tensor, masks: Tensor) -> None:
    """The same on any device, without a wait; but over NaN and +inf as well, which the caller
    writes again, and for masks that are no shorter than the rows."""
    bits = masks[:, :, None] >> torch.arange(32, dtype=torch.int32, device=masks.device) & 1
    allowed = bits.view(len(masks), -1)[:, : part.shape[1]] > 0
    part.index_copy_(0, mine, part[mine].masked_fill(~allowed, -torch.inf))
