"""Log probabilities of committed tokens, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.draft import DraftBatch
from foresay.engine.request import Request
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.logprobs import Logprobs, TokenLogprob, likeliest, logprobs_of
from foresay.sampling.verification import VerificationBatch

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
    """The log probabilities of a step's tokens, if one of the requests wants them."""
    wanted = [request.params.logprobs for request in requests]
    if all(most is None for most in wanted):
        return None
    top = min(max(most or 0 for most in wanted), logits.shape[1])
    return logprobs_of(verified, drafts, logits, asks, top)


def note_logprobs(
    requests: Sequence[Request], verified: Verified, found: Logprobs | None, sizes: Longs
) -> None:
    """Append the log probabilities of each request's first `sizes` tokens, if it wants them."""
    if found is None:
        return
    tokens, bounds = verified.verdicts.tokens.tolist(), verified.verdicts.offsets.tolist()
    for i, request in enumerate(requests):
        most = request.params.logprobs
        if most is None:
            continue
        for at in range(bounds[i], bounds[i] + int(sizes[i])):
            top = found.top_tokens[at, :most].tolist()
            values = found.top_raw[at, :most].tolist()
            request.logprobs.append(
                TokenLogprob(
                    tokens[at],
                    float(found.raw[at]),
                    float(found.processed[at]),
                    dict(zip(top, values, strict=True)),
                )
            )


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
            some = torch.from_numpy(tokens[at : at + _ROWS])
            rows = logits[begin + at : begin + at + len(some)]
            noted += _of_rows(some.to(logits.device), rows, top)
        begin += count


def _of_rows(tokens: Tensor, logits: Tensor, top: int) -> list[TokenLogprob]:
    """The log probabilities of one token in each row."""
    raw = torch.log_softmax(logits.double(), dim=-1)
    own = raw.gather(1, tokens[:, None])[:, 0].tolist()
    tops = zip(*(each.tolist() for each in likeliest(raw, top)), strict=True)
    return [
        TokenLogprob(token, value, value, dict(zip(*row, strict=True)))
        for token, value, row in zip(tokens.tolist(), own, tops, strict=True)
    ]
