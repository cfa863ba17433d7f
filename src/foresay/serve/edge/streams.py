"""Edge streams: an answer that outlives its connection, and all of them by name.

A stream takes the pieces of its answer as they come, whether a client is connected or not. The only
truth is the list of committed ids; a client that comes back gets what it lacks.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from array import array
from collections import deque
from itertools import islice
from time import monotonic, perf_counter

import numpy as np

from foresay.drafter import ExternalDraft
from foresay.edge.ids import pack
from foresay.edge.messages import FINISH, Commit, DraftMessage
from foresay.edge.prefix import Prefix, hashes_along
from foresay.edge.wire import checked_commit
from foresay.errors import InputError
from foresay.serve.driver import Driver
from foresay.serve.edge.waiting import Waits
from foresay.serve.limits import Limits, Refused
from foresay.serve.stream import AnswerStream

__all__ = ["EdgeStream", "EdgeStreams"]

_MOST_COMMIT = 4096  # tokens of one message
_MOST_ENDS = 1024  # places that a later draft may continue
_MOST_POSTED = 64  # drafts of a stream that wait for the engine's thread
_WINDOWS = 16  # windows of drafted tokens that may come at once


class EdgeStream:
    """One answer, its committed ids, and the latest draft. It lives in the event loop.

    window  drafted tokens that may be in flight
    pad     of its messages, see OPEN
    hide    commits do not tell what was accepted, nor how long it took
    """

    def __init__(
        self,
        answer: AnswerStream,
        prefix: Prefix,
        vocabulary: int,
        window: int,
        pad: int = 0,
        *,
        hide: bool = False,
    ) -> None:
        self.name, self.key = secrets.token_bytes(16), secrets.token_bytes(16)
        self.answer = answer
        self.vocabulary = vocabulary
        self.pad = pad
        self.prefix = prefix
        self._hide = hide
        self.finish = ""
        self.changed = asyncio.Event()
        """Set when there is more to send."""
        self.owner: object = None
        """The connection that it has now."""
        self.left = monotonic()
        """When the last connection was lost."""
        self._ids = array("i")
        self._pending = 0  # tokens that are not in the engine's KV cache
        self._window = window
        self._room = _WINDOWS * window
        self._seq, self._arrived = 0, 0.0
        self.posted = self.taken = 0
        """Drafts that were posted to the engine's thread; of them, those that it has taken."""
        # Of the latest draft: its base, the hash there, how many nodes, these by parent and token.
        self._latest: tuple[int, int, int, dict[tuple[int, int], int]] | None = None
        # Nodes of earlier drafts that a later one may continue: position by hash.
        self._ends: dict[int, int] = {}

    @property
    def position(self) -> int:
        return self.prefix.position

    @property
    def flooded(self) -> bool:
        """Whether more drafts came than a client has reason to send: they are ignored until the
        text grows."""
        return not self._room

    async def fill(self) -> None:
        """Take the pieces of the answer until it has ended."""
        while not self.finish:
            for piece in await self.answer.take():
                self._ids.extend(piece.token_ids)
                self.prefix.extend(np.array(piece.token_ids, np.int32))
                self._pending = self.position - piece.kv_length if piece.kv_length else 0
                if piece.finish_reason is not None:
                    self.finish, self._pending = piece.finish_reason, 0
            # A client sends at most a window after each commit that it hears of.
            self._room = min(self._room + self._window, _WINDOWS * self._window)
            self.changed.set()
            if self.answer.ended and not self.answer.waiting and not self.finish:
                self.finish = "error"

    def draft(self, message: DraftMessage) -> ExternalDraft | None:
        """The draft of a message, if it can be of use. One that arrives twice, too late or for
        another text is ignored, and is no error.

        Raises: InputError for a draft that is not valid.
        """
        draft = message.draft(self.vocabulary)
        size = max(len(draft), 1)
        if message.seq <= self._seq or not self._room:
            return None
        self._room = max(self._room - size, 0)
        self._seq, self._arrived = message.seq, perf_counter()
        tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
        nodes: dict[tuple[int, int], int] = {}
        for at, node in enumerate(zip(parents, tokens, strict=True)):
            nodes.setdefault(node, at)
        self._latest = message.base, message.prefix, len(draft), nodes
        ahead = message.base - self.position
        known = self.prefix.agrees(message.base, message.prefix) or (
            ahead > 0 and self._ends.get(message.prefix) == message.base
        )
        if self.finish or not known or ahead + len(draft) > self._window:
            return None
        depths: list[int] = []
        for parent, crc in zip(parents, hashes_along(draft, message.prefix), strict=True):
            depths.append(1 if parent < 0 else depths[parent] + 1)
            self._ends[crc] = message.base + depths[-1]
        if len(self._ends) > _MOST_ENDS:
            self._ends = {crc: at for crc, at in self._ends.items() if at >= self.position}
            for crc in list(islice(self._ends, max(len(self._ends) - _MOST_ENDS, 0))):
                del self._ends[crc]
        return ExternalDraft(message.base, message.prefix, draft)

    def commit(self, have: int) -> Commit:
        """All that came after position `have`, at most 4,096 tokens of it.

        Raises: InputError outside of the answer.
        """
        first = have - self.prefix.start
        if not 0 <= first <= len(self._ids):
            raise InputError(
                f"have is {have}; expected {self.prefix.start}, the end of the prompt, to "
                f"{self.position}"
            )
        ids = np.array(self._ids[first : first + _MOST_COMMIT], np.int32)
        upto = have + len(ids)
        last = upto == self.position
        accepted, examined, drafted = (0, 0, 0) if self._hide else self._accepted()
        commit = Commit(
            upto=upto,
            tokens=pack(ids, self.vocabulary),
            check=0,
            seq=self._seq,
            accepted=accepted,
            examined=examined,
            drafted=drafted,
            pending=self._pending if last and not self._hide else 0,
            server_us=self._server_us() if self._seq and not self._hide else 0,
            finish=FINISH.index(self.finish) if last else 0,
        )
        return checked_commit(commit, self.name, self.prefix.at(upto))

    def _server_us(self) -> int:
        return min(int(1e6 * (perf_counter() - self._arrived)), 2**32 - 1)

    def _accepted(self) -> tuple[int, int, int]:
        """Of the latest draft: how many tokens are committed; the same with the first one that was
        rejected; all."""
        if self._latest is None:
            return 0, 0, 0
        base, crc, drafted, nodes = self._latest
        count, above = 0, -1
        if self.prefix.agrees(base, crc):
            for token in self._ids[base - self.prefix.start :]:
                found = nodes.get((above, token))
                if found is None:
                    rejected = any(parent == above for parent, _ in nodes)
                    return count, count + rejected, drafted
                count, above = count + 1, found
        return count, count, drafted


class EdgeStreams:
    """All streams of a server, by name. Streams without a connection are dropped after a while.

    To be made in an event loop; `stop` ends its task.
    """

    def __init__(self, driver: Driver, limits: Limits) -> None:
        self._driver = driver
        self._limits = limits
        self._by_name: dict[bytes, EdgeStream] = {}
        self._tasks: dict[EdgeStream, asyncio.Task[None]] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, stream: EdgeStream) -> None:
        """Keep a stream, and take its pieces."""
        self._by_name[stream.name] = stream
        self._tasks[stream] = asyncio.ensure_future(stream.fill())
        if self._sweeping is None:
            self._sweeping = asyncio.ensure_future(self._sweep())
        ended: dict[str | None, deque[EdgeStream]] = {}
        for one in self._by_name.values():
            if one.finish and one.owner is None:
                ended.setdefault(one.answer.tenant, deque()).append(one)
        # Of the tenant that has the most of them: one tenant must not drop another's.
        for _ in range(sum(map(len, ended.values())) - self._limits.edge_streams):
            self.drop(max(ended.values(), key=len).popleft())

    def find(self, name: bytes, key: bytes, tenant: str | None) -> EdgeStream:
        """The stream of this name.

        Raises: Refused: nobody learns whether a stream exists whose key or tenant is another.
        """
        found = self._by_name.get(name)
        right = found is not None and hmac.compare_digest(found.key, key)
        if found is None or not right or found.answer.tenant != tenant:
            raise Refused(
                404,
                f"the stream {name.hex()} is not known, or its key is wrong; expected one that was "
                f"opened here and lost its connection less than {self._limits.edge_seconds:g} s "
                "ago: open it again with the same seed",
                code="unknown_stream",
            )
        return found

    def attach(self, stream: EdgeStream, owner: object) -> None:
        """Give a stream to a connection; the one before loses it."""
        stream.owner = owner
        stream.changed.set()
        self._driver.edge(lambda waits: waits.connect(stream.answer, True))

    def detach(self, stream: EdgeStream, owner: object) -> None:
        """A connection has lost its stream; nothing happens if another has it."""
        if stream.owner is owner:
            stream.owner, stream.left = None, monotonic()
            self._driver.edge(lambda waits: waits.connect(stream.answer, False))

    def drop(self, stream: EdgeStream) -> None:
        """Forget a stream; an answer that has not ended is cancelled."""
        self._by_name.pop(stream.name, None)
        stream.owner = None
        stream.changed.set()
        self._driver.cancel(stream.answer)
        task = self._tasks.pop(stream, None)
        if task is not None and stream.finish:
            task.cancel()

    def pass_on(self, stream: EdgeStream, draft: ExternalDraft) -> bool:
        """Pass a draft on to the engine's thread. False: too many wait for it already, while it
        computes a long step.

        Mutates: the stream.
        """
        if stream.posted - stream.taken >= _MOST_POSTED:
            return False

        def take(waits: Waits) -> None:
            stream.taken += 1  # by this thread only
            waits.add(stream.answer, draft)

        stream.posted += 1
        self._driver.edge(take)
        return True

    async def stop(self) -> None:
        """Forget all streams."""
        for stream in list(self._by_name.values()):
            self.drop(stream)
        for task in (*self._tasks.values(), self._sweeping):
            if task is not None:
                task.cancel()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._limits.edge_seconds / 4, 5.0))
            now = monotonic()
            for one in list(self._by_name.values()):
                if one.owner is None and now - one.left > self._limits.edge_seconds:
                    self.drop(one)
