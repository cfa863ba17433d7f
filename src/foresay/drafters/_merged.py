"""A merged draft and its verdict, as each of the drafters knows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foresay.arrays import Floats, Int32s
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["Union", "check_fit", "chosen", "own_verdicts"]


class Union:
    """The size of one merged proposal and, per drafter, where its own nodes went."""

    __slots__ = ("homes", "notes", "scores", "size")

    def __init__(
        self, scores: Floats, homes: list[Int32s], notes: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        self.size = len(scores)
        self.scores = scores
        self.homes = homes  # per drafter: merged index of each of its own nodes, -1 if cut
        self.notes = notes  # who was asked, see `Members.notes`


def chosen(drafts: Sequence[Draft]) -> DraftBatch:
    """Packed, without the probs that tokens were sampled from."""
    if isinstance(drafts, DraftBatch):
        return drafts
    return DraftBatch.of([Draft._trusted(d.tokens, d.parents, d.scores) for d in drafts])


def check_fit(at: int, verdict: Verdict, size: int) -> None:
    if len(verdict.path) and int(verdict.path[-1]) >= size:
        raise InputError(
            f"the path of verdict {at} holds node {verdict.path[-1]}; "
            f"the last proposal has {size} nodes"
        )
    if verdict.topk is not None and len(verdict.topk) != size + 1:
        raise InputError(
            f"the topk of verdict {at} has {len(verdict.topk)} rows; "
            f"the last proposal has {size} nodes and needs {size + 1}"
        )


def own_verdicts(
    batch: VerdictBatch, unions: Sequence[Union | None], k: int, wants: Wants, *, adopting: bool
) -> VerdictBatch:
    """The verdicts for drafter k: in its own nodes, or for one that adopted the merged drafts in
    those; with what it wants.
    """
    if adopting:
        return VerdictBatch.of([_wanted(verdict, wants) for verdict in batch])
    silent = not any(union is not None and len(union.homes[k]) for union in unions)
    if not wants.topk and (silent or not len(batch.path)):  # no path is its own: often so
        none = np.empty(0, np.int32)
        hidden = batch.hidden if wants.hidden else None
        bounds = np.zeros(len(batch) + 1, np.int32)
        return VerdictBatch._trusted(batch.tokens, batch.offsets, none, bounds, hidden=hidden)
    return VerdictBatch.of(
        [_own_verdict(v, union, k, wants) for v, union in zip(batch, unions, strict=True)]
    )


def _wanted(verdict: Verdict, wants: Wants) -> Verdict:
    """`verdict` with no more than a drafter wants."""
    topk = verdict.topk.first(wants.topk) if wants.topk and verdict.topk is not None else None
    hidden = verdict.hidden if wants.hidden else None
    return Verdict._trusted(verdict.path, verdict.tokens, topk, hidden)


def _own_verdict(verdict: Verdict, union: Union | None, k: int, wants: Wants) -> Verdict:
    """`verdict` for drafter k: in its own nodes, and with what it wants."""
    home = np.empty(0, np.int32) if union is None else union.homes[k]
    # Both run from root to leaf, and a drafter's tree holds whole root paths: what it did not
    # propose is always the end of the path.
    at = {node: i for i, node in enumerate(home.tolist()) if node >= 0}
    path = [at[node] for node in verdict.path.tolist() if node in at]
    topk, hidden = None, verdict.hidden if wants.hidden else None
    if wants.topk and verdict.topk is not None:
        rows = np.append(0, np.where(home < 0, -1, home + 1))
        topk = verdict.topk.take(rows).first(wants.topk)
    return Verdict._trusted(np.array(path, np.int32), verdict.tokens, topk, hidden)
