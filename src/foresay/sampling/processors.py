"""The logits processors, from logits to the probabilities of the next token, row by row: the
readable twin of `acceptance/processors.py`.

The order and the meaning of the processors are those of transformers, unless a request chooses
another order; what it leaves open is fixed here. Logits and scores are float32, as there.
Where a decision depends on a sum of probabilities (top-p), it is a sum of integers. So it does not
depend on the order of addition, the batch or the number of threads.

Raises: LogitsError for invalid logits.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import Floats, IntsLike
from foresay.errors import InputError, LogitsError
from foresay.sampling.noise import Doubles
from foresay.sampling.verification import VerificationInput

__all__ = ["RowStatus", "parts", "probabilities", "scores"]


class RowStatus(IntEnum):
    """The status of a row of logits. All but the first two fail the request."""

    GOOD = 0
    NOT_REACHED = 1
    NAN = 2
    INFINITE = 3
    EMPTY = 4

    def sentence(self, position: int) -> str:
        what = {
            RowStatus.NAN: "hold NaN",
            RowStatus.INFINITE: "hold +inf",
            RowStatus.EMPTY: "leave no token: all of them are -inf or forbidden",
        }[self]
        return f"the logits for position {position} {what}"


def scores(
    logits: Floats,
    request: VerificationInput,
    path: IntsLike = (),
    mask: NDArray[np.int32] | None = None,
) -> Floats:
    """The processed logits after the drafted `path`, without noise. Forbidden tokens have -inf.

    mask  the row of `request.masks` for this place
    """
    _check_row(logits, request, path)
    row = logits.astype(np.float32)
    if mask is not None:
        row[
            [token for token in range(len(row)) if not mask[token // 32] >> token % 32 & 1]
        ] = -np.inf
    params, answer = request.params, np.concatenate([request.output, path]).astype(np.int64)
    with np.errstate(over="ignore"):  # a sum too large for float32 is found below
        for token, bias in params.logit_bias.items():
            if token >= len(row):
                raise InputError(
                    f"logit_bias names token {token}; the vocabulary has {len(row)} tokens"
                )
            row[token] += np.float32(bias)
        if params.penalised:
            _penalise(row, request, answer)
        if len(answer) < params.min_tokens:
            row[[token for token in request.stops if token < len(row)]] = -np.inf
        if not params.greedy:
            for processor in params.processor_order:
                _APPLY[processor](row, getattr(params, processor))
    _check_row(row, request, path)
    return row


def probabilities(row: Floats, greedy: bool) -> Doubles:
    """The probabilities of processed logits; for a greedy request, all mass is on one token."""
    if greedy:
        one: Doubles = np.eye(1, len(row), int(np.argmax(row)))[0]
        return one
    weights = np.exp(row.astype(np.float64) - np.float64(row.max()))
    result: Doubles = weights / weights.sum()
    return result


def parts(vocabulary: int) -> float:
    """The integer weight of the likeliest token in top-p: the largest whose sums fit into int64."""
    return 2.0 ** (62 - max(10, (vocabulary - 1).bit_length()))


def _penalise(row: Floats, request: VerificationInput, answer: NDArray[np.int64]) -> None:
    params = request.params
    seen = np.unique(np.concatenate([np.asarray(request.prompt, np.int64), answer]))
    if len(seen) and seen[-1] >= len(row):
        raise InputError(f"the text has token {seen[-1]}; the vocabulary has {len(row)} tokens")
    penalty = np.float32(params.repetition_penalty)
    row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
    used, times = np.unique(answer, return_counts=True)
    row[used] -= np.float32(params.presence_penalty)
    row[used] -= np.float32(params.frequency_penalty) * times.astype(np.float32)


def _apply_temperature(row: Floats, temperature: float) -> None:
    row /= np.float32(temperature)


def _apply_top_k(row: Floats, k: int) -> None:
    if 0 < k < len(row):
        row[row < np.partition(row, -k)[-k]] = -np.inf


def _apply_top_p(row: Floats, p: float) -> None:
    """Tokens by falling score (ties: by rising id), while the mass before them is below p."""
    if p < 1 and np.isfinite(row.max()):
        order = np.argsort(-row, kind="stable")
        exact = np.exp(row.astype(np.float64) - np.float64(row.max()))
        weights = np.floor(exact * parts(len(row))).astype(np.int64)[order]
        before = np.cumsum(weights) - weights
        row[order[before >= p * float(weights.sum())]] = -np.inf


def _apply_min_p(row: Floats, p: float) -> None:
    if p > 0 and np.isfinite(row.max()):
        row[np.exp(row.astype(np.float64) - np.float64(row.max())) < p] = -np.inf


_APPLY: dict[str, Callable[[Floats, Any], None]] = {
    "temperature": _apply_temperature,
    "top_k": _apply_top_k,
    "top_p": _apply_top_p,
    "min_p": _apply_min_p,
}


def _check_row(row: Floats, request: VerificationInput, path: IntsLike) -> None:
    status = RowStatus.GOOD
    if np.isnan(row).any():
        status = RowStatus.NAN
    elif (row == np.inf).any():
        status = RowStatus.INFINITE
    elif (row == -np.inf).all():
        status = RowStatus.EMPTY
    if status != RowStatus.GOOD:
        raise LogitsError(status.sentence(request.position + len(path)))
