"""Rule rejection on a device: what every walk could need is computed there, without a wait.

Where a walk ends, all drafted tokens behind that row were rejected, in their order; where it goes
on, those before the accepted one were. So the chance of each drafted token, and the token that
would be drawn in each row, do not depend on the walk: they are computed for all rows, the walks are
found afterwards, here, from a few numbers.

Rows are computed so many at once, in an array of one shape: a sum is added up in the same way
whatever else is in the batch.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: `tries` releases it while it waits.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import Floats
from foresay.sampling.acceptance import planned as planning
from foresay.sampling.acceptance.processors import Scores
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.acceptance.upload import download, upload
from foresay.sampling.noise import Doubles, Stream, uniform
from foresay.sampling.processors import RowStatus
from foresay.sampling.verification import VerificationBatch

__all__ = ["Tries", "tries"]

_ROWS = 64  # at once: in double precision a row is large
_BLOCK = 512  # tokens that are drawn from after their block was


class Tries(NamedTuple):
    """What became of every row [R]."""

    accepted: NDArray[np.bool_]
    """Whether the row's node is accepted, if it is tried."""
    wrong: NDArray[np.bool_]
    """Whether the row's node has invalid probs."""
    tokens: Longs
    """What is drawn in the row, if all nodes behind it are rejected."""
    status: Longs
    """A RowStatus."""


def tries(
    logits: Tensor,
    rows: Rows,
    inputs: VerificationBatch,
    probs: Floats | None,
    kernel: planning.Kernel,
) -> Tries:
    """`probs` [N, V]: what each node's token was sampled from; None: tokens were chosen."""
    planned = planning.plan(rows, inputs, logits.shape[1])
    below, sibling = _siblings(rows)
    parent = rows.parent[below]
    order = np.lexsort((sibling, parent // _ROWS))
    below, sibling, parent = below[order], sibling[order], parent[order]
    turns = _turns(parent // _ROWS, sibling, -(-len(rows) // _ROWS))
    where = inputs.positions[rows.request] + rows.depth
    seeds = inputs.seeds[rows.request]
    arrays: dict[str, NDArray[Any]] = {
        **planned.arrays,
        "rows": parent % _ROWS,
        "tokens": rows.token[below],
        "nodes": rows.node[below],
        "coins": uniform(seeds, where, np.zeros(len(rows), np.int64), Stream.RESIDUAL),
    }
    if probs is not None:
        arrays["probs"] = probs
    sent = upload(arrays, logits.device)
    given = planning.scores(planned, logits, sent, kernel)
    chances = torch.ones(len(below), dtype=torch.float64, device=logits.device)
    drawn, statuses = list[Tensor](), list[Tensor]()
    some_greedy = bool((inputs.temperatures == 0).any())
    for number, begin in enumerate(range(0, len(rows), _ROWS)):
        few = slice(begin, begin + _ROWS)
        part = Scores(given.values[few], given.temperatures[few])
        weights, became = _weights(part, some_greedy)
        totals = weights.sum(dim=-1)
        for turn in turns[number]:
            _try(weights, totals, chances, turn, sent)
        drawn.append(_draw(weights, sent["coins"][few]))
        statuses.append(became)

    # The coins of the tries are tossed while the device works.
    tossed = uniform(seeds[parent], where[parent], sibling, Stream.ACCEPT)
    numbers = download(torch.cat([chances.view(torch.int64), *drawn, *statuses]))
    chance: Doubles = numbers[: len(below)].view(np.float64)
    accepted, wrong = np.zeros((2, len(rows)), bool)
    accepted[below], wrong[below] = tossed < chance, np.isnan(chance)
    tokens, status = numbers[len(below) :].reshape(2, len(rows))
    return Tries(accepted, wrong, tokens, status)


def _siblings(rows: Rows) -> tuple[Longs, Longs]:
    """All rows below another, and how many siblings each has before it."""
    below = np.flatnonzero(rows.parent >= 0)
    order = np.argsort(rows.parent[below], kind="stable")
    parents = rows.parent[below][order]
    number = np.empty(len(below), np.int64)
    number[order] = np.arange(len(below)) - np.searchsorted(parents, parents)
    return below, number


def _turns(chunk: Longs, sibling: Longs, chunks: int) -> list[list[slice]]:
    """For each chunk of rows, the nodes that are tried together: of every row its first one, of
    every row its second one, and so on."""
    starts = np.flatnonzero(np.diff(chunk, prepend=-1) | np.diff(sibling, prepend=-1))
    turns: list[list[slice]] = [[] for _ in range(chunks)]
    for begin, end in pairwise([*starts.tolist(), len(chunk)]):
        turns[int(chunk[begin])].append(slice(begin, end))
    return turns


def _weights(given: Scores, some_greedy: bool) -> tuple[Tensor, Tensor]:
    """The probs of at most `_ROWS` rows as shares of the likeliest token's, in whole blocks and all
    `_ROWS` rows; 1 in invalid rows. And what became of each row, int64."""
    values, temperatures = given.values.float(), given.temperatures[:, None]
    rows, vocabulary = values.shape
    greedy = temperatures == 0
    divisor = torch.where(greedy, 1.0, temperatures)
    top = values.amax(dim=-1, keepdim=True)  # NaN if there is one
    scaled = top / divisor
    status = torch.where(scaled.isneginf(), int(RowStatus.EMPTY), int(RowStatus.GOOD))
    status = torch.where(scaled.isposinf(), int(RowStatus.INFINITE), status)
    status = torch.where(scaled.isnan(), int(RowStatus.NAN), status)
    shares = (values / divisor).double().sub_(scaled.double()).exp_()
    if some_greedy:
        ids = torch.arange(vocabulary, device=values.device)
        first = torch.where(values == top, ids, vocabulary).amin(dim=-1, keepdim=True)
        shares = torch.where(greedy, (ids == first).double(), shares)
    shape = (_ROWS, -(-vocabulary // _BLOCK) * _BLOCK)
    weights = torch.zeros(shape, dtype=torch.float64, device=values.device)
    weights[:rows, :vocabulary] = shares.masked_fill_(status != RowStatus.GOOD, 1.0)
    return weights, status[:, 0]


def _try(
    weights: Tensor,
    totals: Tensor,
    chances: Tensor,
    some: slice,
    sent: dict[str, Tensor],
) -> None:
    """The chances of one node of each of some rows, which is then rejected; writes these, and
    what is left. Where rounding would leave nothing, all stays."""
    row, token, node = sent["rows"][some], sent["tokens"][some], sent["nodes"][some]
    own, total = weights[row, token], totals[row]
    chance = own / total
    if "probs" not in sent:
        rest = total - own
        left = rest > 0
        weights.index_put_((row, token), own.masked_fill(left, 0.0))
    else:
        q = sent["probs"][node].double()
        sums, likely = q.sum(dim=-1), q.gather(1, token[:, None])[:, 0]
        right = (q.amin(dim=-1) >= 0) & (sums < torch.inf) & (likely > 0)
        chance = torch.where(right, chance / (likely / sums), torch.nan)
        before = weights[row]
        after = before.clone()
        after[:, : q.shape[1]].sub_(q.mul_((total / sums)[:, None])).clamp_(min=0)
        rest = after.sum(dim=-1)
        left = rest > 0
        weights.index_copy_(0, row, torch.where(left[:, None], after, before))
    totals.index_copy_(0, row, torch.where(left, rest, total))
    chances[some] = chance


def _draw(weights: Tensor, coins: Tensor) -> Tensor:
    """A token of each row, with chance proportional to its weight; never one of weight 0: first its
    block, then the token in it."""
    blocks = weights.view(_ROWS, -1, _BLOCK)
    sums = blocks.sum(dim=-1)
    ends = sums.cumsum(dim=-1)
    goal = torch.zeros(_ROWS, dtype=torch.float64, device=weights.device)
    goal[: len(coins)] = coins
    goal = (goal * ends[:, -1])[:, None]
    block = _first_above(ends, sums, goal)
    here = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    reached = here.cumsum(dim=-1) + (ends - sums).gather(1, block)
    token = block * _BLOCK + _first_above(reached, here, goal)
    return token[: len(coins), 0]


def _first_above(ends: Tensor, sizes: Tensor, goal: Tensor) -> Tensor:
    """The first place of each row with a size above 0 that ends above the goal; where rounding
    leaves none, the last one with a size above 0. [R, 1]"""
    places = torch.arange(ends.shape[1], device=ends.device)
    some = sizes > 0
    first = places.where(some & (ends > goal), ends.shape[1]).amin(dim=-1, keepdim=True)
    last = places.where(some, 0).amax(dim=-1, keepdim=True)
    return first.minimum(last)
