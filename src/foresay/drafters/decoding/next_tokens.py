"""Which tokens a draft model proposes next, for many rows of logits at once.

likeliest  the tokens with the highest processed logits
coupled    the same with the target's own keyed noise added, all of it or less: with all of it the
           first is the token that the target would sample if its logits were these, the next are
           those that come closest to it
sampled    drawn from the processed distribution without replacement, with noise of the drafter's
           own, for rule rejection: each with the distribution that it was drawn from

The chance of a token that was not sampled is its share in the softmax of what it was ranked by,
noise included. This is the chance that it ranks first after all logits have been disturbed by
independent noise of scale 1, as if that were how the target differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay import _core
from foresay.arrays import Floats, Int32s
from foresay.draft import DraftBatch
from foresay.drafters.decoding.noise_weight import WEIGHTS
from foresay.sampling.acceptance.processors import Scores, scores
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.noise import Doubles, Stream
from foresay.sampling.processors import RowStatus
from foresay.sampling.signals import Signals, signals_of
from foresay.sampling.verification import VerificationBatch, VerificationInput

__all__ = ["NextTokens", "Row", "Way", "distributions", "next_tokens"]

Way: TypeAlias = Literal["likeliest", "coupled", "sampled"]
_CANDIDATES = 256
"""Of coupled tokens the first is exact; the next are sought among the likeliest, of this number."""


class Row(NamedTuple):
    """A row of logits: the text that it comes after, and how many tokens are wanted how.

    weight  of the noise, where tokens are coupled
    """

    ask: VerificationInput
    way: Way
    children: int
    weight: float = 1.0


class NextTokens(NamedTuple):
    """The tokens after a row, the best first (sampled: in the order of sampling); none where the
    logits are invalid.

    chances  of each, given its parent
    probs    what each was sampled from, [vocabulary]; empty unless they were sampled
    by_weight  the first token for each of `WEIGHTS` of the noise; empty unless they were coupled
    signals  how uncertain the model is of each; None unless they are kept
    """

    tokens: list[int]
    chances: list[float]
    probs: list[Floats]
    by_weight: tuple[int, ...] = ()
    signals: Signals | None = None

    def with_signals(self, probs: Doubles, passes: Doubles | None) -> NextTokens:
        """With the signals of its tokens. `probs` [vocabulary] is the distribution that they were
        taken from, `passes` [passes, vocabulary] the same with dropout."""
        count = len(self.tokens)
        if not count:
            return self
        rows = np.broadcast_to(probs, (count, len(probs)))
        if passes is not None:
            passes = np.broadcast_to(passes[:, None], (len(passes), count, len(probs)))
        return self._replace(signals=signals_of(rows, self.tokens, passes))


def next_tokens(logits: Tensor, rows: Sequence[Row], threads: int = 1) -> list[NextTokens]:
    """The next tokens of each row of `logits` [R, vocabulary]."""
    asks = VerificationBatch([row.ask for row in rows])
    if not asks.processed and not asks.temperatures.any():
        return _greedy(logits, rows, threads)
    given = _processed(logits, asks)
    found = [NextTokens([], [], []) for _ in rows]
    for ways, find in (("likeliest", "coupled"), _ranked), (("sampled",), _sampled):
        which = [at for at, row in enumerate(rows) if row.way in ways]
        if which:
            part = Scores(given.values[which], given.temperatures[which])
            few = VerificationBatch([rows[at].ask for at in which])
            for at, one in zip(
                which, find(part, few, [rows[at] for at in which], threads), strict=True
            ):
                found[at] = one
    return found


def distributions(logits: Tensor, rows: Sequence[Row]) -> Doubles:
    """What tokens are taken from, without noise: the softmax of each row's processed logits,
    [R, vocabulary]; of greedy requests at temperature 1. Rows without a valid one are nan."""
    given = _processed(logits, VerificationBatch([row.ask for row in rows]))
    return _scaled(given).double().softmax(-1).numpy()


def _processed(logits: Tensor, asks: VerificationBatch) -> Scores:
    none: Int32s = np.empty(0, np.int32)
    alone = Rows.of(DraftBatch._trusted(none, none, np.zeros(len(logits) + 1, np.int32)))
    given = scores(logits, alone, asks)
    return Scores(given.values.float().cpu(), given.temperatures.cpu())


def _greedy(logits: Tensor, rows: Sequence[Row], threads: int) -> list[NextTokens]:
    """Of requests without temperature and processors: the likeliest, found in one pass of the core,
    or on the device that the logits are on."""
    count = min(max(row.children for row in rows), logits.shape[1])
    if logits.device.type == "cpu":
        tokens, logprobs = _core.topk(logits.float().contiguous().numpy(), count, threads=threads)
    else:
        tokens, logprobs = _topk(logits.float(), count)
    chances = np.minimum(np.exp(logprobs.astype(np.float64)), 1.0)
    found = []
    for at, row in enumerate(rows):
        good = np.flatnonzero(logprobs[at, : row.children] > -np.inf)
        if row.way != "sampled":
            found.append(NextTokens(tokens[at, good].tolist(), chances[at, good].tolist(), []))
            continue
        own: Floats = np.zeros(logits.shape[1], np.float32)
        own[tokens[at, good[:1]]] = 1
        some = len(good[:1])
        found.append(NextTokens(tokens[at, good[:1]].tolist(), [1.0] * some, [own] * some))
    return found


def _topk(logits: Tensor, count: int) -> tuple[Int32s, Floats]:
    """The likeliest tokens of each row and their log probabilities: one small copy to the host.
    Rows without a valid one have log probabilities that are no numbers."""
    best = logits.topk(count)
    found: Floats = (best.values - logits.logsumexp(-1, keepdim=True)).cpu().numpy()
    return best.indices.int().cpu().numpy(), found


def _ranked(
    given: Scores, asks: VerificationBatch, rows: Sequence[Row], threads: int
) -> list[NextTokens]:
    noisy = np.array([row.way == "coupled" and not row.ask.params.greedy for row in rows])
    temperatures = given.temperatures.numpy()
    first, values, status = _choose(
        given.values, np.where(noisy, temperatures, np.float32(0)), asks, Stream.TARGET, threads
    )
    most = _CANDIDATES if noisy.any() else max(row.children for row in rows)
    scaled = _scaled(given)
    best = scaled.topk(min(most, scaled.shape[1]))
    sums = scaled.logsumexp(-1).double().numpy()
    found = []
    for at, row in enumerate(rows):
        if status[at] != RowStatus.GOOD:
            found.append(NextTokens([], [], []))
            continue
        tokens = best.indices[at].numpy().astype(np.int32)
        ranks = best.values[at].numpy().astype(np.float64)
        by_weight: tuple[int, ...] = ()
        winner, top = int(first[at]), float(values[at])
        if noisy[at]:
            noise = _core.gumbels(row.ask.seed, row.ask.position, tokens, Stream.TARGET)
            less = [int(tokens[(ranks + weight * noise).argmax()]) for weight in WEIGHTS[1:]]
            by_weight = winner, *less
            ranks += row.weight * noise
            if row.weight < 1:
                winner, top = int(tokens[ranks.argmax()]), float(ranks.max())
        else:
            top = float(scaled[at, winner])
        others = tokens != winner
        tokens, ranks = np.append(winner, tokens[others]), np.append(top, ranks[others])
        total = _logsumexp(ranks) if noisy[at] else float(sums[at])
        order = np.append(0, 1 + np.argsort(-ranks[1:], kind="stable"))[: row.children]
        order = order[ranks[order] > -np.inf]
        chances = np.minimum(np.exp(ranks[order] - total), 1.0)
        found.append(NextTokens(tokens[order].tolist(), chances.tolist(), [], by_weight))
    return found


def _sampled(
    given: Scores, asks: VerificationBatch, rows: Sequence[Row], threads: int
) -> list[NextTokens]:
    found = [NextTokens([], [], []) for _ in rows]
    left = Scores(given.values.clone(), given.temperatures)
    for sibling in range(max(row.children for row in rows)):
        # Sibling i has stream DRAFT + i, and its distribution leaves the earlier ones out.
        temperatures = left.temperatures.numpy()
        stream = Stream.DRAFT + sibling
        tokens, _, status = _choose(left.values, temperatures, asks, stream, threads)
        probs = _scaled(left).double().softmax(-1).float().numpy()
        for at, row in enumerate(rows):
            greedy = row.ask.params.greedy
            if sibling >= (1 if greedy else row.children) or status[at] != RowStatus.GOOD:
                continue
            token, own = int(tokens[at]), probs[at]
            if greedy:
                own = np.zeros_like(own)
                own[token] = 1
            if not own[token] > 0:  # too unlikely for float32: no sample of what is told
                continue
            left.values[at, token] = -torch.inf
            found[at].tokens.append(token)
            found[at].chances.append(min(float(own[token]), 1.0))
            found[at].probs.append(own)
    return found


def _choose(
    values: Tensor,
    temperatures: NDArray[np.float32],
    asks: VerificationBatch,
    stream: int,
    threads: int,
) -> tuple[Int32s, Doubles, NDArray[np.uint8]]:
    return _core.choose(
        values.contiguous().numpy(),
        temperatures=temperatures,
        seeds=asks.seeds,
        positions=asks.positions.astype(np.uint32),
        stream=stream,
        threads=threads,
    )


def _scaled(given: Scores) -> Tensor:
    temperatures = given.temperatures
    return given.values / torch.where(temperatures == 0, 1, temperatures)[:, None]


def _logsumexp(values: Doubles) -> float:
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum()))
