"""The next draft of a stream: asked from its drafter, compared with the text as it is by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from foresay.draft import Draft
from foresay.drafter import SeededParams, Source
from foresay.edge.drafting import NOTHING, EdgeDrafts, Part, Proposal
from foresay.edge.pace import Pace
from foresay.edge.sending import Sending
from foresay.edge.text import EdgeText
from foresay.errors import ForesayError

__all__ = ["LATE", "LEAST", "Supply"]

LEAST = 0.05
"""A token that is less likely than this to be committed is not drafted ahead: it is not worth its
bytes. Where nothing is in flight it is sent, since the cloud may wait for it."""
LATE = 0.25
"""The least chance of a draft to be of use when it arrives, where the cloud does not wait for it:
each message takes time on both sides."""


_SKIPS = 3  # commits that are skipped at most, after drafts that would come too late


class Supply:
    """Drafts for one stream, as long as there is room for them.

    wake   to be set when there is something new: a commit, a connection

    `next_part` reads the text and mutates the drafter's request. Raises: nothing; `error` says what
    a drafter raised.
    """

    def __init__(
        self,
        make: Callable[[SeededParams | None], EdgeDrafts],
        text: EdgeText,
        sending: Sending,
        pace: Pace,
    ) -> None:
        self.wake = asyncio.Event()
        self.error: str | None = None
        self._make = make
        self._text = text
        self._sending = sending
        self._pace = pace
        self._drafts: EdgeDrafts | None = None
        self._sampling: SeededParams | None = None
        self._begun = False
        self._limit = 0
        self._ends: frozenset[int] = frozenset()
        self._last: Proposal | None = None
        self._spent = 0.0  # seconds of drafting that no message has accounted for yet
        self._told = -1  # the position where "no draft" was sent
        self.kv: tuple[int, int | None] | None = None
        """Up to where the drafter has heard of the text, and how much of it is in its KV cache."""
        self._misses = 0  # proposals in a row that would come too late
        self._skip = 0  # commits for which none is asked for: drafting takes time, too

    @property
    def seconds(self) -> float:
        return 0.0 if self._drafts is None else self._drafts.seconds

    def begin(self, sampling: SeededParams | None, limit: int, ends: Sequence[int]) -> None:
        """The stream is open: `limit` is the position where the answer ends at the latest, and
        nothing is drafted behind a token of `ends`. A second call changes nothing but these."""
        if not self._begun:
            self._begun, self._sampling = True, sampling
        params = None if sampling is None else sampling.params
        stops = () if params is None else params.stop_ids
        own = () if params is not None and params.ignore_eos else ends
        self._limit, self._ends = limit, frozenset((*own, *stops))

    async def next_part(self, *, waits: bool, lead: int = 0) -> tuple[Part, float] | None:
        """What to send now and the seconds that drafting it took; None: nothing, until `wake`.

        waits  the cloud always waits, and wants to know if there is no draft
        lead   tokens that the cloud commits by itself until a draft arrives: one that is not likely
               to reach beyond them is not sent
        """
        text = self._text
        if lead and self._skip:
            self._skip -= 1
            return None
        while self._begun:
            room = min(self._sending.room(text), self._limit - text.head)
            if room <= 0:
                return None
            if text.head < text.position:
                return self._known(room), 0.0
            proposal = await self._proposal(room)
            if proposal is None:
                return None
            room = min(self._sending.room(text), self._limit - text.head)
            if room <= 0 or text.head < text.position:
                continue
            part = self._beyond(proposal, lead)
            if part is None and proposal.position < text.position and self.error is None:
                self._last = None
                continue  # commits came meanwhile that it did not foresee
            return self._chosen(part or NOTHING, room, waits)
        return None

    def _known(self, room: int) -> Part:
        """What was committed before the cloud lost the stream: the best draft there is."""
        at = self._text.head - self._text.start
        tokens = self._text.tokens[at : at + room]
        return Part(Draft.chain(np.array(tokens, np.int32)), (Source.OWN,) * len(tokens))

    async def _proposal(self, room: int) -> Proposal | None:
        """The last proposal if it still has something to send and a new one would take long; else
        a new one. None: the drafter has failed."""
        text, last = self._text, self._last
        if last is not None and (last.position == text.position or not self._pace.quick):
            left = last.beyond(text.following(last.position))
            if left is not None and len(left):
                return last
        ahead = len(text.following(text.position))
        # For a slow drafter, twice what is in flight: each token is drafted twice on average.
        budget = ahead + (room if self._pace.quick else max(room, ahead))
        new = text.tokens[(self._drafts.position if self._drafts else text.start) - text.start :]
        try:
            found = await self._pace.call(lambda: self._ask(new, budget))
        except ForesayError as error:  # the prompt is not one
            self.error = str(error)
            return None
        self._spent += found.seconds
        if self._drafts is not None and self._drafts.error is not None:
            raised = self._drafts.error
            self.error = f"{type(raised).__name__}: {raised}"
            return None
        self._last = found
        return found

    def _ask(self, new: list[int], budget: int) -> Proposal:
        """In the drafter's thread: what it has to hear first, then its proposal."""
        if self._drafts is None:
            self._drafts = self._make(self._sampling)
        self._drafts.observe(np.array(new, np.int32))
        self.kv = self._drafts.position, self._drafts.kv_length
        return self._drafts.propose(budget)

    def _beyond(self, proposal: Proposal, lead: int) -> Part | None:
        """What the proposal has behind the text and the drafts in flight, up to an end token."""
        text = self._text
        following = text.following(proposal.position)
        tree = self._sending.tree and not text.in_flight
        part = proposal.beyond(following, tree=tree)
        if part is None:
            return None
        if not tree:
            tokens = part.draft.tokens.tolist()
            if following and following[-1] in self._ends:
                return NOTHING
            for at, token in enumerate(tokens):
                if token in self._ends:
                    part = part.first(at + 1)
                    break
            if text.in_flight:
                part = part.likely(LEAST)
            if lead and not part.reaches(max(lead - len(text.ahead()), 0), LATE):
                self._misses = min(self._misses + 1, _SKIPS)
                self._skip = self._misses
                return NOTHING
            self._misses = 0
        return part

    def _chosen(self, part: Part, room: int, waits: bool) -> tuple[Part, float] | None:
        text = self._text
        chosen = self._sending.cut(part, text, room)
        if chosen is None or not len(chosen):
            if not waits or text.in_flight or self._told == text.position or len(part):
                return None
            self._told = text.position
            chosen = NOTHING
        spent, self._spent = self._spent, 0.0
        return chosen, spent

    def finish(self) -> None:
        """End the drafter's request, without waiting for work that is under way."""

        def end() -> None:
            if self._drafts is not None:
                self._drafts.finish()

        self._pace.later(end)
