"""Faults around edge streams: they cost time, or end one stream, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from foresay.edge.messages import WAITS, Close, Commit
from foresay.engine.llm import LLM
from foresay.engine.pages import PAGE
from foresay.serve.limits import Limits
from foresay.serve.server import WebSocket
from serve.edge_client import (
    ENDLESS,
    Text,
    cloud,
    edge_server,
    follow,
    nothing_left,
    opened,
    opening,
    refused,
    right,
    streams_of,
    wanted,
    whole,
)
from serve.running import MEMORY, Running, running, wait_for
from tiny import one_thread


def tasks_of(server: Running) -> list[str]:
    """The names of the coroutines that run in the server's event loop."""
    loop, found = server.server._routes.driver._loop, list[str]()
    done = threading.Event()

    def look() -> None:
        found.extend(str(task.get_coro().__qualname__) for task in asyncio.all_tasks(loop))  # type: ignore[union-attr]
        done.set()

    assert loop is not None
    loop.call_soon_threadsafe(look)
    assert done.wait(5)
    return sorted(found)


def test_no_task_remains(folder: Path) -> None:
    with edge_server(folder, limits=Limits(edge_seconds=0.2)) as server:

        async def each() -> None:
            for how in ("close", "abort", "rubbish", "end"):
                async with cloud(server) as line:
                    more = {"max_tokens": 5} if how == "end" else ENDLESS
                    await follow(line, await opened(line, opening(server, "a", **more)), until=2)
                    if how == "close":
                        await line.send(Close())
                    elif how == "rubbish":
                        await line.socket.send(b"rubbish")
                    elif how == "abort":
                        line.socket.transport.abort()

        server.http.get("/health")
        before = tasks_of(server)
        asyncio.run(each())
        nothing_left(server)
        wait_for(lambda: len(tasks_of(server)) <= len(before) + 1, 5)
        assert set(tasks_of(server)) - set(before) == {"EdgeStreams._sweep"}


async def test_a_failing_step_ends_what_it_held(
    folder: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream that waits for a draft took no part in it."""
    with edge_server(folder, limits=Limits(draft_seconds=5.0)) as server:
        forward, fails = server.llm.target.forward, threading.Event()

        def broken(parts: Any, *more: Any, **named: Any) -> Any:
            if fails.is_set():
                raise RuntimeError("the machine is on fire")
            return forward(parts, *more, **named)

        monkeypatch.setattr(server.llm.target, "forward", broken)
        asked = opening(server, "abc", seed=3, temperature=0.8, max_tokens=20, wait="block")
        answer = wanted(plain, asked)
        async with cloud(server) as line, cloud(server) as other:
            text = await follow(line, await opened(line, asked), until=1)
            await asyncio.sleep(0.1)
            assert [r.paused for r in server.llm.engine.scheduler.running] == [True]
            fails.set()
            doomed = await follow(other, await opened(other, opening(server, "x")))
            fails.clear()
            text, doomed = await follow(line, text, right(answer)), doomed
        assert doomed.ids == [] and doomed.finish == "error"
        assert text.ids == answer and text.finish == "length"
        assert "on fire" in caplog.text
        server.idle()


def test_preempted_streams_write_the_same(folder: Path, plain: LLM) -> None:
    with edge_server(folder) as probe:
        page = PAGE * probe.llm.target.bytes_per_token
    limits = Limits(draft_seconds=0.02, edge_seconds=0.3)
    with edge_server(folder, limits=limits, options={"memory": 6 * page}) as server:
        how: dict[str, Any] = {"temperature": 0.8, "max_tokens": 100}
        asked = [
            opening(server, f"{n} and so on", seed=n, wait=WAITS[n % 3], **how) for n in range(6)
        ]
        answers = [wanted(plain, one) for one in asked]

        async def run() -> list[Text]:
            found = await asyncio.gather(
                *(whole(server, a, right(w)) for a, w in zip(asked, answers, strict=True))
            )
            return [text for text, _ in found]

        assert [text.ids for text in asyncio.run(run())] == answers
        preempted = server.server._routes.metrics.registry.get_sample_value(
            "vllm:num_preemptions_total", {"model_name": "tiny", "engine": "0"}
        )
        assert preempted and preempted > 0
        nothing_left(server)
        too_long = opening(server, "abc", max_tokens=6 * PAGE)
        assert "expected at most" in asyncio.run(refused(server, too_long)).message
        nothing_left(server)


def test_who_waits_for_a_draft_costs_no_steps(
    folder: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine must not spin meanwhile."""
    limits = Limits(draft_seconds=1.0)
    with edge_server(folder, limits=limits, options={"max_running": 1}) as server:
        step, steps = server.llm.engine.step, [0]

        def counted() -> Any:
            steps[0] += 1
            return step()

        monkeypatch.setattr(server.llm.engine, "step", counted)
        asked = opening(server, "abc", seed=3, temperature=0.8, max_tokens=9, wait="block")
        answer = wanted(plain, asked)

        async def run() -> Text:
            async with cloud(server) as line:
                text = await follow(line, await opened(line, asked), until=1)
                await asyncio.sleep(0.5)
                assert steps[0] < 20
                return await follow(line, text, right(answer))

        assert asyncio.run(run()).ids == answer
        assert steps[0] < 40
        server.idle()


async def test_who_waits_for_drafts_keeps_nobody_out(folder: Path, plain: LLM) -> None:
    """All places are of `block` streams whose drafts are wrong and come late."""
    with edge_server(folder, options={"max_running": 2}) as server:
        asked = [
            opening(server, [65, n], seed=n, max_tokens=24, wait="block", ignore_eos=True)
            for n in range(2)
        ]

        async def slow(one: Any, done: asyncio.Event) -> Text:
            async with cloud(server) as line:
                text = await opened(line, one)
                while not text.finish:
                    try:
                        message = await line.receive(0.02 if done.is_set() else 0.1)
                        assert isinstance(message, Commit)
                        text.take(message)
                    except asyncio.TimeoutError:  # it waits for a draft
                        await asyncio.sleep(0 if done.is_set() else 0.25)
                        await line.send(text.draft([0]))
                return text

        done = asyncio.Event()
        streams = [asyncio.ensure_future(slow(one, done)) for one in asked]
        await asyncio.sleep(0.7)
        start = time.monotonic()
        body = {"prompt": "q", "max_tokens": 10}
        told = await asyncio.to_thread(server.post, "/v1/completions", body)
        took = time.monotonic() - start
        assert told.status_code == 200
        done.set()
        took, texts = took, [await one for one in streams]
        assert took < 5
        assert [text.ids for text in texts] == [wanted(plain, one) for one in asked]
        server.idle()


def test_a_server_without_drafter_does_not_wait(folder: Path, plain: LLM) -> None:
    llm = LLM(folder, None, dtype="float32", memory=MEMORY)
    with one_thread(), running(llm, None) as server:
        asked = opening(server, "abc", seed=3, temperature=0.8, max_tokens=30, wait="block")
        answer, start = wanted(plain, asked), time.monotonic()
        text, _ = asyncio.run(whole(server, asked, right(answer)))
        assert text.ids == answer and time.monotonic() - start < 5


async def test_a_reader_that_does_not_read_is_cut_off(folder: Path) -> None:
    """16 KiB for each token of 3000: more than any buffer has. It holds nothing after a while."""
    limits = Limits(edge_seconds=0.5)
    with edge_server(folder, limits=limits) as server:
        async with cloud(server) as line:
            asked = opening(server, "abc", pad=16384, wait="free-run", **ENDLESS)
            await opened(line, asked)
            # This blocks the client's event loop, so that nothing is read. The server cuts it
            # off long before the answer ends, or its pings are missed, after 40 s.
            nothing_left(server, 15)
            line.socket.transport.abort()
        wait_for(lambda: not server.server.server_state.tasks, 20)


async def test_draining_finishes_streams_and_refuses_new_ones(folder: Path, plain: LLM) -> None:
    limits = Limits(draft_seconds=0.02)
    with edge_server(folder, limits=limits) as server:
        asked = opening(server, "abc", seed=3, temperature=0.8, max_tokens=50, wait="block")
        loop = server.server._routes.driver._loop
        assert loop is not None
        async with cloud(server) as line, cloud(server) as late:
            text = await follow(line, await opened(line, asked), until=3)
            loop.call_soon_threadsafe(server.server.drain)
            await asyncio.sleep(0.05)
            await late.send(asked)
            error = await late.error()
            assert error.code == "draining" and "stopping" in error.message
            text = await follow(line, text)
        assert text.ids == wanted(plain, asked) and text.finish == "length"


async def test_stopping_at_once_cancels(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with edge_server(folder, limits=Limits(draft_seconds=0.02)) as server:
        loop = server.server._routes.driver._loop
        assert loop is not None
        async with cloud(server) as line:
            asked = opening(server, "abc", wait="block", **ENDLESS)
            await follow(line, await opened(line, asked), until=3)
            loop.call_soon_threadsafe(server.server.drain)
            loop.call_soon_threadsafe(server.server.drain)
            last = await line.ends()
    assert all(isinstance(message, Commit) for message in last)
    assert "Exception in ASGI" not in caplog.text and "failed" not in caplog.text


async def test_a_flood_of_drafts_keeps_nobody_from_writing(folder: Path, plain: LLM) -> None:
    """The largest drafts that there are, as fast as they can be sent."""
    with edge_server(folder, limits=Limits(draft_seconds=0.02, edge_seconds=0.3)) as server:
        asked = opening(server, "abc", seed=3, temperature=0.8, wait="block", **ENDLESS)

        async def flood(line: Any, text: Text, stop: asyncio.Event) -> int:
            """Drafts for the text as it is, all of them new and wrong."""
            sent, reading = 0, asyncio.ensure_future(read(line, text))
            while not stop.is_set():
                await line.send(text.draft([(sent + at * at) % 256 for at in range(255)]))
                sent += 1
                await asyncio.sleep(0)
            reading.cancel()
            return sent

        async def read(line: Any, text: Text) -> None:
            while True:
                text.take(await line.receive())

        stop = asyncio.Event()
        async with cloud(server) as line:
            text = await opened(line, asked)
            flooding = asyncio.ensure_future(flood(line, text, stop))
            await asyncio.sleep(0.2)
            body = {"prompt": "q w", "seed": 1, "max_tokens": 30, "return_token_ids": True}
            start = time.monotonic()
            told = await asyncio.to_thread(server.post, "/v1/completions", body)
            took = time.monotonic() - start
            stop.set()
            stream = next(iter(server.server._routes.edge.streams._by_name.values()))
            assert stream.posted - stream.taken <= 64 and len(stream._ends) <= 1024
            sent = await flooding
            line.socket.transport.abort()
        assert sent > 20 and took < 6 and told.status_code == 200
        nothing_left(server, 20)
        choice = json.loads(told.content)["choices"][0]
        assert len(choice["token_ids"]) == 30
        assert streams_of(server) == 0


async def test_the_server_can_stop_while_a_client_says_goodbye(folder: Path) -> None:
    with edge_server(folder, limits=Limits(edge_seconds=0.2)) as server:
        loop = server.server._routes.driver._loop
        assert loop is not None

        async def goodbye() -> bool:
            (one,) = [
                each
                for each in server.server.server_state.connections
                if isinstance(each, WebSocket)
            ]
            one.data_received(b"\x88\x82\x00\x00\x00\x00\x03\xe8")  # a masked close frame, 1000
            one.shutdown()
            return one.transport.is_closing()

        async with cloud(server) as line:
            await opened(line, opening(server, "a", **ENDLESS))
            told = asyncio.run_coroutine_threadsafe(goodbye(), loop)
            assert await asyncio.wrap_future(told)
        nothing_left(server)
