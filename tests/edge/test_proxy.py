"""The emulated link: late, in order, complete; and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.bench.proxy import LOOPBACK, EmulatedLink, Proxy, in_thread, over
from foresay.errors import InputError

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@asynccontextmanager
async def served(serve: Serve = echo) -> AsyncIterator[int]:
    """The port of a server."""
    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@asynccontextmanager
async def through(
    link: EmulatedLink,
) -> AsyncIterator[tuple[Proxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server through a proxy."""
    async with served() as port:
        async with Proxy(port, over(link)) as proxy:
            reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
            try:
                yield proxy, reader, writer
            finally:
                writer.close()
        assert proxy.open == 0


async def talk(port: int, text: bytes) -> bytes:
    """What comes back."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(text)
    writer.write_eof()
    found = await reader.read()
    writer.close()
    return found


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends with nothing said, or is reset."""
    with suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), 5) == b""
    return True


async def no_task_is_left() -> None:
    for _ in range(100):
        if asyncio.all_tasks() == {asyncio.current_task()}:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(asyncio.all_tasks())


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=5000), max_size=12),
    link=st.builds(
        EmulatedLink,
        rtt=st.sampled_from([0, 0.002, 0.01]),
        jitter=st.sampled_from([0, 0.004]),
        loss=st.just(0.0),
        bandwidth=st.sampled_from([None, 2e7]),
        seed=st.integers(0, 99),
    ),
)
def test_every_byte_arrives_in_order(chunks: list[bytes], link: EmulatedLink) -> None:
    async def run() -> None:
        async with through(link) as (proxy, reader, writer):
            for chunk in chunks:
                writer.write(chunk)
                await writer.drain()
            writer.write_eof()  # which passes, too: the echo ends
            assert await asyncio.wait_for(reader.read(), 20) == b"".join(chunks)
            assert proxy.up == proxy.down == sum(map(len, chunks))
        await no_task_is_left()

    asyncio.run(run())


@pytest.mark.parametrize("rtt", [0.02, 0.06])
async def test_a_round_trip_takes_its_time(rtt: float) -> None:
    took = []
    async with through(EmulatedLink(rtt=rtt)) as (_, reader, writer):
        for _ in range(10):
            began = time.perf_counter()
            writer.write(b"ping")
            await reader.readexactly(4)
            took.append(time.perf_counter() - began)
    assert min(took) >= rtt
    assert min(took) < rtt + 0.01  # of ten, on a machine with other work


def test_bytes_that_are_on_their_way_do_not_wait_for_each_other() -> None:
    async def run() -> float:
        async with through(EmulatedLink(rtt=0.1)) as (_, reader, writer):
            began = time.perf_counter()
            for _ in range(20):
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.002)
            await reader.readexactly(20)
            return time.perf_counter() - began

    assert asyncio.run(run()) < 0.1 + 20 * 0.002 + 0.15  # not twenty times 0.1


async def test_bandwidth() -> None:
    async with through(EmulatedLink(bandwidth=8e6)) as (_, reader, writer):
        began = time.perf_counter()
        writer.write(bytes(200_000))
        await reader.readexactly(200_000)
        took = time.perf_counter() - began
    assert 0.2 <= took < 1.0  # 1 MB/s each way, which overlap


def test_more_than_a_link_holds_makes_the_sender_wait() -> None:
    async def run() -> int:
        async with through(EmulatedLink(rtt=20.0)) as (proxy, _, writer):
            sent = 0
            try:
                while sent < 64 << 20:
                    writer.write(bytes(1 << 20))
                    sent += 1 << 20
                    await asyncio.wait_for(writer.drain(), 0.5)
            except asyncio.TimeoutError:
                pass
            assert proxy.up == 0
            return sent

    assert asyncio.run(run()) < 32 << 20


def schedule(link: EmulatedLink, count: int = 2000, way: str = "up") -> list[float]:
    """When segments arrive that are sent a millisecond apart."""
    made = link.schedule(way, 0)  # type: ignore[arg-type]
    return [made.due(at / 1e3, 100) for at in range(count)]


def test_the_schedule_keeps_the_order_and_is_the_same_again() -> None:
    link = EmulatedLink(rtt=0.05, jitter=0.02, loss=0.02, seed=3)
    due = schedule(link)
    assert all(a <= b for a, b in pairwise(due))
    assert due == schedule(link)
    assert due != schedule(link, way="down")
    assert due != schedule(EmulatedLink(rtt=0.05, jitter=0.02, loss=0.02, seed=4))
    assert all(when - at / 1e3 >= 0.005 for at, when in enumerate(due))


def test_jitter_is_around_the_delay() -> None:
    made = EmulatedLink(rtt=0.05, jitter=0.02, seed=1).schedule("up", 0)
    delays = [made.due(float(at), 100) - at for at in range(2000)]  # far apart
    assert 0.005 <= min(delays) < 0.007 and 0.043 < max(delays) <= 0.045
    assert abs(sum(delays) / 2000 - 0.025) < 0.001


def test_a_lost_segment_delays_what_follows() -> None:
    link = EmulatedLink(rtt=0.02, loss=0.01, seed=5)
    made = link.schedule("up", 0)
    late = [made.due(at / 1e3, 100) - at / 1e3 for at in range(5000)]
    assert link.retransmission == 0.2
    assert made.lost == pytest.approx(50, abs=25)
    at = next(n for n, delay in enumerate(late) if delay > 0.02)
    assert late[at] == pytest.approx(0.01 + 0.2)
    assert late[at + 100] == pytest.approx(0.01 + 0.1)  # still behind it
    assert EmulatedLink(rtt=0.3).retransmission == 0.6


def test_a_lost_segment_on_a_real_connection() -> None:
    async def run() -> float:
        async with through(EmulatedLink(loss=0.9, seed=1)) as (_, reader, writer):
            began = time.perf_counter()
            writer.write(b"ping")
            await asyncio.sleep(0)
            took = time.perf_counter() - began
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(reader.readexactly(4), 0.15)
            return took

    assert asyncio.run(run()) < 0.1


async def test_a_client_that_ends_ends_the_connection() -> None:
    async with through(EmulatedLink(rtt=0.01)) as (proxy, reader, writer):
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        writer.close()
        for _ in range(200):
            if not proxy.open:
                break
            await asyncio.sleep(0.01)
        assert proxy.open == 0
    await no_task_is_left()


async def test_leaving_the_proxy_cuts_what_is_open() -> None:
    async with through(EmulatedLink(rtt=30.0)) as (proxy, reader, writer):
        writer.write(b"never arrives")
        await asyncio.sleep(0.02)
        proxy.cut()
        assert await is_cut(reader)
    await no_task_is_left()


async def test_a_connection_that_is_cut_before_it_begins() -> None:
    async with Proxy(1) as proxy:
        ready = asyncio.Event()
        take = proxy._take

        async def cut_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            take(reader, writer)
            proxy.cut()
            ready.set()

        async with served(cut_at_once) as port:
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            await ready.wait()
            assert await is_cut(reader)
            writer.close()


async def test_no_server_is_a_cut_connection() -> None:
    async with served() as port:
        pass
    async with Proxy(port) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        assert await is_cut(reader)
        writer.close()
    await no_task_is_left()


async def test_in_a_thread() -> None:
    before = threading.active_count()
    async with served() as port:
        with in_thread(Proxy(port)) as proxy:
            assert await talk(proxy.port, b"hello") == b"hello"
    assert threading.active_count() == before


async def test_as_a_process() -> None:
    async with served() as port:
        command = [sys.executable, "-m", "foresay.bench.proxy", "--to", str(port), "--rtt", "0.02"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            own, began = json.loads(process.stdout.readline())["port"], time.perf_counter()
            assert await talk(own, b"hello") == b"hello"
            assert time.perf_counter() - began >= 0.02
            process.stdin.write("\n")
            process.stdin.flush()
            said = json.loads(process.stdout.readline())
            assert said == {"up": 5, "down": 5, "connections": 1}
            process.stdin.close()
            assert process.wait(10) == 0


@pytest.mark.parametrize(
    "wrong", [{"rtt": -1}, {"jitter": float("nan")}, {"loss": 1}, {"bandwidth": 0}]
)
def test_links_that_cannot_be(wrong: dict[str, float]) -> None:
    name, value = next(iter(wrong.items()))
    with pytest.raises(InputError, match=f"{name} is {value}"):
        EmulatedLink(**wrong)  # type: ignore[arg-type]


async def test_what_a_random_link_does_to_many_connections() -> None:
    draw = random.Random(1)
    texts = [draw.randbytes(draw.randint(1, 20_000)) for _ in range(40)]
    link = over(EmulatedLink(rtt=0.01, jitter=0.01, loss=0.05))
    async with served() as port, Proxy(port, link) as proxy:
        assert await asyncio.gather(*(talk(proxy.port, text) for text in texts)) == texts
        assert len(proxy.connections) == 40
    await no_task_is_left()
