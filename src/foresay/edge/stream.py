"""One stream, as the edge runs it: connect, open, draft, read commits, reconnect, end.

Two tasks share an `EdgeText`. One reads what the cloud sends, and never waits for a drafter. The
other drafts and sends, woken by each commit; a drafter that takes long works in a thread.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from statistics import median
from time import perf_counter
from typing import Any

from foresay.arrays import Int32s
from foresay.drafter import Drafter, SeededParams
from foresay.edge.ahead import DraftAhead, DraftThread
from foresay.edge.connection import Backoff, Connection, Lost, connect
from foresay.edge.drafting import Proposal
from foresay.edge.ids import pack, unpack
from foresay.edge.link import Round
from foresay.edge.messages import (
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
)
from foresay.edge.settings import Chunk, ClientOptions
from foresay.edge.statistics import StreamStatistics
from foresay.edge.text import EdgeText, Taken
from foresay.edge.wire import check_of_commit, check_of_opened, hash_of_open
from foresay.errors import GapError, InputError, StreamError
from foresay.sampling.noise import SPEC
from foresay.sampling.params import SamplingParams

__all__ = ["Stream"]

_RECENT = 8  # commits and round trips that count


class Stream:
    """Runs once; `pieces` gets what is committed, and None at the end.

    drafter: None: nothing is drafted. Raises, from `run`: StreamError when it cannot go on,
    InputError for parameters that an edge stream does not have.
    """

    def __init__(
        self,
        options: ClientOptions,
        prompt: Int32s,
        params: SamplingParams,
        drafter: Drafter[Any] | None,
        thread: DraftThread,
    ) -> None:
        self.options = options
        self.params = params
        self.statistics = StreamStatistics(prompt_tokens=len(prompt))
        if options.gate is not None:
            self.statistics.hard_tokens = 0
        self.text = EdgeText(prompt, self.statistics)
        self.pieces: asyncio.Queue[Chunk | None] = asyncio.Queue()
        self.opened: Opened | None = None
        """The answer to the last OPEN."""
        self._sampling = Sampling.of(params)
        self._connection: Connection | None = None
        self._backoff = Backoff(options.retry_seconds)
        self._reopening = Backoff(options.retry_seconds)  # known text is no progress there
        self._sent_at: dict[int, float] = {}  # by seq, until the cloud has heard of it
        self._began = self._heard_at = perf_counter()
        self._per_token = 0.0  # seconds between committed tokens, on average
        self._ahead: DraftAhead | None = None
        if drafter is not None:
            self._ahead = DraftAhead(drafter, self.text, options.sending, thread)

    async def run(self) -> None:
        """Until the answer's end."""
        drafting = asyncio.create_task(self._draft())
        try:
            finish = await self._converse()
            self.pieces.put_nowait(Chunk((), (), finish, self.totals()))
        finally:
            drafting.cancel()
            await asyncio.gather(drafting, return_exceptions=True)
            if self._ahead is not None:
                self._ahead.finish()
            self.pieces.put_nowait(None)

    def totals(self) -> StreamStatistics:
        """The statistics so far; the same object at each call."""
        counted = self.statistics
        counted.tokens = len(self.text.tokens) + counted.edge_only
        counted.seconds = perf_counter() - self._began
        if self._ahead is not None:
            counted.draft_seconds, counted.drafter_error = self._ahead.seconds, self._ahead.error
        return counted

    async def _converse(self) -> str:
        """Connections, one after the other, until the answer's end: its finish reason."""
        while True:
            try:
                return await self._one_connection()
            except Lost as lost:
                if lost.code in ("unknown_stream", "cancelled"):
                    if self.opened is None:
                        raise StreamError(
                            "the cloud does not know a stream that it never opened", "bad_answer"
                        ) from None
                    self._restart()
                    await self._wait(lost, self._reopening, lost.code)
                    continue
                if lost.code == "unknown_prefix":
                    self.text.compare()
                if self.statistics.seed is None and lost.code == "bad_frame":
                    raise StreamError(str(lost), lost.code) from None
                if self.statistics.seed is None and not lost.at_first:
                    raise StreamError(
                        f"{lost}; expected a server of `foresay serve` there", "unreachable"
                    ) from None
                await self._wait(lost, self._backoff, "unreachable")

    def _restart(self) -> None:
        """The next connection opens the stream again, with the same seed."""
        self.opened = None
        self.text.restart()
        self.statistics.reopens += 1

    async def _wait(self, lost: Lost, backoff: Backoff, code: str) -> None:
        seconds = backoff.next_wait(perf_counter())
        if seconds is None:
            retried = f"{self.options.retry_seconds:g} s"
            raise StreamError(
                f"{lost}; there was no progress for {retried}. {self._so_far()}", code
            ) from None
        self.statistics.retries += 1
        await asyncio.sleep(seconds)

    def _so_far(self) -> str:
        """What is committed, and how to get the same text again."""
        have, seed = len(self.text.tokens), self.statistics.seed
        if seed is None:
            return "No token is committed: ask again later"
        committed = "1 token is" if have == 1 else f"{have} tokens are"
        return f"{committed} committed: ask again with seed {seed} for the same text"

    async def _one_connection(self) -> str:
        options = self.options
        connection = await connect(
            options.url,
            self.statistics,
            api_key=options.api_key,
            seconds=options.connect_seconds,
            json=options.json,
        )
        try:
            message = await self._hello(connection)
            self._connection = connection
            self._wake()
            while True:
                message = message or await connection.receive(options.silent_seconds)
                if finish := self._heard(message, connection.last_size):
                    await self._goodbye(connection)
                    return finish
                message = None
        except (asyncio.CancelledError, Lost, StreamError) as error:
            if not isinstance(error, Lost) or error.code == "cancelled":  # nobody wants the rest
                await self._goodbye(connection)
            raise
        finally:
            self._connection = None
            self.text.lose()
            self._sent_at.clear()
            await connection.close()

    async def _hello(self, connection: Connection) -> Message | None:
        """OPEN or RESUME, and its answer, which is returned where it is a commit."""
        options, text = self.options, self.text
        if self.opened is not None:
            self._prepare(connection, self.opened)
            resume = Resume(
                self.opened.stream, self.opened.key, text.confirmed, text.hash_at(text.confirmed)
            )
            await connection.send(resume)
            answer = await connection.receive(options.connect_seconds)
            if not isinstance(answer, Commit):
                raise Lost(
                    f"the cloud answered RESUME with {type(answer).__name__}; expected Commit"
                )
            self.statistics.resumes += 1
            return answer  # a commit like any other, maybe with an end
        seed = self.params.seed if self.statistics.seed is None else self.statistics.seed
        asked = Open(
            VERSION,
            options.model,
            options.tokenizer_hash,
            options.vocabulary,
            pack(text.prompt, options.vocabulary, "prompt"),
            self._sampling,
            seed,
            self.params.max_tokens,
            options.wait,
            options.pad,
        )
        await connection.send(asked)
        answer = await connection.receive(options.silent_seconds)
        if not isinstance(answer, Opened):
            raise Lost(f"the cloud answered OPEN with {type(answer).__name__}; expected Opened")
        if answer.check != check_of_opened(answer, hash_of_open(asked)):
            self.statistics.damaged += 1
            await self._goodbye(connection)  # or the cloud would go on with it
            raise Lost("OPEN or OPENED was damaged: the check differs", at_first=True)
        if answer.position != text.start or (seed is not None and answer.seed != seed):
            raise StreamError(
                f"the cloud opened a stream at position {answer.position} with seed {answer.seed}; "
                f"expected position {text.start} and the seed that was asked for, {seed}",
                "bad_answer",
            )
        self._prepare(connection, answer)
        self.opened = answer
        self.statistics.seed, self.statistics.wait = answer.seed, answer.wait
        if self._ahead is not None:
            self._ahead.credit, self._ahead.nodes = answer.window, answer.nodes
            coupled = SeededParams(self.params, answer.seed) if answer.noise == SPEC else None
            self._ahead.begin(coupled, text.start + self.params.max_tokens, answer.ends)
        return None

    def _prepare(self, connection: Connection, opened: Opened) -> None:
        frames = connection.frames
        frames.vocabulary, frames.stream = opened.vocabulary, opened.stream
        frames.pad = self.options.pad

    def _heard(self, message: Message, size: int) -> str:
        """Take a commit; its finish reason. Raises: Lost for what cannot be used."""
        if not isinstance(message, Commit) or self.opened is None:
            raise Lost(f"the cloud sent {type(message).__name__}; expected Commit")
        now = perf_counter()
        try:
            tokens = unpack(message.tokens, self.opened.vocabulary)
        except InputError as error:
            raise Lost(f"the cloud sent what is no commit: {error}") from error
        try:
            prefix = self.text.hash_with(message.upto, tokens)
        except GapError as gap:
            raise Lost(str(gap)) from gap  # RESUME asks for what is missing
        if message.check != check_of_commit(message, self.opened.stream, prefix):
            self.statistics.damaged += 1
            raise Lost(f"the commit up to position {message.upto} was damaged: its check differs")
        taken = self.text.commit(message.upto, tokens, message.seq)
        self.statistics.note_cloud_kv(message.upto, message.kv_length)
        if message.credit is not None and self._ahead is not None:
            self._ahead.credit = message.credit
        if taken.advanced:
            self._backoff.reset()
        if taken.tokens:
            self._reopening.reset()
            self.statistics.commits += 1
            if self.statistics.ttft is None:
                self.statistics.ttft = now - self._began
            else:
                took = (now - self._heard_at) / len(taken.tokens)
                old = self._per_token or took
                self._per_token = old + (took - old) / _RECENT
            self._heard_at = now
            self.pieces.put_nowait(Chunk(taken.tokens, taken.sources))
        self._learn(message, taken, now, size)
        self._wake()
        if message.reason == "cancelled":
            raise Lost("the cloud cancelled the answer before its end", "cancelled")
        if message.reason == "error":
            raise StreamError(
                f"the cloud failed while it answered; its log says why. {self._so_far()}",
                "internal",
            )
        if message.finish and self.text.confirmed < self.text.position:
            raise StreamError(
                f"the cloud ended the answer at position {self.text.confirmed}, where it had "
                f"committed tokens up to {self.text.position} before",
                "contradiction",
            )
        return message.reason

    def _learn(self, message: Commit, taken: Taken, now: float, size_down: int) -> None:
        """Tell the rule, and whoever asked, of drafts that were decided."""
        rtt = None
        if message.seq in self._sent_at:
            rtt = max(0.0, now - self._sent_at[message.seq] - message.server_us / 1e6)
            self.statistics.rtts.append(rtt)
        # Only the first commit after a draft: later ones wait for the cloud's next step.
        self._sent_at = {seq: at for seq, at in self._sent_at.items() if seq > message.seq}
        for draft in taken.decided:  # maybe before the cloud has heard of it: `_sent_at` stays
            if not draft.examined:
                continue
            latest = draft.seq == message.seq
            done = Round(
                sent=len(draft.draft),
                accepted=draft.accepted,
                rtt=rtt if latest else None,
                draft=draft.seconds,
                verify=message.server_us / 1e6 if latest else None,
                bytes_up=draft.size,
                bytes_down=size_down,
                hard=None if draft.hard is None else sum(draft.hard),
                examined=draft.examined,
            )
            self.options.sending.k.observe(done)
            if self.options.on_round is not None:
                self.options.on_round(done)

    async def _goodbye(self, connection: Connection) -> None:
        with suppress(Lost):  # otherwise the cloud forgets the stream by itself, later
            await connection.send(Close())

    def _wake(self) -> None:
        if self._ahead is not None:
            self._ahead.wake.set()

    async def _draft(self) -> None:
        """Draft and send whenever there is room, for as long as the stream lives."""
        if self._ahead is None:
            return
        try:
            while True:
                await self._ahead.wake.wait()
                self._ahead.wake.clear()
                await self._draft_on(self._ahead)
        except Exception as error:  # drafts are never worth a stream
            self._ahead.error = f"{type(error).__name__}: {error}"

    async def _draft_on(self, ahead: DraftAhead) -> None:
        """Send drafts until there is none, or no room."""
        while (connection := self._connection) is not None and self.opened is not None:
            waits = self.opened.wait == "block"
            until_heard = 0 if waits else self._until_heard()
            found = await ahead.next_draft(waits=waits, until_heard=until_heard)
            if found is None:
                return
            if self._connection is connection and not await self._send(connection, found):
                return

    def _until_heard(self) -> int:
        """Tokens that the cloud commits while a message goes there and back, and in the step that
        runs when it arrives."""
        rtts = self.statistics.rtts[-_RECENT:]
        return 1 + int(median(rtts) / self._per_token) if rtts and self._per_token else 0

    async def _send(self, connection: Connection, found: Proposal) -> bool:
        assert self.opened is not None
        sent = self.text.send(found.draft, found.sources, hard=found.hard, seconds=found.seconds)
        message = DraftMessage.of(
            sent.draft,
            seq=sent.seq,
            base=sent.base,
            prefix=sent.prefix,
            vocabulary=self.opened.vocabulary,
        )
        self._sent_at[sent.seq] = perf_counter()
        if sent.hard is not None:
            self.statistics.hard_tokens = (self.statistics.hard_tokens or 0) + sum(sent.hard)
        try:
            sent.size = await connection.send(message)
        except Lost:
            return False  # the reader hears of it too
        return True
