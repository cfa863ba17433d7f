"""Log probabilities of committed tokens, request by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foresay.draft import DraftBatch
from foresay.sampling.ask import AskBatch
from foresay.sampling.batched.verdicts import Verified
from foresay.sampling.logprobs import Logprobs, logprobs_of

if TYPE_CHECKING:
    from foresay.engine.request import Request

__all__ = ["TokenLogprob", "logprobs_for", "note_logprobs"]

Longs: TypeAlias = NDArray[np.int64]


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


def logprobs_for(
    requests: Sequence[Request],
    verified: Verified,
    drafts: DraftBatch,
    logits: Tensor,
    asks: AskBatch,
) -> Logprobs | None:
    """The log probabilities of a step's tokens, if one of the requests wants them.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held but for torch's own work.
    """
    wanted = [request.params.logprobs for request in requests]
    if all(most is None for most in wanted):
        return None
    top = min(max(most or 0 for most in wanted), logits.shape[1])
    return logprobs_of(verified, drafts, logits, asks, top)


def note_logprobs(
    requests: Sequence[Request], verified: Verified, found: Logprobs | None, sizes: Longs
) -> None:
    """Append the log probabilities of each request's first `sizes` tokens to it, if it wants them.

    Mutates: the requests' logprobs. Valid until: for ever. Raises: nothing. GIL: held.
    """
    if found is None:
        return
    tokens, bounds = verified.verdicts.tokens.tolist(), verified.verdicts.offsets.tolist()
    for i, request in enumerate(requests):
        most = request.params.logprobs
        if most is None:
            continue
        for at in range(bounds[i], bounds[i] + int(sizes[i])):
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
