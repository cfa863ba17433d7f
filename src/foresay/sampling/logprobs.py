"""Log probabilities of committed tokens: raw (the model's) and processed (as sampled).

On the CPU the core computes them, each row's by itself: they are the same bits whatever else is in
the batch. Elsewhere, and for comparison, torch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay import _core
from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.errors import InputError
from foresay.sampling.acceptance import processors
from foresay.sampling.acceptance.inputs import checked, known_kernel, readable, threads_of
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.noise import Doubles
from foresay.sampling.verification import VerificationBatch, VerificationInput
from foresay.verdict import TopK

__all__ = ["Logprobs", "TokenLogprob", "likeliest", "logprobs_of", "topk_of"]

Kernel = Literal["core", "torch"]
"""What computes; by default the best one for the logits' device."""


@dataclass(frozen=True, eq=False)
class Logprobs:
    """Of T committed tokens, in the order of the verdicts' tokens."""

    processed: Doubles
    """Under the distribution that the token was sampled from: after penalties, temperature and
    limits. For a greedy request it has all mass on one token, so this is 0."""
    raw: Doubles
    """Under the softmax of the model's own logits."""
    top_tokens: Int32s
    """[T, k]: the likeliest tokens under the raw distribution, the likeliest first; of equal
    ones the one with the smaller id."""
    top_raw: NDArray[np.float64]
    """[T, k]: their log probabilities under the raw distribution."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probabilities of one token: under the model's own distribution, and under the one it was
    sampled from (after penalties, temperature and limits); and the likeliest tokens under the
    former. A prompt token was not sampled: its two are the same.
    """

    token: int
    logprob: float
    processed: float
    top: dict[int, float]


def logprobs_of(
    verified: Verified,
    drafts: Sequence[Draft],
    logits: Tensor,
    inputs: Sequence[VerificationInput],
    top: int = 0,
    *,
    kernel: Kernel | None = None,
) -> Logprobs:
    """The log probabilities of the verdicts' tokens, with the arguments of `match` or `rejection`.

    Raises: InputError for a `top` that the vocabulary does not have, and as the rules do.
    """
    drafts, logits, inputs = checked(drafts, logits, inputs)
    rows = Rows.of(drafts)
    if not 0 <= top <= logits.shape[1]:
        raise InputError(f"top is {top}; expected 0 to the vocabulary's {logits.shape[1]}")
    if _by(kernel, logits) == "core":
        return _in_the_core(verified, rows, logits, inputs, top)
    chosen = torch.as_tensor(verified.verdicts.tokens, device=logits.device).long()[:, None]
    raw = torch.log_softmax(
        logits[torch.as_tensor(verified.rows, device=logits.device)].double(), dim=-1
    )
    given = processors.scores(logits, rows, inputs, verified.rows)
    shares = (
        processors.unnormalised_softmax(given, given.values.amax(dim=-1))
        if len(verified.rows)
        else raw
    )
    processed = shares.gather(1, chosen)[:, 0] / shares.sum(dim=-1)
    top_tokens, top_raw = likeliest(raw, top)
    return Logprobs(
        processed.log().cpu().numpy(),
        raw.gather(1, chosen)[:, 0].cpu().numpy(),
        top_tokens.int().cpu().numpy(),
        top_raw.cpu().numpy(),
    )


def _in_the_core(
    verified: Verified, rows: Rows, logits: Tensor, inputs: VerificationBatch, top: int
) -> Logprobs:
    which, tokens = verified.rows, verified.verdicts.tokens
    raw, top_tokens, top_raw = _core.token_logprobs(
        readable(logits.contiguous()),
        rows=which,
        tokens=tokens,
        temperatures=np.ones(len(which), np.float32),
        top=top,
        threads=threads_of(0),
    )
    if inputs.processed:
        given = processors.scores(logits, rows, inputs, which)
        values, temperatures = given.values, given.temperatures.numpy()
        places = other = np.arange(len(which))
    else:
        values, temperatures = logits, inputs.temperatures[rows.request[which]]
        places, other = which, np.flatnonzero(temperatures != 1)  # divided by 1, both are the same
    processed = raw.copy()
    if len(other):
        processed[other] = _core.token_logprobs(
            readable(values.contiguous()),
            rows=places[other],
            tokens=tokens[other],
            temperatures=temperatures[other],
            threads=threads_of(0),
        )[0]
    return Logprobs(processed, raw, top_tokens, top_raw)


def topk_of(logits: Tensor, k: int, *, kernel: Kernel | None = None) -> TopK | None:
    """The k likeliest tokens of each row of logits [R, V], if any are wanted.

    Raises: InputError for a `k` that the vocabulary does not have.
    """
    if not k:
        return None
    if k > logits.shape[1]:
        raise InputError(f"k is {k}; expected 0 to the vocabulary's {logits.shape[1]}")
    logits = logits.detach()
    if _by(kernel, logits) == "core":
        return TopK._trusted(*_core.topk(readable(logits.contiguous()), k, threads=threads_of(0)))
    logits = logits.float()
    whole = logits.logsumexp(dim=-1)
    bad = ~whole.isfinite()  # NaN, +inf, or nothing but -inf
    if bad.any():
        logits = logits.masked_fill(bad[:, None], 0.0)
    tokens, values = likeliest(logits, k)
    tokens = tokens.int().masked_fill(bad[:, None], -1)
    logprobs = (values - whole[:, None]).masked_fill(bad[:, None], -torch.inf)
    return TopK(tokens.cpu().numpy(), logprobs.cpu().numpy())


def _by(kernel: Kernel | None, logits: Tensor) -> Kernel:
    best: Kernel = "core" if logits.device.type == "cpu" else "torch"
    return known_kernel(kernel or best, logits, ("core", "torch"))


def likeliest(raw: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` tokens of each row [T, V] with the highest values, and those values, both [T, top].
    The highest comes first; of equal ones the smaller id, so that a smaller `top` gives the
    beginning of a larger one.

    Raises: as torch, for a `top` larger than the vocabulary.
    """
    found = raw.topk(top)
    tokens = found.indices.sort(dim=-1).values
    if top:  # of tokens that are as likely as the last, topk takes any
        last = found.values[:, -1:]
        for row in (torch.count_nonzero(raw >= last, dim=-1) > top).nonzero()[:, 0].tolist():
            above, equal = (raw[row] > last[row]).nonzero()[:, 0], (raw[row] == last[row]).nonzero()
            tokens[row] = torch.cat([above, equal[: top - len(above), 0]]).sort().values
    values, order = raw.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return tokens.gather(1, order), values
