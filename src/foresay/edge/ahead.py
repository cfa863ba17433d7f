"""What one stream sends next: a draft for the place behind those in flight, how many of its tokens,
cut where the gate says. Nothing here changes what is committed; it decides when drafts travel.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from foresay.budget.trials import TrialAccount
from foresay.draft import Draft
from foresay.drafter import Drafter, SeededParams, Source
from foresay.edge.drafting import EdgeDrafts, Proposal
from foresay.edge.gating import Gate
from foresay.edge.link import EdgeK, HasWindow
from foresay.edge.text import EdgeText
from foresay.edge.text_rules import Decode, read_tokens
from foresay.errors import ForesayError, StateError
from foresay.sampling.signals import Signals, nll_of_scores

__all__ = ["CONTEXT", "LATE", "LEAST", "DraftAhead", "DraftThread", "SendingRules"]

T = TypeVar("T")
CONTEXT = 32
"""Tokens before a draft that a rule of the gate sees."""
LEAST = 0.05
"""A token that is less likely than this to be committed is not drafted ahead: it is not worth its
bytes. Where nothing is in flight it is sent, since the cloud may wait for it."""
LATE = 0.25
"""The least chance of a draft to be of use when it arrives, where the cloud does not wait for it:
each message takes time on both sides."""
_TRIED = 0.25  # of the commits after drafts that would come too late: drafting takes time, too
_QUICK = 0.002  # seconds: a call that takes less delays nobody


class DraftThread:
    """Runs a drafter's calls, one at a time, where they do not delay the event loop: in it if they
    are quick, by what they took so far, else in a thread, as before anything is known.

    Streams that share a drafter share it: no two calls are under way at once. All methods mutate
    it.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._busy = threading.Lock()
        self._closed = False
        self.seconds: float | None = None
        """A moving average of what a call takes, which falls slowly and rises at once."""

    @property
    def quick(self) -> bool:
        return self.seconds is not None and self.seconds < _QUICK

    async def call(self, work: Callable[[], T]) -> T:
        """The work's result. If the caller is cancelled, the work in the thread still ends, and
        the next one begins behind it. Raises: what the work raises.
        """
        if self._closed:
            raise StateError("the client was closed; expected no more drafts")
        if self.quick and self._busy.acquire(blocking=False):
            try:
                return self._timed(work)
            finally:
                self._busy.release()
        return await asyncio.get_running_loop().run_in_executor(self._executor(), self._alone, work)

    def later(self, work: Callable[[], object]) -> None:
        """Do it after all calls before, at once if there are none, without waiting for them."""
        if self._busy.acquire(blocking=self._closed):
            try:
                work()
            finally:
                self._busy.release()
        else:
            self._executor().submit(self._alone, work)

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="edge-drafter")
        return self._thread

    def _alone(self, work: Callable[[], T]) -> T:
        with self._busy:
            return self._timed(work)

    def _timed(self, work: Callable[[], T]) -> T:
        began = perf_counter()
        try:
            return work()
        finally:
            took = perf_counter() - began
            old = took if self.seconds is None else self.seconds
            self.seconds = max(took, old + (took - old) / 4)

    def close(self) -> None:
        """No more calls: `call` raises StateError. What is under way ends by itself."""
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None


@dataclass(frozen=True, slots=True)
class SendingRules:
    """How much of a draft is sent at a time.

    k        how many tokens one message has; with a `window()` also how many may be in flight
    ahead    False: one draft is in flight, and the next one follows its verdict
    tree     where nothing is in flight, a whole tree is sent
    gate     ends messages at hard tokens, and waits where too many are hard; None: no gate
    decode   for the gate's rules, which read text; None: only its signals are used
    """

    k: EdgeK
    ahead: bool = True
    tree: bool = False
    gate: Gate | None = None
    decode: Decode | None = None


class DraftAhead:
    """The drafts of one stream, as long as there is room for them.

    wake     to be set when there is something new: a commit, a connection
    credit   tokens that the cloud allows in flight; nodes: in one draft
    error    what the drafter raised; from then on there are no drafts

    `next_draft` reads the text and mutates the drafter's request.
    """

    def __init__(
        self, drafter: Drafter[Any], text: EdgeText, rules: SendingRules, thread: DraftThread
    ) -> None:
        self.wake = asyncio.Event()
        self.error: str | None = None
        self.credit = self.nodes = 0
        self._drafter = drafter
        self._text = text
        self._rules = rules
        self._thread = thread
        self._drafts: EdgeDrafts | None = None
        self._sampling: SeededParams | None = None
        self._limit = 0  # until it has begun
        self._ends: frozenset[int] = frozenset()
        self._last: Proposal | None = None
        self._spent = 0.0  # seconds of drafting that no message has accounted for yet
        self._heard: tuple[int, int | None] = (0, None)  # up to where, and its KV cache
        self._told = -1  # the position where "no draft" was sent
        self._late = False  # whether the last proposal would have come too late
        self._trials = TrialAccount(_TRIED)  # commits for which another is made all the same

    @property
    def seconds(self) -> float:
        """That drafting took."""
        return 0.0 if self._drafts is None else self._drafts.seconds

    def begin(self, sampling: SeededParams | None, limit: int, ends: Sequence[int]) -> None:
        """The stream is open: `limit` is the position where the answer ends at the latest, and
        nothing is drafted behind a token of `ends`. A second call changes nothing but these."""
        if not self._limit:
            self._sampling = sampling
        params = None if sampling is None else sampling.params
        stops = () if params is None else params.stop_ids
        own = () if params is not None and params.ignore_eos else ends
        self._limit, self._ends = limit, frozenset((*own, *stops))

    async def next_draft(self, *, waits: bool, until_heard: int = 0) -> Proposal | None:
        """What to send now; None: nothing, until `wake`. An empty one says that there is none.

        waits        the cloud always waits, and wants to know if there is no draft
        until_heard  tokens that the cloud commits by itself until a draft arrives: one that is not
                     likely to reach beyond them is not sent
        """
        text = self._text
        if until_heard and self._late:
            self._trials.earn(1.0)
            if not self._trials.covers(1.0):
                return None
            self._trials.settle(1.0)
        while True:
            room = self._room()
            if room <= 0:
                return None
            if text.head < text.position:  # known, but not to the cloud, which lost the stream
                known = text.tokens[text.head - text.start :][:room]
                draft = Draft.chain(np.array(known, np.int32))
                return Proposal(text.head, draft, (Source.OWN,) * len(known))
            proposal = await self._proposal(room)
            if proposal is None:
                return None
            room = self._room()
            if room <= 0 or text.head < text.position:
                continue
            found = self._beyond(proposal, until_heard)
            if found is None and proposal.position < text.position and self.error is None:
                self._last = None
                continue  # commits came meanwhile that it did not foresee
            return self._chosen(found or Proposal(text.head, Draft.empty()), room, waits)

    # -- how many tokens -------------------------------------------------------------------------

    @property
    def _k(self) -> int:
        """Tokens of the next message, at most."""
        return max(0, min(self._rules.k.next_k(), self.nodes, self.credit))

    @property
    def _window(self) -> int:
        """Tokens that may be in flight."""
        rule = self._rules.k
        return min(self.credit, rule.window()) if isinstance(rule, HasWindow) else self.credit

    def _room(self) -> int:
        """How many tokens may be sent now; 0 or less: wait for a verdict.

        With drafts in flight, half of k is the least: a message has a header too.
        """
        k, room, flying = self._k, self._k, self._text.in_flight
        if flying:
            left = self._window - flying
            room = min(k, left) if self._rules.ahead and left >= max(1, k // 2) else 0
        return min(room, self._limit - self._text.head)

    def _chosen(self, draft: Proposal, room: int, waits: bool) -> Proposal | None:
        """What of a draft is sent now, at most `room` tokens; None: wait for a verdict."""
        text, count, hard = self._text, min(room, len(draft)), None
        first = draft.first(count)
        chain = first.draft.parents.tolist() == list(range(-1, count - 1))
        if count and chain and self._rules.gate is not None:
            hard = self._hard(first)
            count = self._cut(self._rules.gate, hard)
            first, hard = first.first(count), hard[:count]
        if not count:
            if not waits or text.in_flight or self._told == text.position or len(draft):
                return None
            self._told = text.position
        spent, self._spent = self._spent, 0.0
        return replace(first, hard=hard, seconds=spent)

    def _cut(self, gate: Gate, hard: list[bool]) -> int:
        """How many of these tokens the gate lets go now."""
        flying = self._text.hard_ahead()
        k, window = max(1, self._k), max(1, self._window)
        if flying and not gate.decide(flying, sent=len(flying), k=k, window=window).ahead:
            return 0
        for count in range(1, len(hard) + 1):  # as if it were drafted token by token
            found = gate.decide(
                [*flying, *hard[:count]],
                sent=len(flying),
                k=k,
                window=window,
                done=count == len(hard),
            )
            if found.send:
                return found.send
        return 0

    def _hard(self, draft: Proposal) -> list[bool]:
        rules, text = self._rules, self._text
        assert rules.gate is not None
        signals, scores = draft.signals, draft.draft.scores
        if signals is None and scores is not None:
            falling = np.minimum.accumulate(np.clip(scores, 0, 1))
            signals = Signals(nll=nll_of_scores(falling))
        read: dict[str, Any] = {}
        if rules.decode is not None and rules.gate.rules is not None:
            known = text.tokens[: text.confirmed - text.start]
            before = [*text.prompt.tolist(), *known, *text.ahead()][-CONTEXT:]
            tokens = draft.draft.tokens.tolist()
            whole, offsets = read_tokens(rules.decode, before, tokens)
            read = {"text": whole, "offsets": offsets, "tokens": tokens}
        if signals is None and not read:
            return [False] * len(draft)
        return [bool(mark) for mark in rules.gate.hard(signals, **read)]

    # -- the drafter's part ----------------------------------------------------------------------

    async def _proposal(self, room: int) -> Proposal | None:
        """The last proposal if it still has something to send and a new one would take long; else
        a new one. None: the drafter has failed."""
        text, last = self._text, self._last
        if last is not None and (last.position == text.position or not self._thread.quick):
            left = last.beyond(text.following(last.position))
            if left is not None and len(left):
                return last
        ahead = len(text.following(text.position))
        # For a slow drafter, twice what is in flight: each token is drafted twice on average.
        budget = ahead + (room if self._thread.quick else max(room, ahead))
        new = text.tokens[(self._drafts.position if self._drafts else text.start) - text.start :]
        try:
            found = await self._thread.call(lambda: self._propose(new, budget))
        except ForesayError as error:  # the prompt is not one
            self.error = str(error)
            return None
        assert self._drafts is not None
        self._spent += found.seconds
        text.statistics.note_edge_kv(*self._heard)
        if (raised := self._drafts.error) is not None:
            self.error = f"{type(raised).__name__}: {raised}"
            return None
        self._last = found
        return found

    def _propose(self, new: list[int], budget: int) -> Proposal:
        """In the drafter's thread: what it has to hear first, then its proposal."""
        if self._drafts is None:
            self._drafts = EdgeDrafts(self._drafter, self._text.prompt, self._sampling)
        self._drafts.observe(np.array(new, np.int32))
        self._heard = self._drafts.position, self._drafts.kv_length
        return self._drafts.propose(budget)

    def _beyond(self, proposal: Proposal, until_heard: int) -> Proposal | None:
        """What the proposal has behind the text and the drafts in flight, up to an end token."""
        text = self._text
        following = text.following(proposal.position)
        tree = self._rules.tree and not text.in_flight
        found = proposal.beyond(following, tree=tree)
        if found is None or tree:
            return found
        if following and following[-1] in self._ends:
            return Proposal(text.head, Draft.empty())
        tokens = found.draft.tokens.tolist()
        end = next((at for at, token in enumerate(tokens) if token in self._ends), len(tokens))
        found = found.first(end + 1)
        if text.in_flight:
            found = found.first(found.likely(LEAST))
        if until_heard and found.likely(LATE) <= max(until_heard - len(text.ahead()), 0):
            self._late = True
            return Proposal(text.head, Draft.empty())
        self._late = False
        return found

    def finish(self) -> None:
        """End the drafter's request, without waiting for work that is under way."""

        def end() -> None:
            if self._drafts is not None:
                self._drafts.finish()

        self._thread.later(end)
