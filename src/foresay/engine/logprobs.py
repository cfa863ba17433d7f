"""Log probabilities of committed tokens, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import offsets_of, sizes_of
from foresay.draft import DraftBatch
from foresay.engine.request import Request
from foresay.sampling.acceptance.upload import download, upload
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.logprobs import Logprobs, TokenLogprob, likeliest, logprobs_of
from foresay.sampling.verification import VerificationBatch
from foresay.verdict import VerdictBatch

__all__ = ["logprobs_for", "note_logprobs", "note_prompt_logprobs"]

Longs: TypeAlias = NDArray[np.int64]
_ROWS = 64  # of a prompt at once: in double precision a row of logits is large


def logprobs_for(
    requests: Sequence[Request],
    verified: Verified,
    drafts: DraftBatch,
    logits: Tensor,
    asks: VerificationBatch,
) -> Logprobs | None:
    """The log probabilities of a step's tokens, of those requests that want them."""
    wanted = [request.params.logprobs for request in requests]
    if all(most is None for most in wanted):
        return None
    top = min(max(most or 0 for most in wanted), logits.shape[1])
    if None in wanted:
        verified = _only(verified, np.array([most is not None for most in wanted]))
    return logprobs_of(verified, drafts, logits, asks, top)


def _only(verified: Verified, wanting: NDArray[np.bool_]) -> Verified:
    """The verdicts with the tokens of some requests only, and without paths."""
    sizes = sizes_of(verified.verdicts.offsets)
    kept = np.repeat(wanting, sizes)
    none = np.zeros(len(sizes) + 1, np.int32)
    found = VerdictBatch._trusted(
        verified.verdicts.tokens[kept], offsets_of((sizes * wanting).tolist()), none[:0], none
    )
    return Verified(found, verified.failures, verified.rows[kept])


def note_logprobs(
    requests: Sequence[Request], verified: Verified, found: Logprobs | None, sizes: Longs
) -> None:
    """Append the log probabilities of each request's first `sizes` tokens, if it wants them.

    found  those of the tokens of the requests that want them, as `logprobs_for` gives them
    """
    if found is None:
        return
    tokens, bounds, begin = verified.verdicts.tokens.tolist(), verified.verdicts.offsets.tolist(), 0
    for i, request in enumerate(requests):
        most = request.params.logprobs
        if most is None:
            continue
        for place in range(int(sizes[i])):
            at = begin + place
            top = found.top_tokens[at, :most].tolist()
            values = found.top_raw[at, :most].tolist()
            request.logprobs.append(
                TokenLogprob(
                    tokens[bounds[i] + place],
                    float(found.raw[at]),
                    float(found.processed[at]),
                    dict(zip(top, values, strict=True)),
                )
            )
        begin += bounds[i + 1] - bounds[i]


def note_prompt_logprobs(prompts: Sequence[tuple[Request, int]], logits: Tensor) -> None:
    """Append the log probabilities of each request's next `count` prompt tokens to it, given the
    rows of logits before those tokens, request by request.
    """
    begin = 0
    for request, count in prompts:
        noted = request.prompt_logprobs
        if not count or noted is None:
            continue
        tokens = request.prompt[len(noted) : len(noted) + count].astype(np.int64)
        top = min(request.prompt_top, logits.shape[1])
        for at in range(0, count, _ROWS):
            some = tokens[at : at + _ROWS]
            noted += _of_rows(some, logits[begin + at : begin + at + len(some)], top)
        begin += count


def _of_rows(tokens: Longs, logits: Tensor, top: int) -> list[TokenLogprob]:
    """The log probabilities of one token in each row."""
    own = upload({"tokens": tokens[:, None]}, logits.device)["tokens"]
    raw = torch.log_softmax(logits.double(), dim=-1)
    ids, values = likeliest(raw, top)
    numbers = download(torch.cat([raw.gather(1, own), values, ids.double()], dim=1))
    return [
        TokenLogprob(token, row[0], row[0], dict(zip(likely, row[1 : top + 1], strict=True)))
        for token, row, likely in zip(
            tokens.tolist(),
            numbers[:, : top + 1].tolist(),
            numbers[:, top + 1 :].astype(np.int64).tolist(),
            strict=True,
        )
    ]
