"""One request of a merge: its merged draft and verdict, as each of the drafters knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import Floats, Int32s, offsets_of
from foresay.draft import Draft, DraftBatch
from foresay.drafter import MAX_BUDGET, Drafter, SeededParams, Source, known_noise
from foresay.errors import InputError, StateError
from foresay.verdict import TopK, Verdict, VerdictBatch, Wants

__all__ = [
    "Laws",
    "MergeState",
    "Proposer",
    "Tree",
    "Union",
    "all_wants",
    "catch_up",
    "check_fits",
    "chosen",
    "laws_of",
    "learn",
    "note_missed",
    "note_unions",
    "own_verdicts",
    "same_text",
]


class Tree(NamedTuple):
    """The tree of all drafters' drafts, and for each drafter where its nodes went.

    united  whether several were united; else it is the draft of the only one that has some
    """

    drafts: DraftBatch
    homes: list[Int32s]
    united: bool


class Proposer(NamedTuple):
    """Who proposed a node of a merged draft.

    drafter  its place in `MergeDrafter.drafters`
    q        float32[vocabulary]: the distribution that it sampled the node's token from; None if it
             chose the token
    """

    drafter: int
    q: Floats | None


Laws: TypeAlias = Sequence["Floats | None"]
"""For each draft of a drafter the distributions that its tokens were sampled from, if they were."""


class Union:
    """The size of one merged proposal and, per drafter, where its own nodes went."""

    __slots__ = ("homes", "laws", "notes", "scores", "size", "united")

    def __init__(
        self,
        scores: Floats,
        homes: list[Int32s],
        notes: Sequence[tuple[int, int, int]],
        united: bool,
    ) -> None:
        self.size = len(scores)
        self.scores = scores
        self.homes = homes  # per drafter: merged index of each of its own nodes, -1 if cut
        self.notes = notes  # who was asked, see `Notes`
        self.united = united  # see `Tree`
        self.laws: dict[int, Floats] = {}  # by drafter: what its own nodes were sampled from

    @classmethod
    def of_one(cls, scores: Floats, k: int, drafters: int) -> Union:
        """The draft of drafter k as it is."""
        homes = [_NOWHERE] * drafters
        homes[k] = _COUNT[: len(scores)]
        return cls(scores, homes, [(k, 0, -1)], False)

    def proposers(self) -> list[tuple[int, ...]]:
        """The drafters of each node, rising."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for k, home in enumerate(self.homes):
            for node in sorted({node for node in home.tolist() if node >= 0}):
                found[node].append(k)
        return [tuple(places) for places in found]

    def provenance(self) -> list[tuple[Proposer, ...]]:
        """Of each node, who proposed it, and from which distribution it was sampled."""
        found: list[list[Proposer]] = [[] for _ in range(self.size)]
        for k, home in enumerate(self.homes):
            laws = self.laws.get(k)
            for own, node in enumerate(home.tolist()):
                if node >= 0:
                    found[node].append(Proposer(k, None if laws is None else laws[own]))
        return [tuple(each) for each in found]

    def sources(self, said: Sequence[Sequence[tuple[Source, ...]]]) -> list[tuple[Source, ...]]:
        """The sources of each node, by what each drafter said of its own nodes."""
        found: list[set[Source]] = [set() for _ in range(self.size)]
        for home, its in zip(self.homes, said, strict=True):
            for node, sources in zip(home.tolist(), its, strict=True):
                if node >= 0:
                    found[node].update(sources)
        return [tuple(source for source in Source if source in node) for node in found]


class MergeState:
    """One request: the state of each drafter, and the last proposal.

    Mutates: only its drafter writes to it. Valid until: `finish`.
    """

    __slots__ = (
        "finished",
        "last",
        "length",
        "memory",
        "missed",
        "owner",
        "read",
        "seed",
        "states",
        "temperature",
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


@lru_cache(maxsize=64)  # asked in every step, of the same few
def all_wants(wants: tuple[Wants, ...]) -> Wants:
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


def catch_up(drafter: Drafter[Any], k: int, states: Sequence[MergeState]) -> None:
    """Tell drafter k what was committed while it was not asked."""
    behind = [state for state in states if state.missed[k]]
    if behind:
        missed = [Verdict(_NOWHERE, np.concatenate(state.missed[k])) for state in behind]
        for state in behind:
            state.missed[k] = []
        drafter.observe([state.states[k] for state in behind], VerdictBatch.of(missed))


def note_unions(
    states: Sequence[MergeState],
    tree: Tree,
    batches: Sequence[DraftBatch],
    notes: Sequence[Sequence[tuple[int, int, int]]],
    laws: Mapping[int, Laws],
) -> None:
    """Let each state know its part of the tree, and whose drafts it was made from."""
    offsets, scores = tree.drafts.offsets, tree.drafts.scores
    assert scores is not None
    for at, state in enumerate(states):
        homes = [
            home[each.offsets[at] : each.offsets[at + 1]]
            for home, each in zip(tree.homes, batches, strict=True)
        ]
        own = scores[offsets[at] : offsets[at + 1]]
        state.last = Union(own, homes, notes[at], tree.united)
        for k, sampled in laws.items():
            if (law := sampled[at]) is not None:
                state.last.laws[k] = law


def note_missed(k: int, states: Sequence[MergeState], batch: VerdictBatch) -> None:
    """Drafter k is told later what was committed."""
    bounds = batch.offsets.tolist()
    for state, first, end in zip(states, bounds, bounds[1:], strict=False):
        state.missed[k].append(batch.tokens[first:end].copy())


def same_text(drafters: Sequence[Drafter[Any]], state: MergeState) -> Int32s:
    """Prompt and observed tokens, as the drafters with `text` hold them.

    Raises: StateError if these differ, InputError if no drafter has `text`.
    """
    readers = [getattr(drafter, "text", None) for drafter in drafters]
    texts: list[Int32s] = [
        read(inner) for read, inner in zip(readers, state.states, strict=True) if read
    ]
    if not texts:
        raise InputError(f"none of the {len(drafters)} drafters has text(); expected one")
    if not all(np.array_equal(texts[0], text) for text in texts):
        sizes = ", ".join(str(len(text)) for text in texts)
        raise StateError(
            f"the drafters' texts differ, with {sizes} tokens, because one refused a commit "
            "that others had observed; finish this request"
        )
    return texts[0]


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


def chosen(drafts: Sequence[Draft]) -> DraftBatch:
    """Packed, without the probs that tokens were sampled from. A copy: a drafter may write into its
    arrays again."""
    if isinstance(drafts, DraftBatch):
        return drafts.without_probs()
    packed = DraftBatch.of([Draft._trusted(d.tokens, d.parents, d.scores) for d in drafts])
    return packed.without_probs()


def laws_of(drafts: Sequence[Draft]) -> Laws | None:
    """What the tokens of each draft were sampled from; None if all were chosen."""
    if isinstance(drafts, DraftBatch) and drafts.probs is None:
        return None
    laws = [draft.probs for draft in drafts]
    return None if all(each is None for each in laws) else laws


def check_fits(batch: VerdictBatch, unions: Sequence[Union | None]) -> None:
    """Refuse verdicts whose path or top-k is of another proposal.

    Raises: InputError.
    """
    bounds = batch.path_offsets.tolist()
    rows = None if batch.topk_offsets is None else batch.topk_offsets.tolist()
    for at, union in enumerate(unions):
        size = 0 if union is None else union.size
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
    """The verdicts for drafter k: in its own nodes, or for one that adopted the merged drafts in
    those; with what it wants. A copy: what a drafter does with it concerns no other.
    """
    path, path_offsets, topk, topk_offsets = (
        batch.path,
        batch.path_offsets,
        batch.topk if wants.topk else None,
        batch.topk_offsets if wants.topk else None,
    )
    homes = [_NOWHERE if union is None else union.homes[k] for union in unions]
    if not adopting and len(path):
        path, path_offsets = _own_paths(batch, homes)
    if topk is not None and not adopting:
        topk, topk_offsets = _own_topk(batch, homes)
    return VerdictBatch._trusted(
        batch.tokens,
        batch.offsets,
        path,
        path_offsets,
        None if topk is None else topk.first(wants.topk),
        topk_offsets,
        batch.hidden if wants.hidden else None,
    ).copy()


def _own_paths(batch: VerdictBatch, homes: Sequence[Int32s]) -> tuple[Int32s, Int32s]:
    """The paths in a drafter's own nodes, packed. Both run from root to leaf, and a drafter's tree
    holds whole root paths: what it did not propose is always the end of the path."""
    found: list[int] = []
    sizes = []
    nodes, bounds = batch.path.tolist(), batch.path_offsets.tolist()
    for at, home in enumerate(homes):
        before = len(found)
        for node in nodes[bounds[at] : bounds[at + 1]] if len(home) else ():
            own = (home == node).nonzero()[0]
            if not len(own):
                break
            found.append(int(own[-1]))
        sizes.append(len(found) - before)
    return np.array(found, np.int32), offsets_of(sizes)


def _own_topk(batch: VerdictBatch, homes: Sequence[Int32s]) -> tuple[TopK, Int32s]:
    """The top-k after the text and after each of a drafter's own nodes; none after those that were
    cut."""
    assert batch.topk is not None and batch.topk_offsets is not None
    rows: list[NDArray[np.integer]] = []
    for first, home in zip(batch.topk_offsets.tolist(), homes, strict=False):
        rows += [np.array([first]), np.where(home < 0, -1, home + first + 1)]
    sizes = [len(home) + 1 for home in homes]
    return batch.topk.take(np.concatenate(rows)), offsets_of(sizes)


_NOWHERE: Int32s = np.empty(0, np.int32)
_COUNT: Int32s = np.arange(MAX_BUDGET, dtype=np.int32)
