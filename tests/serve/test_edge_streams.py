"""One edge stream, and all of them, without a server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.websockets import WebSocketDisconnect

from foresay.draft import Draft
from foresay.drafter import ExternalDraft
from foresay.edge.ids import unpack
from foresay.edge.messages import MAX_NODES, Close, DraftMessage, Error
from foresay.edge.prefix import Prefix, hash_after, hashes_along
from foresay.edge.wire import decode, encode
from foresay.engine.answers import Chunk
from foresay.errors import InputError
from foresay.serve.driver import Driver
from foresay.serve.edge import streams as module
from foresay.serve.edge.connection import EdgeRoute, _Line
from foresay.serve.edge.streams import EdgeStream, EdgeStreams
from foresay.serve.limits import Limits, Refused
from foresay.serve.stream import AnswerStream

PROMPT, VOCABULARY = [1, 2, 3], 1000


def stream_of(ids: list[int], finish: Any = None, window: int = 256) -> EdgeStream:
    """A stream that has these tokens."""

    async def make() -> EdgeStream:
        answer = AnswerStream(1, None)
        stream = EdgeStream(answer, Prefix(PROMPT), VOCABULARY, window)
        task = asyncio.ensure_future(stream.fill())
        answer.put(Chunk(0, "", ids, finish_reason=finish))
        for _ in range(3):
            await asyncio.sleep(0)
        assert task.done() == (finish is not None)
        task.cancel()
        return stream

    return asyncio.run(make())


def message(
    tokens: list[int], seq: int = 1, base: int = 3, before: list[int] | None = None
) -> DraftMessage:
    prefix = hash_after([*PROMPT, *(before or [])])
    draft = Draft.chain(tokens)
    return DraftMessage.of(draft, seq=seq, base=base, prefix=prefix, vocabulary=VOCABULARY)


def test_a_long_answer_comes_in_several_commits() -> None:
    ids = [n % VOCABULARY for n in range(10_000)]
    stream = stream_of(ids, "stop")
    have, found, ends = 3, list[int](), list[str]()
    while have < stream.position:
        commit = decode(encode(stream.commit(have)), side="edge")
        found += unpack(commit.tokens, VOCABULARY).tolist()  # type: ignore[union-attr]
        have = commit.upto  # type: ignore[union-attr]
        ends.append(commit.reason)  # type: ignore[union-attr]
    assert found == ids and ends == ["", "", "stop"]
    assert stream.commit(have).upto == have and stream.commit(have).reason == "stop"
    for wrong in (2, 10_004):
        with pytest.raises(InputError, match=f"have is {wrong}; expected 3"):
            stream.commit(wrong)


def test_accepted_of_the_longest_draft() -> None:
    ids = [n % VOCABULARY for n in range(300)]
    stream = stream_of(ids)
    stream.draft(message(ids[:MAX_NODES]))
    commit = stream.commit(3)
    assert commit.accepted == MAX_NODES
    assert decode(encode(commit), side="edge") == commit
    stream.draft(message([*ids[:9], 999], seq=2))
    assert stream.commit(3).accepted == 9
    stream.draft(message([7], seq=3, before=[5], base=4))  # of another text
    assert stream.commit(3).accepted == 0


def test_accepted_takes_little_time_for_the_largest_tree() -> None:
    """It is found for each commit, in the event loop."""
    ids = [n % VOCABULARY for n in range(300)]
    stream = stream_of(ids)
    stream.draft(message(ids[:MAX_NODES]))
    start = perf_counter()
    for _ in range(100):
        stream._accepted()
    assert perf_counter() - start < 0.2


def test_stale_and_repeated_drafts_are_ignored() -> None:
    stream = stream_of([])
    assert stream.draft(message([5, 6], seq=4)) is not None
    for seq in (1, 3, 4):
        assert stream.draft(message([7], seq=seq)) is None
    assert stream.draft(message([7], seq=2**32 - 1)) is not None
    assert stream.draft(message([8], seq=2**32 - 1)) is None
    assert decode(encode(stream.commit(3)), side="edge").seq == 2**32 - 1  # type: ignore[union-attr]


def test_drafts_ahead_are_known_by_what_they_continue() -> None:
    stream = stream_of([])
    assert stream.draft(message([5, 6], seq=1)) is not None
    assert stream.draft(message([7], seq=2, base=5, before=[5, 6])) is not None
    assert stream.draft(message([8], seq=3, base=4, before=[5])) is not None  # beside 6
    assert stream.draft(message([9], seq=4, base=5, before=[5, 9])) is None
    assert stream.draft(message([9], seq=5, base=6, before=[5, 6])) is None  # another place
    assert stream.draft(message([9], seq=6, base=6, before=[5, 6, 7])) is not None


def test_the_window_bounds_what_is_in_flight() -> None:
    stream = stream_of([], window=8)
    assert stream.draft(message([1] * 9, seq=1)) is None
    assert stream.draft(message([1] * 8, seq=2)) is not None
    assert stream.draft(message([2], seq=3, base=11, before=[1] * 8)) is None


def test_no_number_of_drafts_takes_more_memory() -> None:
    """For one place, while a long step runs; and after the end."""
    stream = stream_of([])
    draw = np.random.default_rng(1)
    for seq in range(1, 400):
        stream._room = 256
        stream.draft(message(draw.integers(0, VOCABULARY, 200).tolist(), seq=seq))
        assert len(stream._ends) <= module._MOST_ENDS
    last = stream_of([5], "stop")
    for seq in range(1, 10):
        assert last.draft(message([6, 7], seq=seq, base=4, before=[5])) is None
    assert not last._ends


def test_more_drafts_than_a_client_has_reason_to_send_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before their nodes are hashed; the text's growth makes room again."""
    stream, hashed = stream_of([]), [0]

    def counted(draft: Draft, before: int) -> list[int]:
        hashed[0] += len(draft)
        return hashes_along(draft, before)

    monkeypatch.setattr(module, "hashes_along", counted)
    draw = np.random.default_rng(1)
    drafts = [draw.integers(0, VOCABULARY, 200).tolist() for _ in range(400)]
    taken = [stream.draft(message(one, seq)) is not None for seq, one in enumerate(drafts, 1)]
    assert taken[:16] == [True] * 16 and not any(taken[25:])
    assert hashed[0] <= 16 * 256 + 200 and [stream.flooded] == [True]

    async def grow() -> None:
        filling = asyncio.ensure_future(stream.fill())
        stream.answer.put(Chunk(0, "", [5]))
        while stream.position != 4:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        filling.cancel()

    asyncio.run(grow())
    assert [stream.flooded] == [False]
    assert stream.draft(message([7] * 255, seq=500, base=4, before=[5])) is not None


async def test_a_whole_window_after_each_commit_is_never_too_much() -> None:
    """Also if the client hears of commits late, and answers several at once."""
    answer = AnswerStream(1, None)
    stream = EdgeStream(answer, Prefix(PROMPT), VOCABULARY, 256)
    filling = asyncio.ensure_future(stream.fill())
    ids, seq = list[int](), 0
    for number in range(60):
        answer.put(Chunk(0, "", [number]))
        ids.append(number)
        while stream.position < 3 + len(ids):
            await asyncio.sleep(0)
        if number % 12 == 11:
            for _ in range(12 * 32):  # each all wrong, in messages of 8
                seq += 1
                one = message([seq % VOCABULARY] * 8, seq, 3 + len(ids), ids)
                assert stream.draft(one) is not None
    filling.cancel()


class Posting:
    """A driver whose thread is busy."""

    def __init__(self) -> None:
        self.posted: list[Callable[[Any], None]] = []

    def edge(self, call: Callable[[Any], None]) -> None:
        self.posted.append(call)


def test_drafts_do_not_pile_up_before_a_busy_engine() -> None:
    driver: Any = Posting()
    streams, stream = EdgeStreams(driver, Limits()), stream_of([])
    draft = ExternalDraft(3, 0, Draft.chain([1]))
    assert [streams.pass_on(stream, draft) for _ in range(1000)].count(True) == 64
    assert len(driver.posted) == 64
    told: list[Any] = []
    waits: Any = SimpleNamespace(add=lambda *values: told.append(values))
    for call in driver.posted:
        call(waits)
    assert len(told) == 64 and streams.pass_on(stream, draft)


def test_ended_streams_are_dropped_of_the_tenant_that_has_the_most() -> None:
    async def run() -> list[tuple[str | None, int]]:
        driver: Any = SimpleNamespace(cancel=lambda answer: None)
        streams, order = EdgeStreams(driver, Limits(edge_streams=4)), dict[Any, int]()
        for number, tenant in enumerate(["one", "two", *["one"] * 20, "three"]):
            answer = AnswerStream(1, tenant)
            stream = EdgeStream(answer, Prefix(PROMPT), VOCABULARY, 256)
            order[stream.name] = number
            streams.add(stream)
            stream.finish = "stop"
        found = [(s.answer.tenant, order[name]) for name, s in streams._by_name.items()]
        await streams.stop()
        return found

    # The latest one had not ended when it was added.
    left = [("two", 1), ("one", 19), ("one", 20), ("one", 21), ("three", 22)]
    assert asyncio.run(run()) == left


def test_sending_after_the_close_is_a_lost_connection() -> None:
    """At stopping the server closes sockets by itself; the log had this as a failure."""

    async def closed(frame: bytes) -> None:
        raise RuntimeError("Unexpected ASGI message 'websocket.send', after sending a close")

    socket: Any = SimpleNamespace(send_bytes=closed, client_state=None)
    line = _Line(socket, Counter(), Limits())
    with pytest.raises(WebSocketDisconnect):
        asyncio.run(line.send(Close()))
    asyncio.run(line.end(Error("internal", "x")))


def test_a_connection_that_lost_its_stream_cannot_end_it() -> None:
    """Its CLOSE may have been on the way when another resumed the stream."""
    dropped: list[Any] = []
    route, stream = EdgeRoute.__new__(EdgeRoute), stream_of([])
    streams: Any = SimpleNamespace(drop=dropped.append)
    route.streams, stream.owner = streams, "another connection"

    async def receive() -> Close:
        return Close()

    line: Any = SimpleNamespace(receive=receive)
    with pytest.raises(Refused, match="another connection"):
        asyncio.run(route._read(line, stream))
    assert not dropped
    stream.owner = line
    asyncio.run(route._read(line, stream))
    assert dropped == [stream]


class Asked:
    """A request, as far as a driver looks at it."""

    def __init__(self, name: str) -> None:
        self.name, self.paused = name, name.startswith("paused")


def test_a_step_that_fails_for_one_that_waits_spares_the_paused() -> None:
    requests = [Asked(name) for name in ("paused", "paused before it", "free", "behind it")]
    driver: Any = Driver.__new__(Driver)
    scheduler = SimpleNamespace(running=requests[:1], waiting=requests[1:])
    driver._engine = SimpleNamespace(scheduler=scheduler)
    driver._states = {request: request.name for request in requests}
    assert driver._victims() == ["free"]
    runs, ended = Asked("runs"), Asked("ended in the step")
    scheduler.running.append(runs)
    driver._states[runs] = runs.name
    assert driver._victims() == ["runs"]
    driver._states[ended] = ended.name
    assert driver._victims() == ["runs", "ended in the step"]


def test_what_is_posted_without_end_does_not_keep_steps_back() -> None:
    driver: Any = Driver.__new__(Driver)
    driver._inbox, driver._stopped, driver._blocked = SimpleQueue(), False, False
    driver._engine = SimpleNamespace(busy=True)
    driver._waits = SimpleNamespace(expire=lambda: None)
    calls = [0]

    def post() -> None:
        calls[0] += 1
        if not driver._stopped and calls[0] < 1000:
            driver._inbox.put(post)

    def step() -> None:
        driver._stopped = True

    driver._step = step
    post()
    driver._run()
    assert calls[0] < 10
