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
from dataclasses import dataclass, field

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft
from foresay.drafter import Source, as_prompt
from foresay.edge.prefix import Prefix, hash_after
from foresay.edge.statistics import StreamStatistics
from foresay.errors import GapError, StreamError

__all__ = ["EdgeText", "InFlight", "Taken", "best_chain", "child_with"]


def best_chain(draft: Draft, node: int = -1) -> list[int]:
    """The nodes below `node` (-1: the root), from each to its likeliest child; of equal ones, or
    without scores, the first."""
    scores = None if draft.scores is None else draft.scores.tolist()
    best: dict[int, int] = {}
    for child, parent in enumerate(draft.parents.tolist()):
        old = best.get(parent)
        if old is None or (scores is not None and scores[child] > scores[old]):
            best[parent] = child
    chain: list[int] = []
    while (node := best.get(node, -1)) >= 0:
        chain.append(node)
    return chain


def child_with(draft: Draft, node: int, token: int) -> int | None:
    """The child of a node that has this token."""
    rows = zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
    return next((child for child, row in enumerate(rows) if row == (node, token)), None)


@dataclass(slots=True, eq=False)
class InFlight:
    """A draft that was sent, and how far the text has followed it.

    seq       counts the drafts of the stream, from 1
    base      the position of its first tokens
    prefix    the hash of the prefix up to there, along the drafts in flight
    sources   where each node was drafted from
    hard      which of its tokens are hard; None: there is no gate
    seconds   that drafting it took; size: its bytes on the wire
    accepted  how many of its nodes were committed
    examined  of its nodes, those that the text was compared with: the accepted ones, and where the
              text left it; 0: the text left the path before it, which says nothing of it
    rest      nodes that the text is believed to follow, from now on

    Mutated by `EdgeText.commit`.
    """

    seq: int
    base: int
    prefix: int
    draft: Draft
    sources: Sequence[Source]
    hard: Sequence[bool] | None = None
    seconds: float = 0.0
    size: int = 0
    accepted: int = 0
    examined: int = 0
    node: int = -1
    rest: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rest = best_chain(self.draft)

    def follow(self, token: int) -> tuple[bool, bool]:
        """Whether the draft has that token next, and whether on the path that was believed."""
        self.examined = self.accepted + 1
        child = child_with(self.draft, self.node, token)
        if child is None:
            return False, False
        believed = bool(self.rest) and self.rest[0] == child
        self.rest = self.rest[1:] if believed else best_chain(self.draft, child)
        self.node = child
        self.accepted += 1
        return True, believed


@dataclass(frozen=True, slots=True)
class Taken:
    """What a commit added: new tokens with where each was drafted from, and the drafts that it
    decided. `Source.MODEL`: the cloud's own token."""

    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    decided: tuple[InFlight, ...]
    advanced: bool
    """Whether the cloud is further than before; also while it repeats what is known."""


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
        self._flights: list[InFlight] = []
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
        return sum(len(flight.draft) - flight.accepted for flight in self._flights)

    def ahead(self) -> list[int]:
        """The tokens in flight on the path that the text is believed to take, from `confirmed`."""
        return [int(flight.draft.tokens[node]) for flight in self._flights for node in flight.rest]

    def hard_ahead(self) -> list[bool]:
        """Which of these tokens are hard."""
        return [
            flight.hard is not None and flight.hard[node]
            for flight in self._flights
            for node in flight.rest
        ]

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
        """Where `count` tokens begin that end at `upto`.

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

    def send(
        self,
        draft: Draft,
        sources: Sequence[Source] = (),
        *,
        hard: Sequence[bool] | None = None,
        seconds: float = 0.0,
    ) -> InFlight:
        """Note a draft as sent: it starts at `head`. An empty one counts too, but is not in flight.

        sources, hard, seconds: as of `InFlight`; no sources: `Source.OTHER` for each node.
        """
        self._seq += 1
        prefix = hash_after(as_tokens(self.ahead()), self._prefix.at(self.confirmed))
        sources = sources or [Source.OTHER] * len(draft)
        sent = InFlight(self._seq, self.head, prefix, draft, sources, hard, seconds)
        if len(draft):
            self._flights.append(sent)
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
        first, old = self._first(upto, len(given)), self.position
        for at in range(first, min(upto, old)):
            known, found = self.tokens[at - self.start], given[at - first]
            if known != found:
                raise StreamError(
                    f"the cloud committed token {found} at position {at}, where it had committed "
                    f"{known} before; the same prompt, parameters and seed have to give the same "
                    "text, so the cloud's model or settings have changed",
                    "contradiction",
                )
        new = tuple(given[old - first :])
        self.tokens += new
        self._prefix.extend(list(new))
        decided: list[InFlight] = []
        advanced = upto > self.confirmed
        while self.confirmed < upto:
            source = self._follow(self.tokens[self.confirmed - self.start], decided)
            if self.confirmed >= old:
                self.sources.append(source)
            self.confirmed += 1
        self.statistics.rounds += sum(flight.examined > 0 for flight in decided)
        self.statistics.stale += sum(flight.seq > seq for flight in decided)
        return Taken(new, tuple(self.sources[old - self.start :]), tuple(decided), advanced)

    def _follow(self, token: int, decided: list[InFlight]) -> Source:
        """One committed token through the drafts in flight."""
        if not self._flights:
            return Source.MODEL
        first, counted = self._flights[0], self.statistics
        at, expected = first.accepted, len(self.ahead())
        found, believed = first.follow(token)
        if at == len(counted.examined):
            counted.examined.append(0)
            counted.accepted_at.append(0)
        counted.examined[at] += 1
        counted.accepted_at[at] += found
        counted.accepted += found
        ended = not found or not first.rest
        if ended:
            decided.append(first)
        if not believed:
            counted.rolled_back += expected
            decided += self._flights[1:]
            del self._flights[1:]
        del self._flights[: int(ended)]
        return first.sources[first.node] if found else Source.MODEL

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
