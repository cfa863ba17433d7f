"""A server's drafter, and drafts that edge clients offer: one tree of both.

The nodes of an offer are kept by place: the position, and the hash of the prefix there. So drafts
that continue earlier drafts join them, drafts for a text that did not come are never found, and one
that arrives late is used as far as its path agrees with what was committed meanwhile. A hash that
fits by chance makes a wrong draft, which costs time and nothing else.

Requests without offers are drafted for as if this drafter was not there.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft, DraftBatch
from foresay.drafter import Drafter, Offer, SeededParams, Source, as_states
from foresay.drafters.merge.merged import Union, own_verdicts
from foresay.edge.prefix import hash_after, hashes_along
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["MAX_OFFERED", "OfferedDrafter", "OfferedState", "Offers"]

MAX_OFFERED = 1024
"""Nodes that are kept for one request; more are ignored."""
_PRIOR = (1.0, 2.0)  # accepted and tried nodes before anything is known
_MEMORY = 64.0  # nodes
_PASSED = frozenset(
    (
        *("fit", "add_to_group", "new_version", "drop_group", "drop_tenant"),
        *("bytes_used", "bytes_of", "tokens_held"),
        *("price", "weighed_seconds", "wants_now", "shown"),
    )
)
"""Methods of the other drafter that know no state."""


class Offers:
    """The offered nodes of one request, and how often they were right."""

    __slots__ = ("_accepted", "_alone", "_hash", "_places", "_position", "_size", "_tried")

    def __init__(self, text: IntsLike) -> None:
        self._position, self._hash = len(text), hash_after(text)
        self._places: dict[tuple[int, int], list[int]] = {}  # tokens by place
        self._alone: dict[tuple[int, int], set[int]] = {}  # nodes that only the edge proposed
        self._size = 0
        self._accepted, self._tried = _PRIOR

    @property
    def here(self) -> bool:
        """Whether a node continues the text."""
        return (self._position, self._hash) in self._places

    def add(self, offer: Offer) -> int:
        """Keep the nodes that can still become true. Returns how many are new."""
        draft, before = offer.draft, self._size
        hashes, depths = hashes_along(draft, offer.prefix), _depths(draft)
        for token, parent, depth in zip(
            draft.tokens.tolist(), draft.parents.tolist(), depths, strict=True
        ):
            place = offer.base + depth - 1, offer.prefix if parent < 0 else hashes[parent]
            behind = place[0] < self._position
            if behind or (place[0] == self._position and place[1] != self._hash):
                continue
            tokens = self._places.get(place, [])
            if token not in tokens and self._size < MAX_OFFERED:
                self._places[place] = [*tokens, token]
                self._size += 1
        return self._size - before

    def advance(self, tokens: Int32s) -> None:
        """The text grew; what it passed is forgotten."""
        for token in tokens.tolist():
            here = self._position, self._hash
            offered = self._places.pop(here, [])
            self._size -= len(offered)
            for one in self._alone.get(here, ()):
                keep = 1 - 1 / _MEMORY
                self._accepted = self._accepted * keep + (one == token)
                self._tried = self._tried * keep + 1
            self._position, self._hash = _after(self._position, self._hash, token)
        self._alone = {}
        here = self._position, self._hash
        for place in list(self._places):
            if place[0] < here[0] or (place[0] == here[0] and place != here):
                self._forget(place)

    def _forget(self, place: tuple[int, int]) -> None:
        """Drop the nodes at a place that did not come, and all that continue them: they would
        take the room of later drafts."""
        gone = [place]
        while gone:
            at = gone.pop()
            tokens = self._places.pop(at, [])
            self._size -= len(tokens)
            gone += [_after(*at, token) for token in tokens]

    def tree(self, most: int) -> list[tuple[int, int, tuple[int, int]]]:
        """Token, parent and place of the nodes that continue the text, level by level, at most so
        many."""
        found: list[tuple[int, int, tuple[int, int]]] = []
        level = [(-1, (self._position, self._hash))]
        while level and len(found) < most:
            below = []
            for parent, place in level:
                for token in self._places.get(place, ())[: most - len(found)]:
                    found.append((token, parent, place))
                    below.append((len(found) - 1, _after(*place, token)))
            level = below
        return found

    def note_alone(self, nodes: Iterable[tuple[int, tuple[int, int]]]) -> None:
        """Tokens and places of the nodes of the last tree that nobody else proposed: how often
        such are right is learned."""
        self._alone = {}
        for token, place in nodes:
            self._alone.setdefault(place, set()).add(token)

    @property
    def chance(self) -> float:
        """Of such a node to be right, given its parent."""
        return self._accepted / self._tried


class OfferedState:
    """One request: the state of the server's drafter, and its offers, if there were any."""

    __slots__ = ("finished", "last", "offers", "own", "owner")

    def __init__(self, owner: object, own: Any) -> None:
        self.owner = owner
        self.own = own
        self.offers: Offers | None = None
        self.last: Union | None = None  # of the last proposal, where it has offered nodes
        self.finished = False


class OfferedDrafter:
    """The server's drafter, with drafts from outside in the same tree.

    own  None: only offers are drafted

    Offered nodes come first; those of the server's drafter fill what is left of the budget.
    """

    def __init__(self, own: Drafter[Any] | None) -> None:
        self._own = own
        self.wants = Wants() if own is None else own.wants
        self._adopts = hasattr(own, "adopt")

    def __getattr__(self, name: str) -> Any:
        if name in _PASSED and self._own is not None:
            return getattr(self._own, name)
        raise AttributeError(f"{type(self).__name__} has no {name}")

    def begin(
        self,
        prompt: Int32s,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> OfferedState:
        """Start a request. Raises: as the server's drafter."""
        own = None
        if self._own is not None:
            own = self._own.begin(prompt, group=group, tenant=tenant, sampling=sampling)
        return OfferedState(self, own)

    def offer(self, state: OfferedState, text: IntsLike, offer: Offer, /) -> int:
        """Keep a draft for this text, or for a later one. Returns how many nodes are new.

        Raises: StateError, InputError.
        """
        as_states([state], OfferedState, self)
        if state.offers is None:
            state.offers = Offers(as_tokens(text, "text"))
        return state.offers.add(offer)

    def offered(self, state: OfferedState, /) -> bool:
        """Whether an offered node continues the text. Raises: StateError."""
        as_states([state], OfferedState, self)
        return state.offers is not None and state.offers.here

    def propose(self, states: Sequence[OfferedState], budgets: Sequence[int], /) -> Sequence[Draft]:
        """The offered nodes that continue each text, and those of the server's drafter.

        Raises: as the server's drafter; StateError.
        """
        states = as_states(states, OfferedState, self)
        given: Sequence[Draft] = [Draft.empty()] * len(states)
        if self._own is not None:
            given = self._own.propose([state.own for state in states], list(budgets))
        for state in states:
            state.last = None
        having = [
            at
            for at, state in enumerate(states)
            if budgets[at] and state.offers is not None and state.offers.here
        ]
        if not having:
            return given
        drafts = list(given)
        for at in having:
            offers = states[at].offers
            assert offers is not None
            drafts[at], states[at].last = _united(offers, drafts[at], budgets[at])
        drafts = [_scored(draft) for draft in drafts]
        if self._adopts and self._own is not None:
            own: Any = self._own
            own.adopt([state.own for state in states], DraftBatch.of(_chosen(drafts)))
        return drafts

    def observe(self, states: Sequence[OfferedState], verdicts: Sequence[Verdict], /) -> None:
        """Let the offers and the server's drafter learn what was committed.

        Raises: as the server's drafter; StateError.
        """
        states = as_states(states, OfferedState, self)
        batch = VerdictBatch.of(verdicts)
        for state, verdict in zip(states, batch, strict=True):
            if state.offers is not None:
                state.offers.advance(verdict.tokens)
        if self._own is None:
            return
        if any(state.last is not None for state in states) and not self._adopts:
            unions = [state.last or _whole(batch, at) for at, state in enumerate(states)]
            batch = own_verdicts(batch, unions, 0, self.wants, adopting=False)
        for state in states:
            state.last = None
        self._own.observe([state.own for state in states], batch)

    def finish(self, state: OfferedState, /) -> None:
        """End a request. Raises: StateError; as the server's drafter."""
        as_states([state], OfferedState, self)
        state.finished, state.offers = True, None
        if self._own is not None:
            self._own.finish(state.own)

    @property
    def sources(self) -> Callable[[OfferedState], list[tuple[Source, ...]]]:
        """`Source.EDGE` for an offered node, and what the server's drafter says of its own.

        Raises: AttributeError if that drafter does not say; the call: StateError.
        """
        say = getattr(self._own, "sources", None)
        if say is None and self._own is not None:
            raise AttributeError("the drafter has no sources()")

        def sources(state: OfferedState, /) -> list[tuple[Source, ...]]:
            as_states([state], OfferedState, self)
            said = [] if say is None else list(say(state.own))
            if state.last is None:
                return said
            offered, found = state.last.notes[0][0], [(Source.EDGE,)] * state.last.size
            every: list[tuple[Source, ...]] = list(found)
            # A drafter that adopts is asked of all nodes: it knows no other draft any more.
            homes = range(len(said)) if self._adopts else state.last.homes[0].tolist()
            for node, its in zip(homes, said, strict=False):
                if node >= offered:
                    every[node] = its
                elif node >= 0 and not self._adopts:
                    every[node] = (*its, Source.EDGE)
            return every

        return sources

    @property
    def lend(self) -> Callable[[Any, Sequence[OfferedState], Sequence[Any]], None]:
        """Lend to the server's drafter. Raises: AttributeError if it does not borrow."""
        borrow = getattr(self._own, "lend", None)
        if borrow is None:
            raise AttributeError("the drafter has no lend()")
        return lambda target, states, kvs: borrow(target, [state.own for state in states], kvs)


def _after(position: int, crc: int, token: int) -> tuple[int, int]:
    """The place after one more token."""
    return position + 1, zlib.crc32(token.to_bytes(4, "little"), crc)


def _united(offers: Offers, own: Draft, most: int) -> tuple[Draft, Union]:
    """Both in one tree: first the offered nodes, then what the other draft has beside them.

    Who has a node gives its chance, given its parent: the server's drafter where it has it too,
    since it weighs each; else what such nodes of this client were worth so far.
    """
    offered = offers.tree(most)
    tokens = [token for token, _, _ in offered]
    parents = [parent for _, parent, _ in offered]
    siblings = Counter(parents)
    known = {(parent, token): at for at, (token, parent, _) in enumerate(offered)}
    count, homes = len(offered), list[int]()
    given: dict[int, float] = {}  # chances by the server's drafter
    scored = _scored(own).scores
    scores = [] if scored is None else scored.tolist()
    rows = zip(own.tokens.tolist(), own.parents.tolist(), scores, strict=True)
    for token, parent, score in rows:
        above = -1 if parent < 0 else homes[parent]
        home = -1 if parent >= 0 and above < 0 else known.get((above, token), -2)
        if home == -2 and len(tokens) < most:
            home = known[(above, token)] = len(tokens)
            tokens.append(token)
            parents.append(above)
        if home >= 0:
            whole = 1.0 if parent < 0 else scores[parent]
            given[home] = min(score / whole, 1.0) if whole > 0 else 0.0
        homes.append(max(home, -1))
    offers.note_alone((offered[at][0], offered[at][2]) for at in range(count) if at not in given)
    found: list[float] = []
    for at, parent in enumerate(parents):
        chance = given.get(at, offers.chance / siblings[parent] if at < count else 0.0)
        found.append(chance if parent < 0 else chance * found[parent])
    draft = Draft(
        np.array(tokens, np.int32), np.array(parents, np.int32), np.array(found, np.float32)
    )
    assert draft.scores is not None
    return draft, Union(draft.scores, [np.array(homes, np.int32)], [(count, 0, 0)], True)


def _whole(batch: VerdictBatch, at: int) -> Union:
    """The union of a proposal that is the server's own: every node where it was."""
    size = 0
    if batch.topk_offsets is not None:
        size = int(batch.topk_offsets[at + 1] - batch.topk_offsets[at]) - 1
    elif batch.path_offsets[at + 1] > batch.path_offsets[at]:
        size = int(batch.path[batch.path_offsets[at + 1] - 1]) + 1
    same = np.arange(size, dtype=np.int32)
    return Union(np.zeros(size, np.float32), [same], [], True)


def _chosen(drafts: Sequence[Draft]) -> list[Draft]:
    return [Draft._trusted(draft.tokens, draft.parents, draft.scores) for draft in drafts]


def _scored(draft: Draft) -> Draft:
    """With scores: in one batch all drafts have some, or none."""
    if draft.scores is not None or not len(draft):
        return draft
    scores = np.array([0.5**depth for depth in _depths(draft)], np.float32)
    return Draft._trusted(draft.tokens, draft.parents, scores, draft.probs)


def _depths(draft: Draft) -> list[int]:
    found: list[int] = []
    for parent in draft.parents.tolist():
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
