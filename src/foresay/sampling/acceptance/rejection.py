"""Rule rejection over a packed batch.

On the CPU in rounds: each decides one drafted token of every request, against what is left of the
target's probs in the row where the walk is. So a batch takes as many rounds as its longest walk has
attempts, and only rows that a walk reaches are ever turned into probs; the core holds them.
Elsewhere all rows are computed without a wait (`tries`), and the walks are found from the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foresay import _core
from foresay.arrays import Floats, sizes_of
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError
from foresay.sampling.acceptance import planned as planning
from foresay.sampling.acceptance import processors
from foresay.sampling.acceptance.inputs import (
    best_for,
    checked,
    known_kernel,
    refused,
    threads_of,
)
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.acceptance.tries import Tries, tries
from foresay.sampling.acceptance.verdicts import Verified, cut, failures_of, verdicts, without
from foresay.sampling.noise import Doubles, Stream, uniform
from foresay.sampling.processors import RowStatus
from foresay.sampling.verification import VerificationBatch, VerificationInput
from foresay.verdict import VerdictBatch

__all__ = ["rejection"]

Kernel = Literal["core", "triton", "torch"]


def rejection(
    drafts: Sequence[Draft],
    logits: Tensor,
    inputs: Sequence[VerificationInput],
    *,
    kernel: Kernel | None = None,
    threads: int = 0,
) -> Verified:
    """Accepts each drafted token with chance min(1, p / q), and adds one from what is left of p.

    logits   [N + B, V], on any device: for each request its rows, after its text and each node
    kernel   what computes: by default the best there is for the logits' device
    threads  of the core; 0: as many as torch uses

    The drafts' probs say what each token was sampled from, given its earlier siblings; without them
    the tokens were chosen. Exact in law; the text depends on the draft.

    Raises: InputError for arguments that do not fit each other; invalid logits or probs are
    the request's own failure.
    """
    drafts, logits, inputs = checked(drafts, logits, inputs)
    rows = Rows.of(drafts)
    refusals = refused(drafts, inputs, logits.shape[1])
    if refusals:
        rule = partial(rejection, kernel=kernel, threads=threads)
        return without(refusals, rule, drafts, logits, inputs)
    kernel = known_kernel(kernel or best_for(logits), logits, ("core", "triton", "torch"))
    if kernel != "core":
        return _on_the_device(drafts, rows, logits, inputs, kernel)
    return _in_the_core(drafts, rows, logits, inputs, threads_of(threads))


def _on_the_device(
    drafts: DraftBatch,
    rows: Rows,
    logits: Tensor,
    inputs: VerificationBatch,
    kernel: planning.Kernel,
) -> Verified:
    """All rows where their logits are, then the walks: from row to row below it, by the first of
    its nodes that is accepted.

    The core walks along codes, as for rule match. Nodes with equal tokens are different ones here,
    so their numbers stand in for tokens, and the target's own tokens come behind them.
    """
    nodes = len(drafts.tokens)
    owners, stops = _by_number(rows, inputs, nodes)  # before there is anything to wait for
    numbers, room = np.arange(nodes, dtype=np.int32), inputs.room
    found = tries(logits, rows, inputs, drafts.probs, kernel)
    below = np.flatnonzero(found.accepted | found.wrong)[::-1]
    codes = np.where(found.status == RowStatus.GOOD, nodes + found.tokens, -1 - found.status)
    below = below[found.status[rows.parent[below]] == RowStatus.GOOD]
    codes[rows.parent[below]] = rows.node[below]  # of several writes the last one stays
    tokens, offsets, path, path_offsets, places, status = _core.follow(
        codes,
        offsets=drafts.offsets,
        tokens=numbers,
        parents=drafts.parents,
        room=room,
        stop_owners=owners,
        stops=stops,
    )
    failures = failures_of(status, inputs) if status.any() else {}
    drafted = tokens < nodes
    if nodes:
        own = drafts.tokens[np.where(drafted, tokens, 0)]
        tokens = np.where(drafted, own, tokens - np.int32(nodes)).astype(np.int32)
    verified = Verified(
        VerdictBatch._trusted(tokens, offsets, path, path_offsets), failures, places
    )
    return _without_wrong(verified, found, rows, codes) if found.wrong.any() else verified


def _by_number(rows: Rows, inputs: VerificationBatch, nodes: int) -> tuple[Longs, Longs]:
    """The tokens that end an answer: the numbers of nodes that hold them, and the tokens behind all
    nodes; with the requests they belong to, which rise."""
    owners, stops = inputs.stops
    if not len(stops):
        return owners, stops
    held = (rows.token == stops[:, None]) & (rows.request == owners[:, None]) & (rows.node >= 0)
    which, row = np.nonzero(held)
    every = np.concatenate([owners, owners[which]])
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate([stops + nodes, rows.node[row]])[order]


def _without_wrong(verified: Verified, found: Tries, rows: Rows, codes: Longs) -> Verified:
    """The same, but requests whose walk comes to a node with invalid probs have failed."""
    row, failures = rows.starts[:-1].copy(), dict(verified.failures)
    row_of = np.append(np.flatnonzero(rows.node >= 0), -1)
    while len(walking := np.flatnonzero(row >= 0)):
        to = codes[row[walking]]
        goes_on = (to >= 0) & (to < len(row_of) - 1)
        below = np.where(goes_on, row_of[np.where(goes_on, to, -1)], -1)
        for i in walking[(below >= 0) & found.wrong[below]].tolist():
            failures[i] = InputError(_INVALID)
        row[walking] = np.where(found.wrong[below], -1, below)
    sizes = sizes_of(verified.verdicts.offsets).astype(np.int64)
    sizes[list(failures)] = 0
    kept = cut(verified, sizes)
    return Verified(kept.verdicts, dict(sorted(failures.items())), kept.rows)


def _in_the_core(
    drafts: DraftBatch, rows: Rows, logits: Tensor, inputs: VerificationBatch, threads: int
) -> Verified:
    """In rounds, only in rows that a walk reaches."""
    row = rows.starts[:-1].copy()  # where each request's walk is
    candidate = rows.first_child[row]  # the row that it tries next
    attempt = np.zeros(len(inputs), np.int64)
    own = np.zeros(len(inputs), np.int64)
    left = _Residual(logits.contiguous(), rows, inputs, threads)
    status = left.enter(np.arange(len(inputs)), row)
    failures = failures_of(status, inputs)
    candidate[list(failures)] = -1
    probs = None if drafts.probs is None else np.ascontiguousarray(drafts.probs)

    while len(trying := np.flatnonzero(candidate >= 0)):
        node, token = rows.node[candidate[trying]], rows.token[candidate[trying]]
        chance, wrong = left.share(trying, token), np.zeros(len(trying), bool)
        if probs is not None:
            q, sums, wrong = _chances(probs, node, token, threads)
            chance = chance / q
        positions = inputs.positions[trying] + rows.depth[row[trying]]
        coins = uniform(inputs.seeds[trying], positions, attempt[trying], Stream.ACCEPT)
        accepted, rejected = (coins < chance) & ~wrong, (coins >= chance) & ~wrong
        for i in trying[wrong]:
            failures[int(i)] = InputError(_INVALID)
        candidate[trying[wrong]] = -1

        lost = trying[rejected]
        if probs is None:
            left.drop(lost, token[rejected])
        else:
            left.subtract(lost, probs, node[rejected], sums[rejected])
        candidate[lost], attempt[lost] = rows.next_sibling[candidate[lost]], attempt[lost] + 1

        won = trying[accepted]
        row[won], attempt[won] = candidate[won], 0
        bad = left.enter(won, row[won]) != RowStatus.GOOD
        candidate[won] = np.where(bad, -1, rows.first_child[row[won]])
        own[won[bad]] = -1

    positions = inputs.positions + rows.depth[row]
    coins = uniform(inputs.seeds, positions, np.zeros_like(positions), Stream.RESIDUAL)
    return verdicts(rows, inputs, row, np.where(own < 0, -1, left.draw(coins)), failures)


_INVALID = (
    "a drafted token has invalid probs; expected none below 0, a finite sum, and its own above 0"
)


class _Residual:
    """What is left of the target's probs in the row where each request's walk is: float64 [B, V],
    rows that need not sum to 1, and their totals. All methods but `share` and `draw` mutate.
    """

    def __init__(self, logits: Tensor, rows: Rows, inputs: VerificationBatch, threads: int) -> None:
        self.logits, self.rows, self.inputs, self.threads = logits, rows, inputs, threads
        # numpy asks for large pages, torch does not: many times fewer page faults.
        self.residual = np.empty((len(inputs), logits.shape[1]))
        self.totals = np.ones(len(inputs))

    def enter(self, walks: Longs, which: Longs) -> NDArray[np.uint8]:
        """The whole probs of these rows for these walks; invalid rows get arbitrary ones.

        Returns what became of the rows.
        """
        if not len(walks):
            return np.empty(0, np.uint8)
        given = processors.scores(self.logits, self.rows, self.inputs, which, gather=False)
        self.totals[walks], status = _core.unnormalised_softmax(
            given.values.float().numpy(),
            rows=np.arange(len(which)) if given.places is None else given.places,
            temperatures=given.temperatures.numpy(),
            residual=self.residual,
            walks=walks,
            threads=self.threads,
        )
        return status

    def share(self, walks: Longs, tokens: Longs) -> Doubles:
        """The chance of a token of each walk."""
        found: Doubles = self.residual[walks, tokens] / self.totals[walks]
        return found

    def drop(self, walks: Longs, tokens: Longs) -> None:
        """The residual after rejected tokens that were chosen. Where rounding would leave nothing,
        all stays."""
        totals = self.totals[walks] - self.residual[walks, tokens]
        some = totals > 0
        self.residual[walks[some], tokens[some]] = 0
        self.totals[walks[some]] = totals[some]

    def subtract(self, walks: Longs, probs: Floats, nodes: Longs, sums: Doubles) -> None:
        """The same after tokens that were sampled from these nodes' rows of `probs`, which have
        these sums."""
        self.totals[walks] = _core.subtract(
            self.residual,
            walks=walks,
            totals=self.totals[walks],
            probs=probs,
            rows=nodes,
            sums=sums,
            threads=self.threads,
        )

    def draw(self, coins: Doubles) -> Longs:
        """A token of each walk."""
        return _core.draw(self.residual, coins, threads=self.threads)


def _chances(
    probs: Floats, nodes: Longs, tokens: Longs, threads: int
) -> tuple[Doubles, Doubles, NDArray[np.bool_]]:
    """The chance of each node's token under the node's probs; their sum; and which nodes have
    invalid ones."""
    sums, least = _core.sums(probs, rows=nodes, threads=threads)
    own = probs[nodes, tokens].astype(np.float64)
    right = (sums < np.inf) & (least >= 0) & (own > 0)
    return np.divide(own, sums, out=np.ones(len(own)), where=right), sums, ~right
