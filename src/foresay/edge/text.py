"""The edge's view of one stream: its text, and the drafts that the cloud has not decided yet.

    prompt | committed … position | in flight … head

Only the cloud's commits add to the text. They are cumulative and may come twice: what is known is
compared, what is new is taken. Drafts in flight continue each other: each starts where the one
before it ends. A commit that leaves their path drops those behind it (roll-back).

After the cloud has lost the stream it is opened again, and `confirmed`, how far the cloud is now,
starts again behind the prompt. Until it has caught up, its commits repeat what is known.

No clock, no socket, no drafter: a pure function of what it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft
from foresay.drafter import Source, as_prompt
from foresay.edge.prefix import Prefix, hash_after
from foresay.edge.statistics import StreamStatistics
from foresay.errors import GapError, InputError, StreamError

__all__ = ["Decided", "EdgeText", "Sent", "Taken", "best_chain"]


@dataclass(frozen=True, slots=True)
class Sent:
    """A draft that was sent, as its message names it.

    seq      counts the drafts of the stream, from 1
    base     the position of its first tokens
    prefix   the hash of the prefix up to there, along the drafts in flight
    """

    seq: int
    base: int
    prefix: int
    draft: Draft


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a draft.

    sent       its nodes
    accepted   how many of them were committed
    examined   of its nodes, those that the text was compared with: the accepted ones, and where the
               text left it; 0: the text left the path before it, which says nothing of it
    """

    seq: int
    sent: int
    accepted: int
    examined: int


@dataclass(frozen=True, slots=True)
class Taken:
    """What a commit added: new tokens with where each was drafted from, and the drafts that it
    decided. `Source.MODEL`: the cloud's own token."""

    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    decided: tuple[Decided, ...]
    advanced: bool
    """Whether the cloud is further than before; also while it repeats what is known."""


def best_chain(draft: Draft, node: int = -1) -> list[int]:
    """The nodes below `node` (-1: the root), from each to its likeliest child; of equal ones, or
    without scores, the first."""
    parents = draft.parents.tolist()
    scores = None if draft.scores is None else draft.scores.tolist()
    chain: list[int] = []
    best: dict[int, int] = {}
    for child, parent in enumerate(parents):
        old = best.get(parent)
        if old is None or (scores is not None and scores[child] > scores[old]):
            best[parent] = child
    while (child := best.get(node, -1)) >= 0:
        chain.append(child)
        node = child
    return chain


def child_with(draft: Draft, node: int, token: int) -> int | None:
    """The child of a node that has this token."""
    for child, (parent, its) in enumerate(
        zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
    ):
        if parent == node and its == token:
            return child
    return None


class _Flight:
    """A draft in flight, and how far the text has followed it."""

    def __init__(self, sent: Sent, sources: Sequence[Source]) -> None:
        self.sent = sent
        self.sources = sources
        self.node = -1
        self.accepted = 0
        self.rest = best_chain(sent.draft)  # nodes that the text is believed to follow

    def follow(self, token: int) -> tuple[bool, bool]:
        """Whether the draft has that token next, and whether on the path that was believed."""
        draft = self.sent.draft
        child = child_with(draft, self.node, token)
        if child is None:
            return False, False
        believed = bool(self.rest) and self.rest[0] == child
        self.rest = self.rest[1:] if believed else best_chain(draft, child)
        self.node = child
        self.accepted += 1
        return True, believed

    @property
    def tokens(self) -> list[int]:
        ids = self.sent.draft.tokens
        return [int(ids[node]) for node in self.rest]


class EdgeText:
    """The text of one stream and its drafts in flight.

    tokens      committed tokens of the answer; sources: where each was drafted from
    confirmed   the position up to which this connection's stream has committed
    statistics  counts what was sent, and what it was good for; None: new ones

    `send`, `commit`, `lose`, `restart` and `compare` mutate it. Raises: TokenTypeError, InputError
    when constructed.
    """

    def __init__(self, prompt: IntsLike, statistics: StreamStatistics | None = None) -> None:
        self.prompt: Int32s = as_prompt(prompt)
        self.start = len(self.prompt)
        self.tokens: list[int] = []
        self.sources: list[Source] = []
        self.confirmed = self.start
        self.statistics = StreamStatistics() if statistics is None else statistics
        self._prefix = Prefix(self.prompt)
        self._flights: list[_Flight] = []
        self._seq = 0

    @property
    def position(self) -> int:
        """Absolute: tokens of the prompt and of the answer so far."""
        return self.start + len(self.tokens)

    @property
    def head(self) -> int:
        """Where the next draft starts: behind the drafts in flight."""
        return self.confirmed + sum(len(flight.rest) for flight in self._flights)

    @property
    def in_flight(self) -> int:
        """Drafted tokens that were sent and are not decided; of trees all nodes."""
        return sum(len(flight.sent.draft) - flight.accepted for flight in self._flights)

    def ahead(self) -> list[int]:
        """The tokens in flight on the path that the text is believed to take, from `confirmed`."""
        return [token for flight in self._flights for token in flight.tokens]

    def following(self, position: int) -> list[int]:
        """What follows a position: committed tokens, then those in flight.

        Raises: InputError for a position outside the answer.
        """
        self._prefix.at(position)  # checks it
        known = self.tokens[position - self.start :]
        return known + self.ahead()[max(0, self.position - self.confirmed) :]

    def hash_at(self, position: int) -> int:
        """The hash of the prefix there; it has to be committed. Raises: InputError."""
        return self._prefix.at(position)

    def hash_with(self, upto: int, tokens: IntsLike) -> int:
        """The hash of the prefix up to there, if these tokens are its last ones.

        Raises: GapError if the text before them is not known, TokenTypeError, InputError.
        """
        return hash_after(tokens, self._prefix.at(self._first(upto, len(tokens))))

    def _first(self, upto: int, count: int) -> int:
        """Where so many tokens begin that end at `upto`.

        Raises: GapError outside of the answer, or if tokens are missing before them.
        """
        first = upto - count
        if not self.start <= first <= self.position:
            raise GapError(
                f"the cloud committed tokens from position {first} on; expected them from "
                f"{self.start}, where the answer starts, to {self.position}, where the text ends",
                "gap",
            )
        return first

    def send(self, draft: Draft, sources: Sequence[Source] = ()) -> Sent:
        """Note a draft as sent: it starts at `head`. An empty one counts too, but is not in flight.

        sources: where each node was drafted from; none: `Source.OTHER`.
        Raises: InputError for sources that are not one per node.
        """
        if sources and len(sources) != len(draft):
            raise InputError(
                f"there are {len(sources)} sources of {len(draft)} nodes; expected one per node"
            )
        self._seq += 1
        base = self.head
        prefix = hash_after(as_tokens(self.ahead()), self._prefix.at(self.confirmed))
        sent = Sent(self._seq, base, prefix, draft)
        if len(draft):
            given = sources or [Source.OTHER] * len(draft)
            self._flights.append(_Flight(sent, given))
            self.statistics.drafts += 1
            self.statistics.sent += len(draft)
        return sent

    def commit(self, upto: int, tokens: IntsLike, seq: int = 0) -> Taken:
        """Take what is new in a commit of these tokens, the last ones before `upto`.

        seq: the latest draft that the cloud had seen.
        Raises: GapError if the text before them is not known, StreamError for tokens that differ
        from what was committed before.
        """
        given = as_tokens(tokens).tolist()
        first = self._first(upto, len(given))
        for at in range(first, min(upto, self.position)):
            known, found = self.tokens[at - self.start], given[at - first]
            if known != found:
                raise StreamError(
                    f"the cloud committed token {found} at position {at}, where it had committed "
                    f"{known} before; the same prompt, parameters and seed have to give the same "
                    "text, so the cloud's model or settings have changed",
                    "contradiction",
                )
        new = tuple(given[self.position - first :])
        old = self.position
        self.tokens += new
        self._prefix.extend(list(new))
        self.sources += [Source.MODEL] * len(new)
        decided: list[Decided] = []
        advanced = upto > self.confirmed
        while self.confirmed < upto:
            at = self.confirmed - self.start
            source = self._follow(self.tokens[at], seq, decided)
            if self.confirmed >= old:
                self.sources[at] = source
            self.confirmed += 1
        sources = tuple(self.sources[old - self.start :])
        return Taken(new, sources, tuple(decided), advanced)

    def _follow(self, token: int, seq: int, decided: list[Decided]) -> Source:
        """One committed token through the drafts in flight."""
        if not self._flights:
            return Source.MODEL
        first = self._flights[0]
        at, source = first.accepted, Source.MODEL
        expected = len(self.ahead())
        found, believed = first.follow(token)
        self._count(at, found)
        if found:
            self.statistics.accepted += 1
            source = first.sources[first.node]
        ended = not found or not first.rest
        if ended:
            decided.append(self._decided(first, seq, first.accepted + (not found)))
        if not believed:
            self.statistics.rolled_back += expected
            decided += [self._decided(flight, seq, 0) for flight in self._flights[1:]]
            del self._flights[1:]
        del self._flights[: int(ended)]
        return source

    def _count(self, at: int, accepted: bool) -> None:
        counted = self.statistics
        while len(counted.examined) <= at:
            counted.examined.append(0)
            counted.accepted_at.append(0)
        counted.examined[at] += 1
        counted.accepted_at[at] += accepted

    def _decided(self, flight: _Flight, seq: int, examined: int) -> Decided:
        sent = flight.sent
        self.statistics.rounds += examined > 0
        self.statistics.stale += sent.seq > seq
        return Decided(sent.seq, len(sent.draft), flight.accepted, examined)

    def lose(self) -> None:
        """Forget the drafts in flight: the connection is lost. Drafts count on."""
        self.statistics.lost += self.in_flight
        self._flights.clear()

    def restart(self) -> None:
        """The cloud has lost the stream, and opens a new one: it starts behind the prompt, and
        drafts count from 1 again. What was committed stays.
        """
        self.compare()
        self._seq = 0

    def compare(self) -> None:
        """The cloud repeats the answer from its start, to be compared with what was committed."""
        self.lose()
        self.confirmed = self.start
