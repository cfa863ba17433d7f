"""Who takes part in a step, with how many tokens; who has to wait, and who has to give way.

Every text has tokens whose keys and values are not stored yet: the last one while it is being
written, the whole prompt at first, all of it after it had to give way. So there is one queue and
one rule, and a prompt is only a text that is far behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from foresay.engine.pages import PAGE, Pages, pages_of
from foresay.engine.prefixes import Prefixes
from foresay.engine.request import Request
from foresay.models.target import TextKv

__all__ = ["Scheduler", "Turn"]

_OVERTAKEN = 32  # at most so many wait for a beginning while others overtake them


@dataclass(frozen=True, slots=True)
class Turn:
    """A request's share of a step: the next `tokens` tokens of its text. `whole`: then all of the
    text is stored, so that the next token can be chosen.
    """

    request: Request
    tokens: int
    whole: bool

    @classmethod
    def of(cls, request: Request, most: int) -> Turn:
        """The turn of a request that may take in at most so many tokens."""
        pending = len(request.pending)
        return cls(request, min(pending, most), pending <= most)


class Scheduler:
    """The waiting, the running, and the memory between them.

    open         makes room for a new text
    pages        the memory that texts may hold
    max_running  requests that may be in one step
    max_rows     tokens of prompts that one step takes in, so that nobody waits long
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
        self._whole = True  # False while the pages and those who hold them change

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self.waiting.append(request)

    def schedule(self) -> list[Turn]:
        """The turns of the next step: first those that write, then prompts in order of arrival.

        Mutates: admits what fits, preempts the newest where memory is short.
        """
        self.mend()
        self._whole = False
        for request in list(self.running):
            # Those that gave way for another are not running any more.
            if request in self.running:
                self._hold(request, len(request) + 1)
        turns = [Turn(r, 1, True) for r in self.running if len(r.pending) == 1]
        rows = self.max_rows - len(turns)
        for request in self.running:
            if rows > 0 and len(request.pending) > 1:
                turns.append(Turn.of(request, rows))
                rows -= turns[-1].tokens
        while rows > 0 and len(self.running) < self.max_running:
            admitted = self._admit()
            if admitted is None:
                break
            turns.append(Turn.of(admitted, rows))
            rows -= turns[-1].tokens
        self._whole = True
        return turns

    def reserve(self, request: Request, nodes: int) -> bool:
        """Whether there is memory for so many guesses behind the request's text.

        Mutates: the pages, which the request holds until its next step.
        """
        return self.pages.hold(request, len(request) + nodes)

    def mend(self) -> None:
        """After a method that was interrupted, at whatever place: what nobody uses is free again.
        Of a request that was about to come or go nothing is stored any more.
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
        """Give up everything that is stored: kept prefixes for good, running requests until they
        are admitted again, in order of arrival.
        """
        self.mend()
        self._whole = False
        while self.prefixes.drop_oldest():
            pass
        for request in sorted(self.running, key=lambda r: r.number, reverse=True):
            self._preempt(request)
        self._whole = True

    def release(self, request: Request, *, keep: bool) -> None:
        """Take a request out, wherever it is; `keep` what was computed of it for later ones.

        Mutates: the request, which holds nothing any more.
        """
        self.mend()
        self._whole = False
        self._release(request, keep=keep)
        self._whole = True

    def check_integrity(self) -> None:
        """Check that pages are held by the running and the kept texts, and by nobody else.

        Valid until: the next call. Raises: RuntimeError.
        """
        lengths = {request: request.stored for request in self.running} | self.prefixes.lengths()
        self.pages.check_integrity(lengths)

    def _release(self, request: Request, *, keep: bool) -> None:
        if request in self.running:
            self.running.remove(request)
            self.prefixes.end(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.pages.release(request)
        if keep:
            self.prefixes.keep(request)
        request.kv = None

    def _admit(self) -> Request | None:
        """The first of the waiting that can begin now."""
        for request in islice(self.waiting, _OVERTAKEN):
            length, source, soon = self.prefixes.longest(request)
            # What is taken over gives no logits, so nothing is that has still to be noted.
            length, soon = (
                min(length, request.prompt_logprobs_done - 1),
                min(soon, request.prompt_logprobs_done - 1),
            )
            if soon - length >= PAGE // 4:
                continue  # somebody computes its beginning just now: take it over when that is done
            if not self._hold_dropping_kept(request, 1):
                return None  # nobody overtakes for memory, or long texts would wait for ever
            try:
                kv = self._open()
                if source is not None and length:
                    kv.copy_from(source, length)
            except MemoryError:
                self.pages.release(request)
                raise
            request.kv = kv
            request.stats.shared_tokens = length
            self.running.append(request)
            self.waiting.remove(request)
            self.prefixes.begin(request)
            return request
        return None

    def _hold_dropping_kept(self, request: Request, more: int) -> bool:
        """Whether there is memory for the request, for which kept texts go if that is enough."""
        needed = pages_of(len(request) + more)
        if needed > self.pages.free + self.prefixes.held:
            return False
        while not self.pages.hold(request, len(request) + more):
            self.prefixes.drop_oldest()
        return True

    def _hold(self, request: Request, tokens: int) -> None:
        """Hold memory for a running request; the newest give way, at last the request itself."""
        while not self.pages.hold(request, tokens):
            if not self.prefixes.drop_oldest():
                newest = max(self.running, key=lambda r: r.number)
                self._preempt(newest)
                if newest is request:
                    return

    def _preempt(self, request: Request) -> None:
        """Give up what is stored of a request; it is computed again when there is room."""
        self.waiting.appendleft(request)
        self._release(request, keep=False)
        request.stats.preemptions += 1
