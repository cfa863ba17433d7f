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
from dataclasses import dataclass, field
from time import perf_counter

from foresay.budget.trials import TrialAccount
from foresay.drafter import ExternalDraft
from foresay.engine.engine import Engine
from foresay.engine.request import Request

__all__ = ["Waits"]

_MEMORY = 16  # drafts and steps
_LONGER = 2.0  # times the usual delay of a draft is waited for
_PATIENCE = 3  # waits in a row in which no draft came, or a late one of no use
_LATE = 0.5  # of the longest wait
_MOST = 240  # times the longest wait that one stream is waited for in all
_SHARE = 0.01  # of the time, which may be lost by waiting where it does not seem to pay


@dataclass(slots=True, eq=False)
class _Watched:
    """One stream: its request, and when its drafts arrive."""

    request: Request
    wait: str
    tokens: int  # of the answer, so far
    connected: bool = True
    since: float | None = None  # the last commit, until a draft has arrived
    late: bool = False  # whether that draft, for which it waited, came late
    drafted: bool = False  # whether there was a draft before the step that runs
    deadline: float | None = None  # until when it is paused; None: it is not
    paused_at: float = 0.0
    waited: float = 0.0  # seconds, in all
    # Seconds from a commit to a draft; inf: none came.
    arrivals: deque[float] = field(default_factory=lambda: deque(maxlen=_MEMORY))
    # Tokens and seconds of a step, by whether there was a draft.
    steps: dict[bool, tuple[float, float]] = field(
        default_factory=lambda: {True: (1.0, 0.0), False: (1.0, 0.0)}
    )
    trials: TrialAccount = field(default_factory=lambda: TrialAccount(_SHARE))

    def learn(self, tokens: int, seconds: float) -> None:
        """A step committed `tokens` in `seconds`."""
        mean, took = self.steps[self.drafted]
        rate = 1 / _MEMORY
        took = seconds if took == 0.0 else took + (seconds - took) * rate
        self.steps[self.drafted] = mean + (tokens - mean) * rate, took
        self.trials.earn(seconds)

    def seconds(self, longest: float) -> float:
        """How long to wait for the next draft."""
        late = list(self.arrivals)[-_PATIENCE:]
        if len(late) == _PATIENCE and all(math.isinf(one) for one in late):
            return 0.0  # until a draft arrives: the client may have none any more
        longest = max(min(longest, _MOST * longest - self.waited), 0.0)
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
            if not self.trials.covers(_LONGER * usual):
                return 0.0
            self.trials.settle(_LONGER * usual)
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

    def __len__(self) -> int:
        return len(self._by_stream)

    def watch(self, stream: Hashable, request: Request, wait: str) -> None:
        """Begin with a stream."""
        self._by_stream[stream] = _Watched(request, wait, request.stats.tokens)
        self._by_request[request] = stream

    def forget(self, request: Request) -> None:
        """A request has ended; nothing happens if it is of no stream."""
        stream = self._by_request.pop(request, None)
        if stream is not None:
            del self._by_stream[stream]

    def connect(self, stream: Hashable, connected: bool) -> None:
        """A client has come, or has gone: who has gone is waited for no more. One that comes may
        be told here after its first step, whose wait goes on."""
        watched = self._by_stream.get(stream)
        if watched is not None and watched.connected != connected:
            watched.connected, watched.since = connected, None
            self._let_go(watched)

    def add(self, stream: Hashable, draft: ExternalDraft) -> None:
        """A draft has arrived; one without tokens says that there is none for this place."""
        watched = self._by_stream.get(stream)
        if watched is None:
            return
        if len(draft.draft):
            self._engine.add_external_draft(watched.request, draft)
        elif draft.base != len(watched.request):
            return  # of a place that the text has passed
        if not len(draft.draft) or self._has_draft(watched):
            if watched.since is not None:
                took = perf_counter() - watched.since
                watched.arrivals.append(took)
                watched.late = watched.request.paused and took > _LATE * self.longest
                watched.since = None
            self._let_go(watched)

    def before_step(self) -> None:
        """Note who has a draft for the next step."""
        for watched in self._by_stream.values():
            watched.drafted = not watched.request.paused and self._has_draft(watched)

    def after_step(self, changed: Iterable[Request], seconds: float) -> None:
        """Pause the requests of a step whose next draft is worth waiting for. If others could not
        begin in this step, all go on instead."""
        now = perf_counter()
        crowded = any(not request.paused for request in self._engine.scheduler.waiting)
        if crowded:
            for watched in self._by_stream.values():
                self._let_go(watched)
        for request in changed:
            stream = self._by_request.get(request)
            if stream is None or request.finished:
                continue
            watched = self._by_stream[stream]
            new, watched.tokens = request.stats.tokens - watched.tokens, request.stats.tokens
            watched.learn(new, seconds)
            if watched.late and new <= 1 and watched.arrivals:
                watched.arrivals[-1] = math.inf
            watched.late = False
            if self._has_draft(watched):
                continue
            watched.since = now
            takes = self._engine.drafter.takes_external_drafts
            useful = watched.connected and takes and not crowded
            longest = watched.seconds(self.longest) if useful else 0.0
            if longest > 0:
                self._engine.pause(request)
                watched.deadline, watched.paused_at = now + longest, now

    def expire(self) -> float | None:
        """Let those go that have waited long enough. Returns the seconds until the next one has;
        None: nobody waits."""
        now, left = perf_counter(), list[float]()
        for watched in self._by_stream.values():
            if watched.deadline is not None and watched.deadline <= now:
                # Or a client that drafts no more would be waited for to the end. One that was only
                # late is counted again when its draft arrives.
                watched.arrivals.append(math.inf)
                self._let_go(watched)
            elif watched.deadline is not None:
                left.append(watched.deadline - now)
        return min(left, default=None)

    def _has_draft(self, watched: _Watched) -> bool:
        return self._engine.drafter.has_external_draft(watched.request)

    def _let_go(self, watched: _Watched) -> None:
        if watched.deadline is not None:
            watched.deadline = None
            watched.waited += perf_counter() - watched.paused_at
            self._engine.pause(watched.request, False)
