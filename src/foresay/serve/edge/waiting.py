"""How long the engine waits for an edge client's next draft. It lives in the engine's thread.

    block      until a draft for this place has arrived, or `seconds` are over
    free-run   not at all: the cloud decodes on, and uses drafts that arrive in time
    adaptive   as long as drafts usually take, if waiting is expected to save time

What is committed is the same under all of them. A request that waits is paused: it sits steps out,
and others go on. A client that is not connected is never waited for; and while another request
waits for a place, nobody is: who is paused keeps places and memory.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable
from time import perf_counter

from foresay.drafter import Offer
from foresay.engine.engine import Engine
from foresay.engine.request import Request

__all__ = ["Waits"]

_MEMORY = 16  # drafts and steps
_LONGER = 2.0  # times the usual delay of a draft is waited for
_PATIENCE = 3  # waits in a row in which no draft came, or a late one of no use
_LATE = 0.5  # of the longest wait
_MOST = 240  # times the longest wait that one stream is waited for in all
_SHARE = 0.01  # of the time, which may be lost by waiting where it does not seem to pay


class _Watched:
    """One stream: its request, and when its drafts arrive."""

    __slots__ = (
        "account",
        "arrivals",
        "connected",
        "late",
        "paused_at",
        "request",
        "since",
        "steps",
        "tokens",
        "wait",
        "waited",
    )

    def __init__(self, request: Request, wait: str) -> None:
        self.request = request
        self.wait = wait
        self.connected = True
        self.since: float | None = None  # the last commit, until a draft has arrived
        self.late = False  # whether that draft, for which it waited, came late
        self.paused_at = 0.0
        self.waited = 0.0  # seconds, in all
        # Seconds from a commit to a draft; inf: none came.
        self.arrivals: deque[float] = deque(maxlen=_MEMORY)
        self.steps = {True: (1.0, 0.0), False: (1.0, 0.0)}  # by whether there was a draft
        self.account = 0.0  # seconds that trials may lose
        self.tokens = request.stats.tokens  # of the answer, so far

    def learn(self, drafted: bool, tokens: int, seconds: float) -> None:
        """A step with or without a draft committed so many tokens in so many seconds."""
        mean, took = self.steps[drafted]
        rate = 1 / _MEMORY
        took = seconds if took == 0.0 else took + (seconds - took) * rate
        self.steps[drafted] = mean + (tokens - mean) * rate, took
        self.account += _SHARE * seconds

    def seconds(self, longest: float) -> float:
        """How long to wait for the next draft."""
        late = list(self.arrivals)[-_PATIENCE:]
        if len(late) == _PATIENCE and all(math.isinf(one) for one in late):
            return 0.0  # until a draft arrives: the client may have none any more
        longest = min(longest, _MOST * longest - self.waited)
        if longest <= 0:
            return 0.0
        if self.wait == "block":
            return longest
        if self.wait == "free-run" or not self.arrivals:
            return 0.0
        usual = sorted(self.arrivals)[len(self.arrivals) // 2]
        if math.isinf(usual):
            return 0.0
        (with_draft, _), (without, took) = self.steps[True], self.steps[False]
        # Without drafts a token takes took / without seconds.
        if (with_draft - without) * took / without <= usual:
            if self.account < _LONGER * usual:
                return 0.0
            self.account = 0.0
        return min(_LONGER * usual, longest)


class Waits:
    """The requests of edge streams, and which of them wait for a draft.

    longest  seconds that any draft is waited for

    It pauses the engine's requests, and lets them go on.
    """

    def __init__(self, engine: Engine, longest: float) -> None:
        self._engine = engine
        self.longest = longest
        self._by_stream: dict[Hashable, _Watched] = {}
        self._by_request: dict[Request, Hashable] = {}
        self._deadlines: dict[Hashable, float] = {}
        self._had_draft: set[Hashable] = set()  # before the step that runs

    def __len__(self) -> int:
        return len(self._by_stream)

    def watch(self, stream: Hashable, request: Request, wait: str) -> None:
        """Begin with a stream."""
        self._by_stream[stream] = _Watched(request, wait)
        self._by_request[request] = stream

    def forget(self, request: Request) -> None:
        """A request has ended; nothing happens if it is of no stream."""
        stream = self._by_request.pop(request, None)
        if stream is not None:
            del self._by_stream[stream]
            self._deadlines.pop(stream, None)
            self._had_draft.discard(stream)

    def connect(self, stream: Hashable, connected: bool) -> None:
        """A client has come, or has gone: who has gone is waited for no more. One that comes may
        be told here after its first step, whose wait goes on."""
        watched = self._by_stream.get(stream)
        if watched is not None and watched.connected != connected:
            watched.connected, watched.since = connected, None
            self._let_go(stream)

    def offer(self, stream: Hashable, offer: Offer) -> None:
        """A draft has arrived; one without tokens says that there is none for this place."""
        watched = self._by_stream.get(stream)
        if watched is None:
            return
        if not len(offer.draft) and offer.base != len(watched.request):
            return  # of a place that the text has passed
        if len(offer.draft):
            self._engine.offer(watched.request, offer)
        if not len(offer.draft) or self._engine.drafter.offered(watched.request):
            if watched.since is not None:
                took = perf_counter() - watched.since
                watched.arrivals.append(took)
                watched.late = watched.request.paused and took > _LATE * self.longest
                watched.since = None
            self._let_go(stream)

    def before_step(self) -> None:
        """Note who has a draft for the next step."""
        self._had_draft = {
            stream
            for stream, watched in self._by_stream.items()
            if not watched.request.paused and self._engine.drafter.offered(watched.request)
        }

    def after_step(self, changed: Iterable[Request], seconds: float) -> None:
        """Pause the requests of a step whose next draft is worth waiting for. If others could not
        begin in this step, all go on instead."""
        now = perf_counter()
        crowded = any(not request.paused for request in self._engine.scheduler.waiting)
        if crowded:
            for stream in list(self._deadlines):
                self._let_go(stream)
        for request in changed:
            stream = self._by_request.get(request)
            if stream is None or request.finished:
                continue
            watched = self._by_stream[stream]
            new, watched.tokens = request.stats.tokens - watched.tokens, request.stats.tokens
            watched.learn(stream in self._had_draft, new, seconds)
            if watched.late and new <= 1 and watched.arrivals:
                watched.arrivals[-1] = math.inf
            watched.late = False
            if self._engine.drafter.offered(request):
                continue
            watched.since = now
            useful = watched.connected and self._engine.drafter.takes_offers and not crowded
            longest = watched.seconds(self.longest) if useful else 0.0
            if longest > 0:
                self._engine.pause(request)
                self._deadlines[stream] = now + longest
                watched.paused_at = now

    def expire(self) -> float | None:
        """Let those go that have waited long enough. Returns the seconds until the next one has;
        None: nobody waits."""
        now = perf_counter()
        for stream in [s for s, end in self._deadlines.items() if end <= now]:
            # Or a client that drafts no more would be waited for to the end. One that was only
            # late is counted again when its draft arrives.
            self._by_stream[stream].arrivals.append(math.inf)
            self._let_go(stream)
        return min(self._deadlines.values()) - now if self._deadlines else None

    def _let_go(self, stream: Hashable) -> None:
        if self._deadlines.pop(stream, None) is not None:
            watched = self._by_stream[stream]
            watched.waited += perf_counter() - watched.paused_at
            self._engine.pause(watched.request, False)
