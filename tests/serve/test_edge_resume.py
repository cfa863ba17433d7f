"""Streams outlive their connections: whoever has the key gets what it lacks, and nobody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from foresay.edge.messages import Close, Commit, Error, Open
from foresay.engine.llm import LLM
from foresay.serve.limits import Limits
from serve.edge_client import (
    Text,
    begun,
    closed,
    cloud,
    edge_server,
    follow,
    nothing_left,
    opened,
    opening,
    refused,
    resumed,
    right,
    streams_of,
    wanted,
)
from serve.running import Running, wait_for


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = Limits(draft_seconds=0.02, edge_seconds=1.0)
    with edge_server(folder, limits=limits) as found:
        yield found


@pytest.fixture
def slow(server: Running) -> Open:
    """It waits after every token for a draft that does not come: above a second in all."""
    return opening(server, "abc abc", temperature=0.8, seed=4, max_tokens=60, wait="block")


async def test_in_the_middle_again_and_again(server: Running, plain: LLM, slow: Open) -> None:
    answer, text = wanted(plain, slow), await begun(server, slow)
    for until in (12, 20, 21):
        await resumed(server, text, until=until)
    await resumed(server, text, right(answer))
    assert text.ids == answer and text.finish == "length"
    nothing_left(server, 5)


async def test_the_answer_comes_at_once_even_without_tokens(server: Running, slow: Open) -> None:
    text = await begun(server, slow)
    async with cloud(server) as line:
        await line.send(text.resume())
        message = await line.receive(0.5)
        assert isinstance(message, Commit) and message.upto >= text.position
        await line.send(Close())
    nothing_left(server, 5)


async def test_after_the_end(server: Running, plain: LLM) -> None:
    asked = opening(server, "abc", temperature=0.8, seed=1, max_tokens=30)
    answer = wanted(plain, asked)
    text = await begun(server, asked, until=30)
    assert text.finish == "length"
    for have in (len(text.prompt), len(text.prompt) + 7, text.position):
        again = Text(text.opened, text.prompt)
        again.ids = text.ids[: have - len(text.prompt)]
        await resumed(server, again, until=31)  # to the end
        assert again.ids == answer and again.finish == "length"
        assert len(again.commits) == 1
    nothing_left(server, 5)


async def test_a_client_that_lost_its_text_gets_it_again(server: Running, slow: Open) -> None:
    text = await begun(server, slow, until=9)
    again = Text(text.opened, text.prompt)
    async with cloud(server) as line:
        await line.send(again.resume())
        await follow(line, again, until=9)
        assert again.ids[:9] == text.ids[:9]
        await line.send(Close())
    nothing_left(server, 5)


async def test_wrong_keys_places_and_prefixes(server: Running, slow: Open) -> None:
    text = await begun(server, slow)
    key, name = bytearray(text.opened.key), bytearray(text.opened.stream)
    key[15] ^= 1
    name[0] ^= 1
    changes: dict[str, Any]
    for changes in ({"key": bytes(key)}, {"stream": bytes(name)}, {"key": bytes(16)}):
        error = await refused(server, text.resume(**changes))
        assert error.code == "unknown_stream" and text.opened.key.hex() not in error.message
        assert "open it again with the same seed" in error.message
    start = len(text.prompt)
    for changes in (
        {"prefix": text.hash() ^ 1},
        {"have": text.position - 1},
        {"have": start - 1, "prefix": text.hash(start - 1)},
        {"have": 0, "prefix": 0},
        {"have": text.position + 1000},
        {"have": 2**31 - 1},
    ):
        error = await refused(server, text.resume(**changes))
        assert error.code == "unknown_prefix"
        assert str(changes.get("have", text.position)) in error.message
    await closed(server, text)  # none of them has harmed it
    nothing_left(server, 5)


def test_a_second_connection_takes_it_from_the_first(
    server: Running, plain: LLM, slow: Open
) -> None:
    async def run() -> Text:
        async with cloud(server) as first, cloud(server) as second:
            text = await follow(first, await opened(first, slow), until=4)
            await second.send(text.resume())
            error = await first.error()
            assert error.code == "resumed" and "another connection" in error.message
            return await follow(second, text)

    assert asyncio.run(run()).ids == wanted(plain, slow)
    nothing_left(server, 5)


def test_the_first_can_neither_close_nor_draft_any_more(
    server: Running, plain: LLM, slow: Open
) -> None:
    """Its messages may have been on their way."""
    answer = wanted(plain, slow)

    async def run() -> Text:
        async with cloud(server) as first, cloud(server) as second:
            text = await follow(first, await opened(first, slow), until=4)
            await second.send(text.resume())
            await follow(second, text, until=len(text.ids) + 1)
            with suppress(ConnectionClosed):
                for _ in range(3):
                    await first.send(text.draft([1, 2, 3]))
                await first.send(Close("too late"))
            return await follow(second, text)

    for _ in range(3):
        text = asyncio.run(run())
        assert text.ids == answer and text.finish == "length"
    nothing_left(server, 5)


async def test_drafts_after_coming_back_are_used(server: Running, plain: LLM, slow: Open) -> None:
    answer = wanted(plain, slow)
    text = await begun(server, slow)
    await resumed(server, text, right(answer))
    assert text.ids == answer
    assert max(commit.accepted for commit in text.commits) >= 4


async def test_too_late(server: Running, slow: Open) -> None:
    text = await begun(server, slow)
    await asyncio.to_thread(wait_for, lambda: streams_of(server) == 0, 5)
    error = await refused(server, text.resume())
    assert error.code == "unknown_stream" and "less than 1 s ago" in error.message
    nothing_left(server)


def test_not_after_close(server: Running, slow: Open) -> None:
    async def run() -> Error:
        async with cloud(server) as line:
            text = await follow(line, await opened(line, slow), until=3)
            await line.send(Close())
            await line.ends()
        return await refused(server, text.resume())

    assert asyncio.run(run()).code == "unknown_stream"


def test_a_stream_without_a_client_is_not_waited_for(folder: Path, plain: LLM) -> None:
    """60 waits of half a second would take 30 s."""
    with edge_server(folder) as server:
        asked = opening(server, "abc", seed=4, max_tokens=60, wait="block", ignore_eos=True)

        async def run() -> Text:
            text = await begun(server, asked, until=1)
            start = time.monotonic()
            await asyncio.to_thread(server.idle)
            assert time.monotonic() - start < 5
            return await resumed(server, text)

        assert asyncio.run(run()).ids == wanted(plain, asked)


async def test_ended_streams_are_kept_up_to_a_number(folder: Path) -> None:
    limits = Limits(edge_streams=3)
    with edge_server(folder, limits=limits) as server:
        asked = opening(server, "abc", max_tokens=2)
        texts = []
        for _ in range(6):
            texts.append(await begun(server, asked, until=2))
            await asyncio.sleep(0.05)
        found = []
        for text in texts:
            async with cloud(server) as line:
                await line.send(text.resume())
                found.append(type(await line.receive()).__name__)
        assert found[:2] == ["Error"] * 2 and found[3:] == ["Commit"] * 3
        assert streams_of(server) <= 4
