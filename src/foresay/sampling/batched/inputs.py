"""What both rules take, checked once at the door."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError
from foresay.sampling.ask import Ask, AskBatch
from foresay.sampling.batched.rows import Rows

__all__ = ["checked"]


def checked(
    drafts: Sequence[Draft], logits: Tensor, asks: Sequence[Ask]
) -> tuple[DraftBatch, AskBatch, Rows]:
    """The arguments packed, and their rows.

    Mutates: nothing. Valid until: for ever. Raises: InputError if they do not fit each other.
    GIL: held.
    """
    drafts, asks = DraftBatch.of(drafts), AskBatch.of(asks)
    if len(drafts) != len(asks):
        raise InputError(f"there are {len(drafts)} drafts and {len(asks)} asks; one each is needed")
    rows = Rows.of(drafts)
    if logits.ndim != 2 or len(logits) != len(rows) or not logits.is_floating_point():
        raise InputError(
            f"logits have shape {tuple(logits.shape)} and dtype {logits.dtype}; {len(drafts)} "
            f"requests with {len(drafts.tokens)} nodes need {len(rows)} rows of floats"
        )
    vocabulary = logits.shape[1]
    if not vocabulary:
        raise InputError("logits have no columns; a vocabulary has at least one token")
    for name, tokens in (
        ("a draft", drafts.tokens),
        ("the text of a penalised request", asks.context),
        ("logit_bias", asks.bias[1]),
    ):
        if len(tokens) and int(tokens.max()) >= vocabulary:
            raise InputError(
                f"{name} has token {int(tokens.max())}; the logits have {vocabulary} columns"
            )
    if drafts.probs is not None and drafts.probs.shape != (len(drafts.tokens), vocabulary):
        raise InputError(
            f"probs have shape {drafts.probs.shape}; {(len(drafts.tokens), vocabulary)} is needed"
        )
    if int((asks.positions + np.diff(rows.starts)).max(initial=0)) >= 1 << 32:
        raise InputError("a text is longer than the 2**32 - 1 positions that noise is keyed by")
    return drafts, asks, rows
