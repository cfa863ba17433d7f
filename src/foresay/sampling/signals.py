"""How uncertain a drafter is of each token it drafted.

    nll        -log q(token), in nats: how surprising the token itself is
    entropy    -sum q log q, in bits: how open the choice was
    margin     q1 - q2, the difference of the two largest *probabilities*, not of logits or logs;
               small is uncertain
    variance   of probabilities over several passes with dropout (MC dropout)

q is the drafter's distribution, after temperature and top-p: the one that was sampled from. It is
not the target's, which the edge never sees. 1 bit is log 2 = .693 nats, so a threshold of 2.5 bits
is 1.733 nats.

Rows of probabilities are [n, vocabulary], or one row alone, and are divided by their sum, which may
miss 1 by `TOLERANCE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import FloatsLike, IntsLike, as_tokens, joined_or_none
from foresay.errors import InputError

__all__ = ["Signals", "nll_of_scores", "signals_of"]

Doubles: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[Any]  # floats, [n, vocabulary] or [vocabulary]

_NAMES = ("nll", "entropy_bits", "margin", "variance")
TOLERANCE = 1e-4
"""How far chances may miss the sum 1: room for rows of float32, none for logits or bfloat16."""


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """The signals of n drafted tokens, each float64[n], or None where it is not known.

    nll            in nats; inf for a token of probability 0
    entropy_bits   in bits, as the usual threshold is
    margin         of probabilities, 0 to 1
    variance       of the token's probability over passes with dropout

    Raises: InputError for NaN, and for signals of different lengths.
    """

    nll: Doubles | None = None
    entropy_bits: Doubles | None = None
    margin: Doubles | None = None
    variance: Doubles | None = None

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for name in _NAMES:
            values = getattr(self, name)
            if values is None:
                continue
            values = np.asarray(values)
            if values.ndim != 1 or (values.size and values.dtype.kind not in "iuf"):
                raise InputError(f"{name} is {values!r}; expected one number per token")
            values = values.astype(np.float64)
            for at in np.flatnonzero(np.isnan(values)):
                raise InputError(f"{name}[{at}] is nan; expected a number")
            object.__setattr__(self, name, values)
            sizes[name] = values.size
        if len(set(sizes.values())) > 1:
            raise InputError(f"the signals have lengths {sizes}; expected one length")

    def at(self, nodes: Any) -> Signals:
        """Those of some of the tokens: whole numbers, or a slice."""
        return Signals(*(None if one is None else one[nodes] for one in self._all()))

    @classmethod
    def joined(cls, parts: Sequence[Signals]) -> Signals:
        """Those of several drafts, one after the other. Raises: InputError if some have a signal
        that others lack."""
        columns = zip(*(part._all() for part in parts), strict=True)
        return cls(*map(joined_or_none, columns, _NAMES))

    def _all(self) -> tuple[Doubles | None, ...]:
        return tuple(getattr(self, name) for name in _NAMES)

    def __len__(self) -> int:
        """For how many tokens; 0 if no signal is known."""
        return next((len(values) for values in self._all() if values is not None), 0)


def signals_of(probs: Rows, tokens: IntsLike, passes: Rows | None = None) -> Signals:
    """Every signal that rows give, of n tokens or of one. Of the two largest probabilities a tie
    has margin 0, and a vocabulary of one token has margin 1.

    passes  [passes, n, vocabulary], or [passes, vocabulary] for one token, with dropout: without
            them `variance` is not known. The sum of squares is divided by passes - 1, so that a
            threshold does not depend on their number

    Raises: InputError for fewer than 2 passes; for rows that are no probabilities (NaN, below 0,
    another sum than 1), and for token ids outside the vocabulary.
    """
    rows = _rows(probs)
    places = np.arange(len(rows)), _ids(tokens, *rows.shape)
    logs = np.log(rows, out=np.zeros_like(rows), where=rows > 0)  # 0 log 0 = 0
    top = np.partition(np.pad(rows, ((0, 0), (1, 0))), -2, axis=1)[:, -2:]
    return Signals(
        _minus_log(rows[places]),
        np.maximum(-(rows * logs).sum(axis=1), 0.0) / np.log(2),
        top[:, 1] - top[:, 0],
        None if passes is None else _spread(passes, rows.shape)[places],
    )


def nll_of_scores(scores: FloatsLike) -> Doubles:
    """-log of each token's chance given the tokens before it, in nats, from a chain's scores.

    For drafters without rows, such as the suffix automaton. A score is the estimated probability
    that the token will be committed (`Draft.scores`), so it includes the tokens before it: the
    chance of token i alone is scores[i] / scores[i - 1]. Behind a score of 0 it is unknown, and
    counts as 0. Entropy and margin cannot be had from scores.

    Raises: InputError for scores that are not from 0 to 1, or that rise.
    """
    values = np.asarray(scores)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iuf"):
        raise InputError(f"scores are {scores!r}; expected one number per token")
    values = values.astype(np.float64)
    before = np.append(1.0, values[:-1])[: values.size]
    for at in np.flatnonzero(~((values >= 0) & (values <= before))):
        raise InputError(
            f"scores[{at}] is {values[at]}; expected 0 to {before[at]}: a token is committed only "
            "with the tokens before it"
        )
    chances = np.divide(values, before, out=np.zeros_like(values), where=before > 0)
    return _minus_log(chances)


def _spread(passes: Rows, shape: tuple[int, ...]) -> Doubles:
    """The variance over passes of each probability, [n, vocabulary]."""
    given = np.asarray(passes)
    if given.ndim == 2:
        given = given[:, np.newaxis]
    if given.ndim != 3 or len(given) < 2 or given.shape[1:] != shape:
        raise InputError(
            f"passes have shape {list(given.shape)}; expected [passes, tokens, vocabulary] with 2 "
            f"or more passes of {list(shape)}"
        )
    rows = _rows(given.reshape(-1, shape[1])).reshape(given.shape)
    spread: Doubles = rows.var(axis=0, ddof=1)
    return spread


def _rows(probs: Rows) -> Doubles:
    """`probs` as [n, vocabulary], each row divided by its sum."""
    try:
        given = np.atleast_2d(np.asarray(probs))
    except ValueError:  # rows of different lengths
        given = np.empty((0, 0))
    if given.ndim != 2 or not given.shape[1] or given.dtype.kind not in "iuf":
        raise InputError(
            f"probs are {given.dtype}{list(given.shape)}; expected rows of probabilities, "
            "[tokens, vocabulary]"
        )
    rows = given.astype(np.float64)
    for row, token in np.argwhere(~((rows >= 0) & (rows <= 1 + TOLERANCE))):
        raise InputError(f"probs[{row}, {token}] is {rows[row, token]}; expected 0 to 1")
    sums = rows.sum(axis=1)
    for row in np.flatnonzero(np.abs(sums - 1) > TOLERANCE):
        raise InputError(f"probs[{row}] sums to {sums[row]}; expected 1, within {TOLERANCE}")
    rows /= sums[:, np.newaxis]
    return rows


def _ids(tokens: IntsLike, n: int, vocabulary: int) -> NDArray[np.int32]:
    ids = as_tokens(tokens)
    if ids.size != n:
        raise InputError(f"there are {ids.size} tokens and {n} rows; expected equally many")
    for at in np.flatnonzero(ids >= vocabulary):
        raise InputError(f"tokens[{at}] is {ids[at]}; expected a token id below {vocabulary}")
    return ids


def _minus_log(chances: Doubles) -> Doubles:
    logs = np.log(chances, out=np.full(chances.shape, -np.inf), where=chances > 0)
    return np.maximum(-logs, 0.0)
