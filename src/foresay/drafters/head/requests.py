"""How a request's sampling parameters change the head's ranking: its noise, and its processors.

A head may draft some tokens of the vocabulary only. Processors see the others as impossible: top-p
is then of the drafted tokens alone, which is near enough for a draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foresay import _core
from foresay.arrays import Int32s
from foresay.draft import DraftBatch
from foresay.drafter import SeededParams, known_noise
from foresay.drafters.head.head import Head
from foresay.drafters.head.tree import Noise, Process
from foresay.sampling.acceptance.processors import scores
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.verification import VerificationBatch, VerificationInput

__all__ = ["ask_of", "noise_of", "process_of"]


def ask_of(
    sampling: SeededParams | None, prompt: Int32s, vocabulary: int
) -> VerificationInput | None:
    """The request as its processors need it; None if it has none, or names unknown tokens."""
    if sampling is None:
        return None
    ask = VerificationInput(sampling.params, sampling.seed, prompt)
    named = max([int(prompt.max()), *sampling.params.logit_bias])
    return ask if VerificationBatch([ask]).processed and named < vocabulary else None


def noise_of(sampling: Sequence[SeededParams | None], lengths: Sequence[int]) -> Noise:
    """The noise of sampled requests under rule match, scaled by their temperature, for texts of
    these lengths. (Under rule rejection the target's choice does not depend on noise that a drafter
    could know.)"""
    known = [known_noise(each) for each in sampling]
    coupled = {at: noise for at, noise in enumerate(known) if noise[1] > 0}

    def noise(depth: int, tokens: Tensor) -> Tensor | None:
        if not coupled:
            return None
        ids = tokens.to("cpu", torch.int32).numpy()
        found = np.zeros(ids.shape, np.float32)
        for at, (seed, temperature) in coupled.items():
            flat = np.ascontiguousarray(ids[at].reshape(-1))
            gumbels = _core.gumbels(seed, lengths[at] + depth, flat)
            found[at] = temperature * gumbels.reshape(ids[at].shape)
        return torch.from_numpy(found).to(tokens.device)

    return noise


def process_of(requests: Sequence[VerificationInput | None], head: Head) -> Process | None:
    """Bias, penalties, min_tokens, top-k, top-p and min-p of the requests that have them, as they
    stand; None if there are none."""
    asks = {at: ask for at, ask in enumerate(requests) if ask is not None}
    if not asks:
        return None

    def process(logits: Tensor, paths: Tensor) -> Tensor:
        ids, every = paths.cpu().numpy().astype(np.int32), list(asks)
        along = [
            ask.along(np.concatenate([np.asarray(ask.output), path]))
            for at, ask in asks.items()
            for path in ids[at]
        ]
        few = logits[every]  # [requests, R, drafted]
        size = (len(along), head.vocabulary)
        whole = torch.full(size, -torch.inf, device=logits.device)
        whole[:, head.tokens] = few.flatten(0, 1)
        none: Int32s = np.empty(0, np.int32)
        alone = Rows.of(DraftBatch._trusted(none, none, np.zeros(len(along) + 1, np.int32)))
        batch = VerificationBatch(along)
        given = scores(whole, alone, batch)
        # Where it was divided by the temperature, it is multiplied again: noise comes later.
        heat = torch.as_tensor(batch.temperatures, device=logits.device)
        divided = (given.temperatures != heat) & (heat > 0)
        values = torch.where(divided, heat, 1)[:, None] * given.values
        changed = logits.clone()
        changed[every] = values[:, head.tokens].view_as(few)
        return changed

    return process
