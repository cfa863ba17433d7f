"""Which requests a step computes, with how many tokens; which wait, and which are preempted.

Every request has pending tokens, which are not in the KV cache yet: the whole prompt at
first, the last token while it decodes, the whole text after a preemption. So there is one queue
and one rule: a prompt is only a text with many pending tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from foresay.engine.pages import PAGE, Pages, pages_of
from foresay.engine.prefixes import Prefixes
from foresay.engine.request import Request
from foresay.models.target import TextKv

__all__ = ["ScheduledRequest", "Scheduler"]

_OVERTAKEN = 32  # requests that wait for a prefix while others are admitted before them


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request's share of a step: its next `tokens` pending tokens. `whole`: these are all of
    them, so the next token can be chosen.
    """

    request: Request
    tokens: int
    whole: bool

    @classmethod
    def of(cls, request: Request, most: int) -> ScheduledRequest:
        """The turn of a request with at most `most` tokens."""
        pending = len(request.pending)
        return cls(request, min(pending, most), pending <= most)


class Scheduler:
    """The waiting and the running requests, and the memory that they share.

    open         makes the KV cache of a new text, empty
    pages        the memory that texts may hold
    max_running  requests that may be in one step; paused ones do not count
    max_rows     prompt tokens in one step: a bound on how long decoding requests wait
    """

    def __init__(
        self, open: Callable[[], TextKv], pages: Pages, *, max_running: int, max_rows: int
    ) -> None:
        self._open = open
        self.pages = pages
        self.prefixes = Prefixes(open, pages, most=pages.total // 4)
        self.max_running = max_running
        self.max_rows = max_rows
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._whole = True  # False while pages and their holders change

    def add(self, request: Request) -> None:
        """Let a request wait to be admitted."""
        self.waiting.append(request)

    def schedule(self) -> list[ScheduledRequest]:
        """The turns of the next step: first decoding requests, then prompts in order of arrival.

        Mutates: admits requests that fit, preempts the newest where memory is short.
        """
        self.mend()
        self._whole = False
        held = self.pages.held_by
        behind: set[Request] = set()  # have more than one token to compute
        for request in list(self.running):
            # Requests preempted for another are not running any more.
            if request.paused or (kv := request.kv) is None:
                continue
            length, stored = request.length, kv.length
            if stored >= length:
                kv.cut(length - 1)  # what a drafter that shares it left there
            elif stored + 1 < length:
                behind.add(request)
            if held.get(request) != (length + PAGE) // PAGE:  # `pages_of` of one token more
                self._hold(request, length + 1)
        ready = [request for request in self.running if not request.paused][: self.max_running]
        room = self.max_running - len(ready)
        long = [request for request in ready if request in behind] if behind else []
        turns = [request.decode_turn for request in ready if request not in behind]
        rows = self.max_rows - len(turns)
        for request in long:
            if rows > 0:
                turns.append(ScheduledRequest.of(request, rows))
                rows -= turns[-1].tokens
        while rows > 0 and room > 0:
            admitted = self._admit()
            # Where nothing else can be done, paused requests give their memory to one that waits.
            while admitted is None and not turns and self._preempt_paused():
                admitted = self._admit()
            if admitted is None:
                break
            turns.append(ScheduledRequest.of(admitted, rows))
            rows -= turns[-1].tokens
            room -= 1
        self._whole = True
        return turns

    def hold_next(self, requests: Sequence[Request]) -> bool:
        """Hold memory for a step with these requests again, when each has one token more; False if
        there is none, or another request could be admitted. Some may be held then."""
        if len(self.running) != len(requests) or any(one.paused for one in requests):
            return False
        if len(requests) < self.max_running:
            first = next((request for request in self.waiting if not request.paused), None)
            if first is not None and self._has_room(first, 1):
                return False
        return all(self.pages.hold(request, request.length + 2) for request in requests)

    @property
    def idle(self) -> bool:
        """Whether no request could take part in a step: there is none, or all are paused."""
        return all(request.paused for request in chain(self.running, self.waiting))

    def reserve(self, requests: Sequence[Request], nodes: Sequence[int]) -> list[bool]:
        """Hold memory for so many drafted tokens after each request's text; False where there is
        none. For no tokens nothing is done.

        Mutates: the pages, which the requests hold until their next step.
        """
        held, hold = self.pages.held_by, self.pages.hold
        return [
            not more
            or held.get(request) == -(-(request.length + more) // PAGE)  # `pages_of`
            or hold(request, request.length + more)
            for request, more in zip(requests, nodes, strict=True)
        ]

    def mend(self) -> None:
        """After an interrupted method: unused memory is free again. A request that was about to be
        admitted or to leave has nothing stored any more.
        """
        if self._whole:
            return
        moved = [request for request in self.running if request in self.waiting]
        self.running = [request for request in self.running if request not in moved]
        for request in self.waiting:
            request.kv = None
        self.prefixes.mend(self.running)
        self.pages.release_all_but({*self.running, *self.prefixes.lengths()})
        self._whole = True

    def recompute(self) -> None:
        """Drop all of the KV cache: the prefix cache for good, and that of running requests, which
        are preempted and wait in front of the others.
        """
        self.drop_prefixes()
        self._whole = False
        for request in sorted(self.running, key=lambda r: r.number, reverse=True):
            self._preempt(request)
        self._whole = True

    def drop_prefixes(self) -> None:
        """Free the memory of the prefix cache."""
        self.mend()
        self._whole = False
        while self.prefixes.drop_oldest():
            pass
        self._whole = True

    def release(self, request: Request, *, cache: bool) -> None:
        """Take a request out, waiting or running; `cache`: its prompt goes to the prefix cache.

        Mutates: the request, which has no KV cache any more.
        """
        self.mend()
        self._whole = False
        self._release(request, cache=cache)
        self._whole = True

    def check_integrity(self) -> None:
        """Check that pages are held by running requests and cached texts only.

        Valid until: the next call. Raises: RuntimeError.
        """
        lengths = {request: request.stored for request in self.running} | self.prefixes.lengths()
        self.pages.check_integrity(lengths)

    def _release(self, request: Request, *, cache: bool) -> None:
        if request in self.running:
            self.running.remove(request)
            self.prefixes.end(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.pages.release(request)
        if cache:
            self.prefixes.cache(request)
        request.kv = request.decode_turn = None

    def _admit(self) -> Request | None:
        """Admit the first waiting request that can begin now."""
        for request in islice((r for r in self.waiting if not r.paused), _OVERTAKEN):
            length, source, soon = self.prefixes.longest(request)
            # Shared tokens give no logits: tokens that need log probabilities are not shared.
            length, soon = (
                min(length, request.prompt_logprobs_done - 1),
                min(soon, request.prompt_logprobs_done - 1),
            )
            if soon - length >= PAGE // 4:
                continue  # a running request computes its prefix: share it when that is done
            if not self._hold_dropping_cached(request, 1):
                return None  # no overtaking for memory, or long texts would wait for ever
            try:
                kv = self._open()
                if source is not None and length:
                    kv.copy_from(source, length)
            except MemoryError:
                self.pages.release(request)
                raise
            request.kv = kv
            request.decode_turn = ScheduledRequest(request, 1, True)
            request.counted.shared_tokens = length
            self.running.append(request)
            self.waiting.remove(request)
            self.prefixes.begin(request)
            return request
        return None

    def _has_room(self, request: Request, more: int) -> bool:
        """Whether there is memory for a request that waits, beside the running ones."""
        return pages_of(len(request) + more) <= self.pages.free + self.prefixes.held

    def _hold_dropping_cached(self, request: Request, more: int) -> bool:
        """Hold memory for a request, dropping cached texts if that is enough; False if not."""
        if not self._has_room(request, more):
            return False
        while not self.pages.hold(request, len(request) + more):
            self.prefixes.drop_oldest()
        return True

    def _hold(self, request: Request, tokens: int) -> None:
        """Hold memory for a running request; preempt the newest, at last the request itself."""
        while not self.pages.hold(request, tokens):
            if not self.prefixes.drop_oldest():
                newest = max(self.running, key=lambda r: r.number)
                self._preempt(newest)
                if newest is request:
                    return

    def _preempt_paused(self) -> bool:
        """Preempt the newest paused request for one that waits; False if there are no two such."""
        paused = [request for request in self.running if request.paused]
        if not paused or all(request.paused for request in self.waiting):
            return False
        self._preempt(max(paused, key=lambda r: r.number))
        return True

    def _preempt(self, request: Request) -> None:
        """Drop the KV cache of a request; it is computed again when it is admitted."""
        self.waiting.appendleft(request)
        self._release(request, cache=False)
        request.counted.preemptions += 1
