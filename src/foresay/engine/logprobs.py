"""Log probabilities of committed tokens, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from foresay.draft import DraftBatch
from foresay.sampling.ask import AskBatch
from foresay.sampling.batched.verdicts import Verified
from foresay.sampling.logprobs import logprobs_of

if TYPE_CHECKING:
    from foresay.engine.request import Request

__all__ = ["TokenLogprob", "note_logprobs"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probabilities of one token: under the model's own law, and under the law it was chosen
    from (after penalties, temperature and limits); and the likeliest under the former.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """

    token: int
    logprob: float
    processed: float
    top: dict[int, float]


def note_logprobs(
    requests: Sequence[Request],
    verified: Verified,
    drafts: DraftBatch,
    logits: Tensor,
    asks: AskBatch,
) -> None:
    """Append the log probabilities of a step's tokens to the requests that want them.

    Mutates: the requests' logprobs. Valid until: for ever. Raises: nothing. GIL: held but for
    torch's own work.
    """
    wanted = [request.params.logprobs for request in requests]
    if all(most is None for most in wanted):
        return
    top = min(max(most or 0 for most in wanted), logits.shape[1])
    found = logprobs_of(verified, drafts, logits, asks, top)
    tokens, bounds = verified.verdicts.tokens.tolist(), verified.verdicts.offsets.tolist()
    for i, (request, most) in enumerate(zip(requests, wanted, strict=True)):
        if most is None:
            continue
        for at in range(bounds[i], bounds[i + 1]):
            likeliest = found.top_tokens[at, :most].tolist()
            values = found.top_raw[at, :most].tolist()
            request.logprobs.append(
                TokenLogprob(
                    tokens[at],
                    float(found.raw[at]),
                    float(found.processed[at]),
                    dict(zip(likeliest, values, strict=True)),
                )
            )
