"""One stream, as the edge runs it: connect, open, draft, read commits, reconnect, end.

Two tasks share an `EdgeText`. One reads what the cloud sends, and never waits for a drafter. The
other drafts and sends, woken by each commit; a drafter that takes long works in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from statistics import median
from time import perf_counter

from foresay.arrays import Int32s
from foresay.drafter import SeededParams
from foresay.edge.checks import check_of_commit, check_of_opened, hash_of_open
from foresay.edge.connection import (
    Backoff,
    Cancelled,
    Connection,
    Lost,
    Refused,
    UnknownPrefix,
    UnknownStream,
    connect,
)
from foresay.edge.drafting import EdgeDrafts, Part
from foresay.edge.kv_lengths import KvLengths
from foresay.edge.link import Round
from foresay.edge.pace import Pace
from foresay.edge.sending import Sending
from foresay.edge.settings import Piece, StreamSettings
from foresay.edge.statistics import StreamStatistics
from foresay.edge.supply import Supply
from foresay.edge.text import EdgeText, Taken
from foresay.edge.wire import (
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
    pack,
    unpack,
)
from foresay.errors import GapError, InputError, StreamError
from foresay.sampling.noise import SPEC
from foresay.sampling.params import SamplingParams

__all__ = ["Stream"]

_RECENT = 8  # commits and round trips that count


class Stream:
    """Runs once; `pieces` gets what is committed, and None at the end.

    drafts: makes the drafter's request, once the seed is known; None: nothing is drafted.
    Raises, from `run`: StreamError when it cannot go on, InputError for parameters that an edge
    stream does not have.
    """

    def __init__(
        self,
        settings: StreamSettings,
        prompt: Int32s,
        params: SamplingParams,
        sending: Sending,
        drafts: Callable[[SeededParams | None], EdgeDrafts] | None,
        pace: Pace,
    ) -> None:
        self.settings = settings
        self.params = params
        self.statistics = StreamStatistics(prompt_tokens=len(prompt))
        if sending.gate is not None:
            self.statistics.hard_tokens = 0
        self.text = EdgeText(prompt, self.statistics)
        self.pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self.opened: Opened | None = None
        """The answer to the last OPEN."""
        self._asked = Sampling.of(params)
        self._sending = sending
        self._connection: Connection | None = None
        self._backoff = Backoff(settings.retry_seconds)
        self._reopening = Backoff(settings.retry_seconds)  # known text is no progress there
        self._sent_at: dict[int, float] = {}  # by seq, until the cloud has heard of it
        # Of drafts in flight: bytes, seconds of drafting, hard tokens.
        self._costs: dict[int, tuple[int, float, int | None]] = {}
        self._began = self._heard_at = perf_counter()
        self._per_token = 0.0  # seconds between committed tokens, on average
        self._kv = KvLengths(self.statistics)
        self._supply = None if drafts is None else Supply(drafts, self.text, sending, pace)
        self._limit = self.text.start + params.max_tokens

    async def run(self) -> None:
        """Until the answer's end."""
        drafting = asyncio.create_task(self._draft())
        try:
            finish = await self._converse()
            self.pieces.put_nowait(Piece((), (), finish, self.totals()))
        finally:
            drafting.cancel()
            await asyncio.gather(drafting, return_exceptions=True)
            if self._supply is not None:
                self._supply.finish()
            self.pieces.put_nowait(None)

    def totals(self) -> StreamStatistics:
        """The statistics so far; the same object at each call."""
        found = self.statistics
        found.tokens = len(self.text.tokens) + found.edge_only
        found.seconds = perf_counter() - self._began
        if self._supply is not None:
            found.draft_seconds, found.drafter_error = self._supply.seconds, self._supply.error
        return found

    async def _converse(self) -> str:
        """Connections, one after the other, until the answer's end: its finish reason."""
        while True:
            try:
                return await self._one_connection()
            except UnknownStream as lost:
                if self.opened is None:
                    raise StreamError(
                        "the cloud does not know a stream that it never opened", "bad_answer"
                    ) from None
                self._restart()
                await self._wait(lost, self._reopening, "unknown_stream")
            except Cancelled as lost:
                self._restart()
                await self._wait(lost, self._reopening, "cancelled")
            except Lost as lost:
                if isinstance(lost, UnknownPrefix):
                    self.text.compare()
                if isinstance(lost, Refused) and self.statistics.seed is None:
                    raise StreamError(str(lost), "bad_frame") from None
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
            retried = f"{self.settings.retry_seconds:g} s"
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
        told = self.settings
        connection = await connect(
            told.url,
            self.statistics,
            api_key=told.api_key,
            seconds=told.connect_seconds,
            json=told.json,
        )
        try:
            await self._hello(connection)
            self._connection = connection
            self._wake()
            while True:
                message = await connection.receive(told.silent_seconds)
                if finish := self._heard(message, connection.last_size):
                    await self._goodbye(connection)
                    return finish
        except (asyncio.CancelledError, Cancelled, StreamError):  # nobody wants the rest
            await self._goodbye(connection)
            raise
        finally:
            self._connection = None
            self.text.lose()
            self._sent_at.clear()
            self._costs.clear()
            await connection.close()

    async def _hello(self, connection: Connection) -> None:
        """OPEN or RESUME, and its answer."""
        told, text = self.settings, self.text
        if self.opened is not None:
            self._prepare(connection, self.opened)
            resume = Resume(
                self.opened.stream, self.opened.key, text.confirmed, text.hash_at(text.confirmed)
            )
            await connection.send(resume)
            answer = await connection.receive(told.connect_seconds)
            self._heard_first(answer, connection)
            return
        seed = self.params.seed if self.statistics.seed is None else self.statistics.seed
        asked = Open(
            VERSION,
            told.model,
            told.tokenizer_hash,
            told.vocabulary,
            pack(text.prompt, told.vocabulary, "prompt"),
            self._asked,
            seed,
            self.params.max_tokens,
            told.wait,
            told.pad,
        )
        await connection.send(asked)
        answer = await connection.receive(told.silent_seconds)
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
        self._sending.credit, self._sending.nodes = answer.window, answer.nodes
        if self._supply is not None:
            coupled = SeededParams(self.params, answer.seed) if answer.noise == SPEC else None
            self._supply.begin(coupled, self._limit, answer.ends)

    def _prepare(self, connection: Connection, opened: Opened) -> None:
        frames = connection.frames
        frames.vocabulary, frames.stream = opened.vocabulary, opened.stream
        frames.pad = self.settings.pad

    def _heard_first(self, answer: Message, connection: Connection) -> None:
        """The answer to RESUME is a commit like any other; with an end, it is heard again."""
        if not isinstance(answer, Commit):
            raise Lost(f"the cloud answered RESUME with {type(answer).__name__}; expected Commit")
        self.statistics.resumes += 1
        connection.put_back(answer)

    def _heard(self, message: Message, size: int) -> str:
        """Take a commit; its finish reason. Raises: Lost for what cannot be used, Cancelled."""
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
        self._kv.note_cloud(message.upto, message.kv_length)
        if message.credit is not None:
            self._sending.credit = message.credit
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
            self.pieces.put_nowait(Piece(taken.tokens, taken.sources))
        self._learn(message, taken, now, size)
        self._wake()
        if message.reason == "cancelled":
            raise Cancelled("the cloud cancelled the answer before its end")
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
            size, took, hard = self._costs.pop(draft.seq, (0, 0.0, None))
            if not draft.examined:
                continue
            done = Round(
                sent=draft.sent,
                accepted=draft.accepted,
                rtt=rtt if draft.seq == message.seq else None,
                draft=took,
                verify=message.server_us / 1e6 if draft.seq == message.seq else None,
                bytes_up=size,
                bytes_down=size_down,
                hard=hard,
                examined=draft.examined,
            )
            self._sending.rule.observe(done)
            if self.settings.on_round is not None:
                self.settings.on_round(done)

    async def _goodbye(self, connection: Connection) -> None:
        with suppress(Lost):  # otherwise the cloud forgets the stream by itself, later
            await connection.send(Close())

    def _wake(self) -> None:
        if self._supply is not None:
            self._supply.wake.set()

    async def _draft(self) -> None:
        """Draft and send whenever there is room, for as long as the stream lives."""
        if self._supply is None:
            return
        try:
            while True:
                await self._supply.wake.wait()
                self._supply.wake.clear()
                await self._draft_on(self._supply)
        except Exception as error:  # drafts are never worth a stream
            self._supply.error = f"{type(error).__name__}: {error}"

    async def _draft_on(self, supply: Supply) -> None:
        """Send drafts until there is none, or no room."""
        while (connection := self._connection) is not None and self.opened is not None:
            waits = self.opened.wait == "block"
            found = await supply.next_part(waits=waits, lead=0 if waits else self._lead())
            if supply.kv is not None:
                self._kv.note_edge(*supply.kv)
            if found is None:
                return
            if self._connection is connection and not await self._send(connection, *found):
                return

    def _lead(self) -> int:
        """Tokens that the cloud commits while a message goes there and back, and in the step that
        runs when it arrives."""
        rtts = self.statistics.rtts[-_RECENT:]
        return 1 + int(median(rtts) / self._per_token) if rtts and self._per_token else 0

    async def _send(self, connection: Connection, part: Part, took: float) -> bool:
        assert self.opened is not None
        sent = self.text.send(part.draft, part.sources)
        message = DraftMessage.of(
            sent.draft,
            seq=sent.seq,
            base=sent.base,
            prefix=sent.prefix,
            vocabulary=self.opened.vocabulary,
        )
        self._sent_at[sent.seq] = perf_counter()
        if len(sent.draft):
            self._costs[sent.seq] = 0, took, part.hard
        if part.hard is not None:
            self.statistics.hard_tokens = (self.statistics.hard_tokens or 0) + part.hard
        try:
            size = await connection.send(message)
        except Lost:
            return False  # the reader hears of it too
        if sent.seq in self._costs:
            self._costs[sent.seq] = size, took, part.hard
        return True
