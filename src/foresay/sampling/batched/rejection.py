"""Rule rejection over a packed batch, in rounds: each decides one drafted token of every request.

A round tries each walk's next candidate against what is left of the target's law in its row. So a
batch takes as many rounds as its longest walk has attempts, and only rows that a walk reaches are
ever turned into laws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.draft import Draft
from foresay.errors import InputError
from foresay.sampling.ask import Ask, AskBatch
from foresay.sampling.batched import law
from foresay.sampling.batched.inputs import checked
from foresay.sampling.batched.rows import Longs, Rows
from foresay.sampling.batched.verdicts import Verified, failures_of, verdicts
from foresay.sampling.law import RowStatus
from foresay.sampling.noise import Doubles, Stream, uniform

__all__ = ["rejection"]


def rejection(drafts: Sequence[Draft], logits: Tensor, asks: Sequence[Ask]) -> Verified:
    """Accepts each drafted token with chance min(1, p / q), and adds one from what is left of p.

    logits   [N + B, V], on any device: for each request its rows, after its text and each node.
    The drafts' probs say what each token was drawn from, given its earlier siblings; without them
    the tokens were chosen. Exact in law; the text depends on the draft.

    Mutates: nothing. Valid until: for ever. Raises: InputError for arguments that do not fit each
    other; logits or probs that are no law are the request's own failure. GIL: held but for torch.
    """
    drafts, asks, rows = checked(drafts, logits, asks)
    row = rows.starts[:-1].copy()  # where each request's walk is
    candidate = rows.first_child[row]  # the row that it tries next
    attempt = np.zeros(len(asks), np.int64)
    own = np.zeros(len(asks), np.int64)
    left = _Left(logits, rows, asks)
    status = left.enter(np.arange(len(asks)), row)
    failures = failures_of(status, asks)
    candidate[list(failures)] = -1
    probs = None if drafts.probs is None else torch.from_numpy(drafts.probs)

    while len(trying := np.flatnonzero(candidate >= 0)):
        node, token = rows.node[candidate[trying]], rows.token[candidate[trying]]
        chance, wrong = left.share(trying, token), np.zeros(len(trying), bool)
        if probs is not None:
            drawn, wrong = _chance_of(probs, node, token)
            chance = chance / drawn
        positions = asks.positions[trying] + rows.depth[row[trying]]
        coins = uniform(asks.seeds[trying], positions, attempt[trying], Stream.ACCEPT)
        accepted, rejected = (coins < chance) & ~wrong, (coins >= chance) & ~wrong
        for i in trying[wrong]:
            failures[int(i)] = InputError(f"request {i}: {_NO_LAW}")
        candidate[trying[wrong]] = -1

        lost = trying[rejected]
        left.take(lost, token[rejected], None if probs is None else probs[node[rejected]])
        candidate[lost], attempt[lost] = rows.next_sibling[candidate[lost]], attempt[lost] + 1

        won = trying[accepted]
        row[won], attempt[won] = candidate[won], 0
        bad = left.enter(won, row[won]) != RowStatus.GOOD
        candidate[won] = np.where(bad, -1, rows.first_child[row[won]])
        own[won[bad]] = -1

    positions = asks.positions + rows.depth[row]
    coins = uniform(asks.seeds, positions, np.zeros_like(positions), Stream.RESIDUAL)
    return verdicts(rows, asks, row, np.where(own < 0, -1, left.draw(coins)), failures)


_NO_LAW = "a drafted token has probs that cannot draw it, or that are no law"


class _Left:
    """What is left of the target's law in the row where each request's walk is: weights [B, V] in
    float64, which need not sum to 1, and their totals. All methods but `share` and `draw` mutate.
    """

    def __init__(self, logits: Tensor, rows: Rows, asks: AskBatch) -> None:
        self.logits, self.rows, self.asks = logits, rows, asks
        shape = (len(asks), logits.shape[1])
        self.weights = torch.empty(shape, dtype=torch.float64, device=logits.device)
        self.totals = np.ones(len(asks))

    def enter(self, walks: Longs, which: Longs) -> NDArray[np.uint8]:
        """The whole laws of these rows for these walks; bad rows get an arbitrary one.

        Returns what became of the rows.
        """
        if not len(walks):
            return np.empty(0, np.uint8)
        given = law.scores(self.logits, self.rows, self.asks, which)
        top = given.values.amax(dim=-1)  # NaN if there is one
        status = torch.zeros(len(which), dtype=torch.uint8, device=top.device)
        status[torch.isneginf(top)] = RowStatus.EMPTY
        status[torch.isposinf(top)] = RowStatus.INFINITE
        status[torch.isnan(top)] = RowStatus.NAN
        weights = law.weights(given, top)
        if status.any():
            weights[status != RowStatus.GOOD] = 1
        self.weights.index_copy_(0, torch.as_tensor(walks, device=top.device), weights)
        self.totals[walks] = weights.sum(dim=-1).cpu().numpy()
        return status.cpu().numpy()

    def share(self, walks: Longs, tokens: Longs) -> Doubles:
        """The chance of a token of each walk."""
        found: Doubles = self.weights[walks, tokens].cpu().numpy() / self.totals[walks]
        return found

    def take(self, walks: Longs, tokens: Longs, probs: Tensor | None) -> None:
        """The residual after rejected tokens: drawn from `probs`, or chosen. Where rounding would
        leave nothing, all stays."""
        if not len(walks):
            return
        if probs is None:
            totals = self.totals[walks] - self.weights[walks, tokens].cpu().numpy()
            some = totals > 0
            self.weights[walks[some], tokens[some]] = 0
            self.totals[walks[some]] = totals[some]
            return
        q = probs.to(self.weights.device).double()
        q *= torch.as_tensor(self.totals[walks], device=q.device)[:, None] / q.sum(1, keepdim=True)
        rest = torch.sub(self.weights[walks], q, out=q).clamp_(min=0)
        totals = rest.sum(dim=-1).cpu().numpy()
        some = totals > 0
        self.weights[walks[some]] = rest[torch.from_numpy(some)]
        self.totals[walks[some]] = totals[some]

    def draw(self, coins: Doubles) -> Longs:
        """A token of each walk."""
        sums = self.weights.cumsum(dim=-1)
        goal = torch.as_tensor(coins, device=sums.device)[:, None] * sums[:, -1:]
        drawn: Longs = torch.searchsorted(sums, goal, right=True)[:, 0].cpu().numpy()
        return drawn


def _chance_of(probs: Tensor, nodes: Longs, tokens: Longs) -> tuple[Doubles, NDArray[np.bool_]]:
    """The chance of each node's token under the node's law; and which nodes have no such law."""
    q = probs[nodes]
    total, least = q.sum(dim=-1, dtype=torch.float64).numpy(), q.amin(dim=-1).numpy()
    own = q[np.arange(len(nodes)), tokens].double().numpy()
    right = (total < np.inf) & (least >= 0) & (own > 0)
    return np.divide(own, total, out=np.ones(len(own)), where=right), ~right
