"""The one thread that drives the engine: generation requests in, pieces of answers out.

The event loop posts functions; the thread calls them between two steps. Nothing else touches the
engine; only its drafter, which has a lock, is asked from other threads for its memory. Answers are
counted in the event loop, before anything is posted, so that the queue is bounded.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, TypeVar

from foresay.engine.answers import Chunk
from foresay.engine.engine import Engine
from foresay.engine.llm import LLM
from foresay.engine.request import PHASES, FinishReason, Request
from foresay.engine.samples import add_answers
from foresay.errors import ForesayError, InputError
from foresay.serve.edge.waiting import Waits
from foresay.serve.limits import Limits, Refused
from foresay.serve.metrics import measured
from foresay.serve.request_state import RequestState
from foresay.serve.steps import Ended, Share, StepReport
from foresay.serve.stream import AnswerStream, StepUpdate, UpdateBuffer
from foresay.serve.validate import GenerationRequest

__all__ = ["Driver"]

T = TypeVar("T")
Seen = Callable[[StepReport | None, list[Ended]], None]
_log = logging.getLogger("foresay.serve")


class Driver:
    """The engine in a thread of its own.

    llm      its engine belongs to the driver from `start` on
    memory   tells the bytes that the drafter holds; None: unknown
    limits   how much may be under way; may be replaced, for later requests
    seen     called in the event loop with every step, and with answers that have ended

    Raises: nothing when constructed.
    """

    def __init__(
        self, llm: LLM, memory: Callable[[], int] | None, limits: Limits, seen: Seen
    ) -> None:
        self._llm = llm
        self._engine = llm.engine
        self._memory = memory
        self.limits = limits
        self._seen = seen
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._states: dict[Request, RequestState] = {}
        self._waits = Waits(self._engine, limits.draft_seconds)
        self._buffer = UpdateBuffer()
        self._blocked = False  # whether all that is not paused waits for what paused ones have
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="foresay-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: dict[str | None, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._streams: set[AnswerStream] = set()
        self.draining = False
        self.started = self._moved = perf_counter()
        self._gauges = measured(self._engine, memory)

    # In the event loop.

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive() and not self._stopped

    @property
    def under_way(self) -> int:
        """Answers that were requested and have not ended."""
        return sum(self._under_way.values())

    @property
    def waited(self) -> float:
        """Seconds without a step while answers are under way; 0 if there are none."""
        return perf_counter() - self._moved if self._under_way else 0.0

    @property
    def gauges(self) -> dict[str, float]:
        """Values after the last step, and current ones: this does not wait for the engine."""
        return self._gauges | {"under_way": self.under_way, "seconds_since_step": self.waited}

    def start(self) -> None:
        """Start the thread, for the event loop that runs now.

        Raises: RuntimeError outside a loop.
        """
        self._loop = asyncio.get_running_loop()
        atexit.register(self._exit)  # a daemon's objects would not be freed when Python ends
        self._thread.start()

    async def submit(
        self, generation: GenerationRequest, tenant: str | None, wait: str | None = None
    ) -> AnswerStream:
        """Add a generation request. Returns the stream of its answers.

        wait: of an edge client with one answer, whose drafts are taken (`edge.waiting`).
        Raises: Refused if there is no room, or if the engine refuses it.
        """
        self.admit(generation.answers, tenant)
        most = self.limits.stream_pieces * generation.answers if generation.stream else None
        stream = AnswerStream(generation.answers, tenant, most)
        self._count(tenant, generation.answers)
        self._streams.add(stream)
        try:
            await self.call(lambda engine: self._add(engine, generation, stream, wait))
        except asyncio.CancelledError:
            self.cancel(stream)
            raise
        except InputError as error:
            raise Refused(400, str(error)) from error
        finally:
            if not self.alive:
                self._forget(stream)
        return stream

    def cancel(self, stream: AnswerStream) -> None:
        """End a stream's answers; nothing happens if they have ended."""
        if not stream.ended and not stream.cancelled:
            stream.cancelled = True
            self._inbox.put(lambda: self._cancel(stream))

    def cancel_all(self) -> None:
        """End all answers."""
        for stream in list(self._streams):
            self.cancel(stream)

    async def call(self, function: Callable[[Engine], T]) -> T:
        """What a function of the engine returns; it is called between two steps.

        Valid until: the next step. Raises: what the function raises; Refused if the engine has
        stopped.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                if self._stopped:
                    raise stopped
                self._post(_answer, answer, function(self._engine))
            except Exception as error:
                self._post(_answer, answer, None, error)

        stopped = Refused(503, "the server has stopped", code="stopped")
        if not self.alive:
            raise stopped
        self._inbox.put(run)
        return await answer

    def edge(self, call: Callable[[Waits], None]) -> None:
        """Let a function tell the waiting of edge streams something, between two steps."""
        self._inbox.put(lambda: call(self._waits))

    async def drained(self) -> None:
        """Wait until nothing is under way; new requests are refused from now on."""
        self.draining = True
        await self._idle.wait()

    async def stop(self) -> None:
        """Cancel everything and end the thread."""
        self.draining = True
        if self._thread.is_alive():
            self._inbox.put(self._halt)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        atexit.unregister(self._exit)

    def _exit(self) -> None:
        self._inbox.put(self._halt)
        self._thread.join(5.0)  # seconds; a step may take longer

    def admit(self, answers: int, tenant: str | None) -> None:
        """Check that this number of answers more can be admitted.

        Raises: Refused.
        """
        if self.draining:
            raise self.limits.draining()
        most = self._engine.scheduler.max_running + self.limits.queue
        if self.under_way + answers > most:
            raise self.limits.full(answers, most, "all clients together")
        own = self.limits.tenant_answers
        if own is not None and self._under_way.get(tenant, 0) + answers > own:
            raise self.limits.full(answers, own, "one tenant")

    def _count(self, tenant: str | None, answers: int) -> None:
        if not self._under_way:
            self._moved = perf_counter()  # nothing waited before
        self._under_way[tenant] = self._under_way.get(tenant, 0) + answers
        if not self._under_way[tenant]:
            del self._under_way[tenant]
        if self._under_way:
            self._idle.clear()
        else:
            self._idle.set()

    def _forget(self, stream: AnswerStream) -> None:
        """Stop counting a stream that was never started."""
        if stream in self._streams:
            self._streams.discard(stream)
            self._count(stream.tenant, -stream.answers)

    def _deliver(self, updates: list[StepUpdate]) -> None:
        for pieces, step, ended, gauges in updates:
            self._gauges, self._moved = gauges, perf_counter()
            for stream, piece in pieces:
                stream.put(piece)
                if piece.finish_reason is not None and stream in self._streams:
                    self._count(stream.tenant, -1)
                    if stream.ended:
                        self._streams.discard(stream)
            self._seen(step, ended)

    # In the thread.

    def _run(self) -> None:
        while not self._stopped:
            # Without running requests it waits here; else it takes what was posted and steps.
            due = self._waits.expire()
            if not self._engine.busy or (self._blocked and due is not None):
                with suppress(Empty):  # a request that was paused goes on
                    self._guarded(self._inbox.get(timeout=due and max(due, 1e-4)))
            for _ in range(self._inbox.qsize()):  # not what comes meanwhile: steps must go on
                self._guarded(self._inbox.get())
            if self._engine.busy and not self._stopped:
                self._guarded(self._step)
        while not self._inbox.empty():  # what was posted since gets an error
            self._guarded(self._inbox.get())

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception:  # the thread must go on: all answers depend on it
            _log.exception("a function posted to the engine's thread failed")

    def _halt(self) -> None:
        self._end(list(self._states.values()), "cancelled")
        self._stopped = True

    def _post(self, call: Callable[..., None], *values: Any) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(call, *values)

    def _add(
        self, engine: Engine, generation: GenerationRequest, stream: AnswerStream, wait: str | None
    ) -> None:
        """Add all requests of a generation request, or none."""
        requests: list[Request] = []
        decode = partial(self._llm.tokenizer.decode, keep=generation.form.kept)
        try:
            for prompt in generation.prompts:
                requests += add_answers(
                    engine,
                    self._llm.tokenizer,
                    prompt,
                    generation.params,
                    tenant=stream.tenant,
                    prompt_logprobs=generation.prompt_logprobs,
                    decode=decode,
                )
            for index, request in enumerate(requests):
                self._states[request] = RequestState(stream, index, generation, request, decode)
                if wait is not None:  # here, before a step: its first draft is waited for, too
                    self._waits.watch(stream, request, wait)
        except Exception:
            engine.cancel(*requests)
            for request in requests:
                self._states.pop(request, None)
            # Posted here, because the client may have left meanwhile.
            self._post(self._forget, stream)
            raise

    def _cancel(self, stream: AnswerStream) -> None:
        self._end([s for s in self._states.values() if s.stream is stream], "cancelled")

    def _step(self) -> None:
        start = perf_counter()
        try:
            self._waits.before_step()
            changed = self._engine.step()
        except Exception:
            _log.exception("a step failed; the answers that took part in it end with an error")
            # Not the exception itself: it may hold data of another tenant.
            failure = ForesayError("a step of the model failed; see the server's log")
            self._end(self._victims(), "error", failure)
            return
        seconds = perf_counter() - start
        self._waits.after_step(changed, seconds)
        self._blocked = not changed and self._engine.last_step is None
        if self._blocked:
            return
        step = self._accounted(changed, start)
        pieces: list[tuple[AnswerStream, Chunk]] = []
        ended: list[Ended] = []
        first = any(request.stats.steps == 1 for request in changed)
        for request in changed:
            state = self._states.get(request)
            if state is None:
                continue
            if request.finished or state.generation.stream:
                pieces.append((state.stream, self._chunk(state, seconds)))
            if request.finished:
                ended.append(self._ended(state))
        self._send(pieces, step, ended, first=first)

    def _send(
        self,
        pieces: list[tuple[AnswerStream, Chunk]],
        step: StepReport | None,
        ended: list[Ended],
        *,
        first: bool = False,
    ) -> None:
        update = StepUpdate(pieces, step, ended, measured(self._engine, self._memory))
        if due := self._buffer.add(update, first=first):
            self._post(self._deliver, due)

    def _chunk(self, state: RequestState, seconds: float) -> Chunk:
        """The next piece of an answer; if it cannot be made, the answer has failed."""
        try:
            return state.chunk(seconds)
        except Exception:
            _log.exception("the next piece of an answer failed, and the answer ends")
            self._engine.cancel(state.request)
            failure = ForesayError("the next piece of the answer failed; see the server's log")
            return Chunk(state.answer.index, "", [], finish_reason="error", error=failure)

    def _victims(self) -> list[RequestState]:
        """The requests of a failed step, and those that it had ended; if none ran, the first that
        waits, or all would fail."""
        scheduler = self._engine.scheduler
        waiting = [request for request in scheduler.waiting if not request.paused]
        took_part = [request for request in scheduler.running if not request.paused]
        took_part += self._states.keys() - {*scheduler.running, *scheduler.waiting}
        return [self._states[each] for each in took_part or waiting[:1] if each in self._states]

    def _end(
        self, states: list[RequestState], reason: FinishReason, error: ForesayError | None = None
    ) -> None:
        """End answers that the engine has not ended."""
        pieces: list[tuple[AnswerStream, Chunk]] = []
        ended: list[Ended] = []
        for state in states:
            self._engine.cancel(state.request)
            piece = Chunk(state.answer.index, "", [], finish_reason=reason, error=error)
            pieces.append((state.stream, piece))
            ended.append(self._ended(state))
        if pieces:
            self._send(pieces, None, ended)

    def _ended(self, state: RequestState) -> Ended:
        """Forget an answer that has ended."""
        del self._states[state.request]
        self._waits.forget(state.request)
        return state.ended()

    def _accounted(self, changed: list[Request], start: float) -> StepReport:
        """What the step did: the change of the requests' statistics."""
        preemptions, gaps, shares = 0, list[float](), dict[str | None, Share]()
        for request in {*self._engine.scheduler.running, *changed}:
            if (state := self._states.get(request)) is not None:
                share = shares.setdefault(request.tenant, Share(steps=1))
                gaps += state.account(share, start)
                preemptions += state.preemptions()
        seconds = {
            phase: sum(share.seconds[phase] for share in shares.values()) for phase in PHASES
        }
        tenants = {request.tenant for request in changed if request in self._states}
        told = {tenant: share for tenant, share in shares.items() if tenant in tenants}
        return StepReport(start - self.started, seconds, told, gaps, preemptions)


def _answer(answer: asyncio.Future[Any], value: Any, failure: Exception | None = None) -> None:
    """Answer a caller who waits in the event loop, unless it was cancelled."""
    if not answer.done() and failure is not None:
        answer.set_exception(failure)
    elif not answer.done():
        answer.set_result(value)
