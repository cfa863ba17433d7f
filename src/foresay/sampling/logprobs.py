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
from foresay.sampling.acceptance import planned as planning
from foresay.sampling.acceptance import processors
from foresay.sampling.acceptance.inputs import (
    best_for,
    checked,
    known_kernel,
    readable,
    threads_of,
)
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.acceptance.upload import download, upload
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
    return _on_the_device(verified, rows, logits, inputs, top)


def _on_the_device(
    verified: Verified, rows: Rows, logits: Tensor, inputs: VerificationBatch, top: int
) -> Logprobs:
    """Only of the rows that tokens were sampled from: one copy there, no wait, one copy back."""
    which = verified.rows
    planned = planning.plan(rows, inputs, logits.shape[1], which)
    arrays = {**planned.arrays, "tokens": verified.verdicts.tokens.astype(np.int64)[:, None]}
    greedy = bool((inputs.temperatures == 0).any())
    sent = upload(arrays, logits.device)
    raw = torch.log_softmax(logits[sent["p.which"]].double(), dim=-1)
    kernel: planning.Kernel = "triton" if best_for(logits) == "triton" else "torch"
    given = planning.scores(planned, logits, sent, kernel)
    temperatures = given.temperatures[:, None]
    divided = given.values / torch.where(temperatures == 0, 1.0, temperatures)
    processed = torch.log_softmax(divided.double(), dim=-1).gather(1, sent["tokens"])
    if greedy:  # all mass is on the token that was chosen
        processed = processed.masked_fill(temperatures == 0, 0.0)
    tokens, values = likeliest(raw, top)
    own = raw.gather(1, sent["tokens"])
    numbers: Doubles = download(torch.cat([processed, own, values, tokens.double()], dim=1))
    return Logprobs(
        numbers[:, 0],
        numbers[:, 1],
        numbers[:, 2 + top :].astype(np.int32),
        numbers[:, 2 : 2 + top],
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
    whole = logits.logsumexp(dim=-1, keepdim=True)
    bad = ~whole.isfinite()  # NaN, +inf, or nothing but -inf
    tokens, values = likeliest(logits.masked_fill(bad, 0.0), k)
    tokens = tokens.int().masked_fill(bad, -1)
    logprobs = (values - whole).masked_fill(bad, -torch.inf)
    # Both have 4 bytes: they come in one copy.
    both = download(torch.cat([tokens, logprobs.view(torch.int32)], dim=1))
    return TopK._trusted(
        np.ascontiguousarray(both[:, :k]), np.ascontiguousarray(both[:, k:]).view(np.float32)
    )


def _by(kernel: Kernel | None, logits: Tensor) -> Kernel:
    best: Kernel = "core" if logits.device.type == "cpu" else "torch"
    return known_kernel(kernel or best, logits, ("core", "torch"))


def likeliest(raw: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """The `top` tokens of each row [T, V] with the highest values, and those values, both [T, top].
    The highest comes first; of equal ones the smaller id, so that a smaller `top` gives the
    beginning of a larger one.

    Raises: as torch, for a `top` larger than the vocabulary.
    """
    if not top:
        return raw.new_empty([len(raw), 0], dtype=torch.int64), raw.new_empty([len(raw), 0])
    # Of tokens that are as likely as the last, topk takes any: here those with the smallest ids.
    # Whether there are more than it takes cannot be seen without waiting for the device.
    last = raw.topk(top).values[:, -1:]
    above, equal = raw > last, raw == last
    within = above | (equal & (equal.cumsum(dim=-1) <= top - above.sum(dim=-1, keepdim=True)))
    ids = torch.arange(raw.shape[1], 0, -1, dtype=torch.int32, device=raw.device)
    tokens = raw.shape[1] - torch.where(within, ids, 1).topk(top).values.long()
    values, order = raw.gather(1, tokens).sort(dim=-1, descending=True, stable=True)
    return tokens.gather(1, order), values
