"""One request of a merge: the union of its members' drafts, and the verdict as each knows it.

A node of the union is one root path, whoever drafted it. A member's own draft holds whole root
paths, so what it has of the accepted path is the beginning of that path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from foresay import _core
from foresay.arrays import Floats, Int32s, offsets_of
from foresay.drafter import SeededParams, Source, known_noise
from foresay.errors import InputError, StateError
from foresay.verdict import TopK, VerdictBatch, Wants

__all__ = [
    "MergeState",
    "Own",
    "Proposer",
    "Union",
    "all_wants",
    "check_fits",
    "learn",
    "own_verdicts",
    "same_text",
]

_NOWHERE: Int32s = np.empty(0, np.int32)


class Proposer(NamedTuple):
    """Who proposed a node of a merged draft.

    drafter  its place in `MergeDrafter.drafters`
    q        float32[vocabulary]: the distribution that it sampled the node's token from; None if it
             chose the token
    """

    drafter: int
    q: Floats | None


class Own(NamedTuple):
    """What one member proposed for a request.

    home   int32[n]: the union's node for each of its own, -1 if that was cut
    group  of the request and
    level  of nodes that it was asked for: see `budget.draft_length`; -1 if it was not weighed
    probs  what its own nodes were sampled from, if they were
    """

    home: Int32s
    group: int = 0
    level: int = -1
    probs: Floats | None = None


class Union(NamedTuple):
    """One merged draft.

    scores   float32[n], by node
    members  what each member that was asked proposed, by its place, in the order of asking
    united   whether the core united several drafts, and learns from the verdict; else it is the
             draft of the only member that has one
    """

    scores: Floats
    members: dict[int, Own]
    united: bool

    def home(self, k: int) -> Int32s:
        """Where the nodes of member k are."""
        own = self.members.get(k)
        return _NOWHERE if own is None else own.home

    def is_of(self, k: int) -> bool:
        """Whether this is the draft of member k as it is."""
        return not self.united and len(self.home(k)) == len(self.scores)

    def provenance(self) -> list[tuple[Proposer, ...]]:
        """Of each node, who proposed it, and from which distribution it was sampled."""
        found: list[list[Proposer]] = [[] for _ in self.scores]
        for k, own in sorted(self.members.items()):
            for at, node in enumerate(own.home.tolist()):
                if node >= 0:
                    q = None if own.probs is None else own.probs[at]
                    found[node].append(Proposer(k, q))
        return [tuple(each) for each in found]

    def sources(self, k_sources: dict[int, Sequence[tuple[Source, ...]]]) -> list[Any]:
        """The sources of each node, by what each member says of its own nodes."""
        found: list[set[Source]] = [set() for _ in self.scores]
        for k, own in self.members.items():
            for node, sources in zip(own.home.tolist(), k_sources[k], strict=True):
                if node >= 0:
                    found[node].update(sources)
        return [tuple(source for source in Source if source in node) for node in found]

    def gains(
        self, path: Int32s, least: float, *, alone: int | None = None
    ) -> list[tuple[int, list[int], list[int]]]:
        """For each member: itself, and the places in its own draft of nodes that nobody who was
        asked before has: those on the path, and those with a score of `least` or more.

        alone  of this member only, beside all others
        """
        found, had = [], np.zeros(len(self.scores), bool)
        order = [*self.members]
        if alone is not None:
            order = [*(k for k in order if k != alone), alone]
        for k in order:
            home = self.members[k].home
            places = np.flatnonzero(home >= 0)
            nodes = home[places]
            if alone in (None, k):
                new = ~had[nodes]
                right = places[new & np.isin(nodes, path)].tolist()
                found.append((k, right, places[new & (self.scores[nodes] >= least)].tolist()))
            had[nodes] = True
        return found


class MergeState:
    """One request: the state of each drafter, and the last proposal.

    Mutates: only its drafter writes to it. Valid until: `finish`.
    """

    __slots__ = (
        *("finished", "last", "length", "memory", "missed"),
        *("owner", "read", "seed", "states", "temperature"),
    )

    def __init__(
        self,
        owner: object,
        states: list[Any],
        length: int,
        sampling: SeededParams | None,
        memory: _core.MergeMemory,
    ) -> None:
        self.owner = owner
        self.states = states
        self.length = length  # tokens of the text
        self.read = [0] * len(states)  # of them, those that each drafter had when it was asked
        self.missed: list[list[Int32s]] = [[] for _ in states]  # tokens that it was not told of yet
        self.seed, self.temperature = known_noise(sampling)
        self.memory = memory  # of the last union, with what its tenant's requests taught
        self.last: Union | None = None
        self.finished = False


def check_fits(batch: VerdictBatch, unions: Sequence[Union | None]) -> None:
    """Refuse verdicts whose path or top-k is of another proposal.

    Raises: InputError.
    """
    bounds = batch.path_offsets.tolist()
    rows = None if batch.topk_offsets is None else batch.topk_offsets.tolist()
    for at, union in enumerate(unions):
        size = 0 if union is None else len(union.scores)
        if bounds[at] < bounds[at + 1]:
            last = int(batch.path[bounds[at + 1] - 1])
            if last >= size:
                raise InputError(
                    f"the path of verdict {at} holds node {last}; "
                    f"the last proposal has {size} nodes"
                )
        if rows is not None and rows[at + 1] - rows[at] != size + 1:
            raise InputError(
                f"the topk of verdict {at} has {rows[at + 1] - rows[at]} rows; "
                f"the last proposal has {size} nodes and needs {size + 1}"
            )


def own_verdicts(
    batch: VerdictBatch, unions: Sequence[Union | None], k: int, wants: Wants, *, adopting: bool
) -> VerdictBatch:
    """The verdicts for member k: in its own nodes, or for one that adopted the merged drafts in
    those; with what it wants. A copy: what a drafter does with it concerns no other.
    """
    path, path_offsets = batch.path, batch.path_offsets
    topk, topk_offsets = batch.topk if wants.topk else None, batch.topk_offsets
    homes = [_NOWHERE if union is None else union.home(k) for union in unions]
    if not adopting and len(path):
        path, path_offsets = _own_paths(batch, homes)
    if not adopting and topk is not None and topk_offsets is not None:
        topk, topk_offsets = _own_topk(topk, topk_offsets, homes)
    return VerdictBatch._trusted(
        batch.tokens,
        batch.offsets,
        path,
        path_offsets,
        None if topk is None else topk.first(wants.topk),
        None if topk is None else topk_offsets,
        batch.hidden if wants.hidden else None,
    ).copy()


def _own_paths(batch: VerdictBatch, homes: Sequence[Int32s]) -> tuple[Int32s, Int32s]:
    """The paths in a member's own nodes, packed."""
    paths: list[list[int]] = []
    nodes, bounds = batch.path.tolist(), batch.path_offsets.tolist()
    for at, home in enumerate(homes):
        own = {node: place for place, node in enumerate(home.tolist())}
        paths.append([own[node] for node in nodes[bounds[at] : bounds[at + 1]] if node in own])
    return np.array([node for path in paths for node in path], np.int32), offsets_of(
        [len(path) for path in paths]
    )


def _own_topk(topk: TopK, bounds: Int32s, homes: Sequence[Int32s]) -> tuple[TopK, Int32s]:
    """The top-k after the text and after each of a member's own nodes; none after those that were
    cut."""
    rows = [
        np.append(first, np.where(home < 0, -1, home + first + 1))
        for first, home in zip(bounds.tolist(), homes, strict=False)
    ]
    return topk.take(np.concatenate(rows)), offsets_of([len(own) for own in rows])


def learn(merge: _core.TreeMerge, states: Sequence[MergeState], batch: VerdictBatch) -> None:
    """Learn how right the chances of unions were."""
    united = [state.last is not None and state.last.united for state in states]
    if all(united):
        merge.learn([state.memory for state in states], batch.tokens, batch.offsets)
        return
    for state, own, verdict in zip(states, united, batch, strict=True) if any(united) else ():
        if own:
            ends = np.array([0, len(verdict.tokens)], np.int32)
            merge.learn([state.memory], verdict.tokens, ends)


def same_text(texts: Sequence[Int32s], drafters: int) -> Int32s:
    """The text of a request, as those of its `drafters` hold it that keep it.

    Raises: StateError if these differ, InputError if there is none.
    """
    if not texts:
        raise InputError(f"none of the {drafters} drafters has text(); expected one")
    if not all(np.array_equal(texts[0], text) for text in texts):
        sizes = ", ".join(str(len(text)) for text in texts)
        raise StateError(
            f"the drafters' texts differ, with {sizes} tokens, because one refused a commit "
            "that others had observed; finish this request"
        )
    return texts[0]


def all_wants(wants: Sequence[Wants]) -> Wants:
    """What all of them want.

    Raises: InputError if they want hidden states of different layers.
    """
    layers = {each.hidden_layers for each in wants if each.hidden}
    if len(layers) > 1:
        raise InputError(
            f"the drafters want hidden states of different layers: {sorted(layers)}; expected "
            "the same for all, () being the last"
        )
    return Wants(
        topk=max((each.topk for each in wants), default=0),
        hidden=bool(layers),
        hidden_layers=next(iter(layers), ()),
    )
