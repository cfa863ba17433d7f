"""From the end of each request's walk to its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import Int32s, sizes_of
from foresay.draft import DraftBatch
from foresay.errors import ForesayError, LogitsError
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.acceptance.upload import upload
from foresay.sampling.processors import RowStatus
from foresay.sampling.verification import VerificationBatch
from foresay.verdict import Verdict, VerdictBatch

__all__ = ["Verified", "cut", "failures_of", "in_parts", "verdicts", "without"]


@dataclass(frozen=True, eq=False)
class Verified:
    """The verdicts of a batch of drafts."""

    verdicts: VerdictBatch
    """One for each request; without tokens for failed requests."""
    failures: Mapping[int, ForesayError]
    """Why a request failed, by its number in the batch. It does not affect the others."""
    rows: Longs
    """For each of the verdicts' tokens the row of logits that it was sampled from."""


Rule: TypeAlias = Callable[[DraftBatch, Tensor, VerificationBatch], Verified]
_NONE = np.empty(0, np.int32)


def failures_of(status: NDArray[np.uint8], inputs: VerificationBatch) -> dict[int, ForesayError]:
    """The errors of requests whose first row is invalid, by the requests' numbers."""
    return {
        int(i): LogitsError(RowStatus(int(status[i])).sentence(int(inputs.positions[i])))
        for i in np.flatnonzero(status != RowStatus.GOOD)
    }


def verdicts(
    rows: Rows,
    inputs: VerificationBatch,
    last: Longs,
    own: Longs,
    failures: Mapping[int, ForesayError],
) -> Verified:
    """The verdicts of walks that ended in the rows `last` with the target's `own` tokens (-1: it
    has none, the tokens end with the last drafted one), cut where the answer ends.
    """
    paths = rows.paths(last)
    batch, width = paths.shape
    tokens = np.full((batch, width), -1, np.int64)
    tokens[:, :-1] = np.where(paths[:, 1:] >= 0, rows.token[paths[:, 1:]], -1)
    tokens[np.arange(batch), rows.depth[last]] = own
    lengths = np.minimum((tokens >= 0).sum(axis=1), inputs.room)
    lengths[list(failures)] = 0

    at = np.arange(width)
    owner, stop = inputs.stops
    ends = tokens[owner] == stop[:, None]  # [stop tokens, width]: where that token is
    np.minimum.at(lengths, owner, np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, width))

    taken, accepted = at < lengths[:, None], at[1:] < lengths[:, None]
    nodes = paths[:, 1:] - rows.starts[:-1, None] - 1
    packed = VerdictBatch._trusted(
        tokens[taken].astype(np.int32),
        _offsets(lengths),
        nodes[accepted].astype(np.int32),
        _offsets(np.maximum(lengths - 1, 0)),
    )
    return Verified(packed, dict(failures), paths[taken])


def cut(verified: Verified, sizes: Longs) -> Verified:
    """The same verdicts, each with at most `sizes` tokens: where a stop string ends an answer."""
    found = verified.verdicts
    if (sizes_of(found.offsets) <= sizes).all():
        return verified
    lengths = np.minimum(sizes_of(found.offsets), sizes)
    tokens = _first(found.offsets, lengths)
    path = _first(found.path_offsets, np.maximum(lengths - 1, 0))
    packed = VerdictBatch._trusted(
        found.tokens[tokens],
        _offsets(lengths),
        found.path[path],
        _offsets(np.minimum(sizes_of(found.path_offsets), np.maximum(lengths - 1, 0))),
    )
    return Verified(packed, verified.failures, verified.rows[tokens])


def in_parts(
    parts: Iterable[tuple[Sequence[int], Rule]],
    drafts: DraftBatch,
    logits: Tensor,
    inputs: VerificationBatch,
    refusals: Mapping[int, ForesayError] | None = None,
) -> Verified:
    """The verdicts of a batch in parts: some of the requests, by number, and what verifies them.
    Requests in no part fail by `refusals`.

    Raises: as the rules.
    """
    rows, failures = Rows.of(drafts), dict(refusals or {})
    each = [Verdict._trusted(_NONE, _NONE)] * len(inputs)
    places = [np.empty(0, np.int64)] * len(inputs)
    for numbers, rule in parts:
        there = np.flatnonzero(np.isin(rows.request, numbers))
        verified = rule(
            DraftBatch.of([drafts[at] for at in numbers]),
            logits[upload({"there": there}, logits.device)["there"]],
            VerificationBatch.of([inputs[at] for at in numbers]),
        )
        bounds = verified.verdicts.offsets
        for place, at in enumerate(numbers):
            each[at] = verified.verdicts[place]
            places[at] = there[verified.rows[bounds[place] : bounds[place + 1]]]
        failures |= {numbers[place]: error for place, error in verified.failures.items()}
    return Verified(VerdictBatch.of(each), dict(sorted(failures.items())), np.concatenate(places))


def without(
    refusals: Mapping[int, ForesayError],
    rule: Rule,
    drafts: DraftBatch,
    logits: Tensor,
    inputs: VerificationBatch,
) -> Verified:
    """The verdicts of the other requests; the refused ones fail. Raises: as the rule."""
    good = [at for at in range(len(inputs)) if at not in refusals]
    return in_parts([(good, rule)], drafts, logits, inputs, refusals)


def _first(offsets: Int32s, sizes: Longs) -> NDArray[np.bool_]:
    """Which items are among the first `sizes` of their part."""
    at = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes_of(offsets))
    first: NDArray[np.bool_] = at < np.repeat(sizes, sizes_of(offsets))
    return first


def _offsets(sizes: Longs | NDArray[np.bool_]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
