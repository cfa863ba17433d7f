"""Who may open an edge stream, and what is said to those who may not."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from foresay.edge.ids import pack, unpack
from foresay.edge.json_frames import Frames
from foresay.edge.messages import VERSION, Close, DraftMessage, Open
from foresay.edge.wire import encode
from foresay.engine.llm import LLM
from foresay.serve.edge import connection
from foresay.serve.keys import Keys
from foresay.serve.limits import Limits
from serve.edge_client import (
    ENDLESS,
    Text,
    agreed,
    begun,
    closed,
    cloud,
    edge_counts,
    edge_server,
    follow,
    nothing_left,
    opened,
    opening,
    refused,
    whole,
)
from serve.running import Running
from serve.test_routes import UPGRADE
from tiny import CONTEXT

ONE, TWO = "the-key-of-one", "the-key-of-two"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = Limits(draft_seconds=0.02, edge_seconds=0.5, head_seconds=0.5, queue=1)
    with edge_server(folder, limits=limits, options={"max_running": 2}) as found:
        yield found


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[Running]:
    keys, limits = Keys.of([(ONE, "one"), (TWO, "two")]), Limits(tenant_answers=2)
    with edge_server(folder, 2, keys=keys, limits=limits) as found:
        yield found


def test_large_frames_are_read_in_a_thread(
    server: Running, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a prompt that is too long is not even unpacked."""
    names: list[str] = []

    def noted(name: str, work: Any, least: int) -> Any:
        def call(*values: Any) -> Any:
            if any(len(one) > least for one in values if isinstance(one, bytes | str)):
                names.append(f"{name} in {threading.current_thread().name.rpartition('_')[0]}")
            return work(*values)

        return call

    read = Frames.read
    monkeypatch.setattr(Frames, "read", noted("read", read, 1 << 16))
    monkeypatch.setattr(connection, "unpack", noted("unpack", unpack, 0))
    body = {"type": "open", "version": VERSION, "model": "", "tokenizer": "", "vocabulary": 257}
    text = json.dumps({**body, "prompt": [1] * 300_000})
    error = asyncio.run(refused(server, text, as_json=True))
    assert error.code == "bad_request" and "the prompt has 300000 tokens" in error.message
    assert names == ["read in foresay-read"]
    names.clear()
    monkeypatch.setattr(connection, "_LARGE", 16)
    monkeypatch.setattr(Frames, "read", noted("read", read, 16))
    asked = opening(server, "a prompt of some length", seed=1, max_tokens=5)
    asyncio.run(agreed(server, plain, asked, lambda _: lambda text: ()))
    assert names == ["read in foresay-read", "unpack in foresay-read"]
    nothing_left(server)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"top_p": 0.0}, "top_p"),
        ({"stop": ("x",) * 17}, "stop"),
        ({"stop": ("x" * 257,)}, "stop"),
        ({"logit_bias": {999: 1.0}}, "logit_bias"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"prompt": [], "max_tokens": 3}, "the prompt is empty"),
        ({"prompt": [1] * CONTEXT, "max_tokens": 1}, f"the prompt has {CONTEXT} tokens"),
        ({"prompt": [1] * 200_000, "max_tokens": 1}, "the prompt has 200000 tokens"),
        ({"prompt": [1] * 10, "max_tokens": CONTEXT}, f"max_tokens is {CONTEXT}"),
        ({"model": "another"}, "'tiny'"),
        ({"tokenizer": b"\1" * 16}, (b"\1" * 16).hex()),
    ],
)
async def test_requests_that_are_not_valid(
    server: Running, changes: dict[str, Any], words: str
) -> None:
    error = await refused(server, opening(server, **{"prompt": "abc", **changes}))
    assert error.code in ("bad_request", "bad_frame") and words in error.message, error
    server.idle()
    assert server.http.get("/health").status_code == 200


async def test_what_fits_exactly(server: Running, plain: LLM) -> None:
    error = await refused(server, Open(VERSION, "", b"", 999, pack([1], 999)))
    assert error.param == "vocabulary" and "999" in error.message and "257" in error.message
    prompt, known = [5, 6] * (CONTEXT // 2 - 1), server.llm.tokenizer_hash
    assert known is not None
    names = {"tokenizer": known, "model": "tiny"}
    asked = opening(server, prompt, max_tokens=2, temperature=0.0, **names)
    await agreed(server, plain, asked, lambda _: lambda text: [text.draft([1, 2])])
    nothing_left(server)


def test_messages_out_of_order(server: Running) -> None:
    asked = opening(server, "abc", max_tokens=1000, ignore_eos=True)
    draft = DraftMessage(1, 3, 0, b"")
    for messages, words in (
        ([draft], "expected OPEN or RESUME"),
        ([Close()], "expected OPEN or RESUME"),
        ([asked, asked], "expected DRAFT or CLOSE"),
        ([b""], "expected"),
        ([b"\xc1"], "expected msgpack"),
        (["{"], "expected"),
        (['"text"'], "expected"),
        ([asked, b"\x00" * 5000], "the frame has 5000 bytes; expected at most 4096"),
        ([asked, encode(DraftMessage(1, 3, 0, pack([300], 512)))], "below 257"),
        ([asked, encode(DraftMessage(1, 3, 0, pack([1], 257), b"\2"))], "parent"),
    ):
        as_json = isinstance(messages[0], str)
        error = asyncio.run(refused(server, *messages, as_json=as_json))
        nothing_left(server, 5)
        assert error.code == "bad_frame" and words in error.message, (messages, error)


async def test_silence_is_not_waited_for(server: Running) -> None:
    async with cloud(server) as line:
        error = await line.error()
    assert error.code == "timeout" and "within 0.5 s" in error.message


async def test_too_many_answers(server: Running) -> None:
    """Two run, and one may wait."""
    asked = opening(server, "abc", **ENDLESS)
    async with cloud(server) as one, cloud(server) as two, cloud(server) as three:
        for line in (one, two, three):
            await opened(line, asked)
        error = await refused(server, asked)
        for line in (one, two, three):
            await line.send(Close())
    assert error.code == "busy" and "may have 3 under way" in error.message
    nothing_left(server)


def test_frames_of_more_than_a_body_are_not_taken(server: Running) -> None:
    async def run() -> int | None:
        async with cloud(server) as line:
            # The beginning of a frame of 5 MiB, from a client: masked.
            line.socket.transport.write(b"\x82\xff" + (5 << 20).to_bytes(8, "big") + bytes(1000))
            await line.ends()
            return line.socket.close_code

    assert asyncio.run(run()) == 1009


def test_pages_of_other_sites_and_names_are_refused(server: Running) -> None:
    async def status(origin: str) -> int:
        try:
            async with cloud(server, Origin=origin):
                return 101
        except InvalidStatus as error:
            body = json.loads(error.response.body or b"{}")
            assert body["error"]["code"] in ("wrong_origin", "wrong_host")
            return error.response.status_code

    async def hosted(host: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /v1/edge HTTP/1.1\r\nHost: {host}\r\n"
        asked = "".join(f"{name}: {value}\r\n" for name, value in UPGRADE.items())
        writer.write(f"{head}{asked}\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        return line

    own, port = server.url.partition("://")[2], int(server.url.rpartition(":")[2])
    assert asyncio.run(status("https://evil.example")) == 403
    assert asyncio.run(status("null")) == 403
    assert asyncio.run(status(f"http://{own}.evil.example")) == 403
    assert asyncio.run(status(f"http://{own}")) == 101
    assert b" 403 " in asyncio.run(hosted("evil.example"))
    assert b" 101 " in asyncio.run(hosted("localhost"))
    nothing_left(server)


def test_keys_come_before_the_upgrade(guarded: Running) -> None:
    async def status(key: str | None) -> int:
        try:
            async with cloud(guarded, key=key):
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    assert asyncio.run(status(None)) == asyncio.run(status("wrong-key-here")) == 401
    assert asyncio.run(status(ONE)) == 101


async def test_the_stream_of_another_tenant_is_not_known(guarded: Running) -> None:
    asked = opening(guarded, "abc", max_tokens=20)
    text = await begun(guarded, asked, until=3, key=ONE)
    error = await refused(guarded, text.resume(), key=TWO)
    assert error.code == "unknown_stream"
    absent = Text(text.opened, text.prompt).resume(stream=bytes(16))
    other = await refused(guarded, absent, key=TWO)
    assert other.message == error.message.replace(text.opened.stream.hex(), "00" * 16)
    await closed(guarded, text, key=ONE)
    nothing_left(guarded)


async def test_a_tenants_streams_count_as_its_answers(guarded: Running) -> None:
    asked = opening(guarded, "abc", **ENDLESS)
    async with cloud(guarded, key=ONE) as one, cloud(guarded, key=ONE) as two:
        await opened(one, asked)
        await opened(two, asked)
        error = await refused(guarded, asked, key=ONE)
        text, _ = await whole(guarded, opening(guarded, "abc", max_tokens=2), key=TWO)
        assert len(text.ids) == 2
        await one.send(Close())
        await two.send(Close())
    assert error.code == "busy" and "one tenant may have 2 under way" in error.message


def test_metrics(folder: Path) -> None:
    gauge = 'foresay_edge_streams{model_name="tiny"}'
    with edge_server(folder) as server:

        async def run() -> None:
            asked = opening(server, "abc", **ENDLESS, pad=64)
            async with cloud(server) as line:
                text = await follow(line, await opened(line, asked), until=2)
                await line.send(text.draft([1, 2, 3]))
                await line.send(text.draft([1], prefix=5))
                assert f"{gauge} 1.0" in await asyncio.to_thread(metrics)
                line.socket.transport.abort()
            await closed(server, text)

        def metrics() -> str:
            return server.http.get("/metrics").text

        asyncio.run(run())
        asyncio.run(refused(server, b"rubbish"))
        nothing_left(server)
        counts = edge_counts(server)
        assert counts["streams"] == counts["resumes"] == counts["errors"] == 1
        assert counts["drafts"] == 2 and counts["drafts_ignored"] == 1
        assert counts["drafted_tokens"] == 3
        assert 50 < counts["bytes_up"] < 1000 and counts["bytes_down"] >= 128
        assert f"{gauge} 0.0" in metrics()
