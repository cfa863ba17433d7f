"""What a step has to do before anything is drafted: requests in, the numbers of a `Load` out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foresay.budget.load import Load
from foresay.budget.urgency import urgency
from foresay.engine.scheduler import Turn

__all__ = ["load_of"]


def load_of(turns: Sequence[Turn], *, requests_wait: bool) -> Load:
    """The load of a step with these turns. Of a text's new tokens only the last one counts as its
    own row; those before it are rows of a prompt.

    Where the caller waits for several answers together, tokens count by the chance that their
    request ends last; not while `requests_wait`: they could be admitted after any end.
    """
    rows = reads = 0
    for turn in turns:
        others = turn.tokens - turn.whole
        rows += others
        reads += others * (turn.request.stored + (others + 1) // 2)
    decoding = [turn.request for turn in turns if turn.whole]
    tokens_left = np.array([request.tokens_left for request in decoding], np.int64)
    weights = None
    if len(decoding) > 1 and not requests_wait and all(request.together for request in decoding):
        stats = [request.stats for request in decoding]
        weights = urgency(tokens_left, [s.tokens for s in stats], [s.steps for s in stats])
    return Load(
        contexts=np.array([len(request) for request in decoding], np.int64),
        tokens_left=tokens_left,
        other_rows=rows,
        other_reads=reads,
        ids=np.array([request.number for request in decoding], np.int64),
        weights=weights,
    )
