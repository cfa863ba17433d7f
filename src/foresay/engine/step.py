"""What one step of the engine is about, and the small parts of it that need no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import Floats, Int32s
from foresay.budget.load import Chosen, Load
from foresay.engine.request import Request
from foresay.engine.scheduler import Turn
from foresay.errors import ForesayError, InputError
from foresay.models.target import Part
from foresay.sampling.batched.verdicts import Verified
from foresay.verdict import TopK, VerdictBatch

__all__ = ["Laps", "Step", "seen_by_drafter", "until_texts_end"]


@dataclass(slots=True)
class Step:
    """What one step is about, filled in as it goes."""

    turns: list[Turn]
    decoding: list[Request]
    """Those at the end of whose text a token is chosen, in the order of the turns."""
    load: Load
    chosen: Chosen
    """The guesses that are verified, one draft for each of those."""
    draft_probs: dict[int, Floats]
    """What their tokens were drawn from, where that matters, by the place of the request."""
    parts: list[Part] = field(default_factory=list)
    """What the model is given, one for each turn."""
    topk: TopK | None = None
    """The likeliest tokens after each row of `decoding`, if the drafter wants them."""
    hidden: Tensor | None = None
    """The last hidden states of all rows, likewise."""


class Laps:
    """A watch: how long each phase took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begin = perf_counter()

    def end(self, phase: str) -> None:
        now = perf_counter()
        self.seconds[phase] = now - self._begin
        self._begin = now


def until_texts_end(
    step: Step, verified: Verified
) -> tuple[NDArray[np.int64], dict[int, ForesayError]]:
    """How many of each request's tokens there are up to a text that ends it, and which requests
    fail, also because their text cannot be read. The texts grow.
    """
    failures = dict(verified.failures)
    sizes = np.diff(verified.verdicts.offsets).astype(np.int64)
    for at, request in enumerate(step.decoding):
        if request.answer is None:
            continue
        for count, token in enumerate(verified.verdicts[at].tokens.tolist(), 1):
            try:
                ends = token not in request.stops and request.answer.add(token)
            except Exception as error:  # of whoever decodes
                failures[at] = InputError(f"the answer's tokens cannot be read: {error!r}")
                sizes[at] = 0
                break
            if ends:
                sizes[at] = count
                break
    return sizes, failures


def seen_by_drafter(step: Step, verified: Verified) -> VerdictBatch:
    """The verdicts with what the drafter wants to see, in the numbers of the nodes verified."""
    found, hidden = verified.verdicts, None
    rows: Int32s | None = None
    if step.topk is not None:  # each draft has one more than it has nodes
        rows = step.chosen.drafts.offsets + np.arange(len(found) + 1).astype(np.int32)
    if step.hidden is not None:
        at = torch.as_tensor(verified.rows, device=step.hidden.device)
        # Wider than bfloat16, which numpy has not, and the same numbers.
        hidden = step.hidden[at].float().cpu().numpy()
    return VerdictBatch._trusted(
        found.tokens, found.offsets, found.path, found.path_offsets, step.topk, rows, hidden
    )
