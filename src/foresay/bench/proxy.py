"""A TCP proxy on loopback that behaves like a slower network. It needs no rights and no model.

    async with Proxy(port, over(EmulatedLink(rtt=0.02))) as proxy:
        ...  # connect to proxy.port instead of port

Bytes arrive in order and complete, later. A lost segment is shown as TCP shows it: what follows
waits for the retransmission. `edge.chaos` breaks connections.

    python -m foresay.bench.proxy --to PORT [--rtt 0.02] [--jitter 0] [--loss 0] [--bandwidth BITS]

prints {"port": …}, answers each line on stdin with {"up", "down", "connections"}: the bytes and
connections so far, and ends with its stdin.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import selectors
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias

from foresay.errors import InputError

__all__ = [
    "LOOPBACK",
    "Carry",
    "Connection",
    "EmulatedLink",
    "Proxy",
    "Schedule",
    "Way",
    "in_thread",
    "link_of",
    "over",
    "straight",
]

LOOPBACK = "127.0.0.1"
SEGMENT = 1448
"""Bytes of a TCP segment on Ethernet."""
_IN_FLIGHT = 4 << 20  # bytes one way, before the proxy stops to read
_READ = 1 << 16

Way: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class EmulatedLink:
    """How a network behaves.

    rtt        seconds there and back; each way takes half of it
    jitter     seconds: a segment takes up to this time longer or shorter, evenly drawn
    loss       the chance that a segment is lost and sent again
    bandwidth  bits per second of each way; None: without a limit
    seed       of jitter and loss

    Raises: InputError when constructed.
    """

    rtt: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    bandwidth: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rtt", "jitter"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                raise InputError(f"{name} is {value!r}; expected seconds, 0 or more")
        if not 0 <= self.loss < 1:
            raise InputError(f"loss is {self.loss!r}; expected a chance from 0 to below 1")
        if self.bandwidth is not None and not (0 < self.bandwidth < math.inf):
            raise InputError(f"bandwidth is {self.bandwidth!r}; expected bits per second, above 0")

    @property
    def retransmission(self) -> float:
        """Seconds until a lost segment is sent again, as Linux: 200 ms or more, two round trips."""
        return max(0.2, 2 * self.rtt)

    def schedule(self, way: Way, number: int) -> Schedule:
        """When the segments of a connection arrive; the same for the same link, way and number."""
        return Schedule(self, random.Random(f"{self.seed} {way} {number}"))


class Schedule:
    """When the segments of one way arrive. It reads no clock."""

    def __init__(self, link: EmulatedLink, draw: random.Random) -> None:
        self._link, self._draw = link, draw
        self._free = 0.0  # when the line has sent all before
        self._last = 0.0  # when the last one arrives
        self.lost = 0

    def due(self, now: float, size: int) -> float:
        """When a segment of `size` bytes arrives that is sent now; never before an earlier one.

        It changes the schedule.
        """
        link = self._link
        if link.bandwidth is not None:
            self._free = max(now, self._free) + 8 * size / link.bandwidth
            now = self._free
        delay = link.rtt / 2
        if link.jitter:
            delay = max(0.0, delay + link.jitter * self._draw.uniform(-1, 1))
        while link.loss and self._draw.random() < link.loss:
            self.lost += 1
            delay += link.retransmission
        self._last = max(self._last, now + delay)
        return self._last


@dataclass(slots=True)
class Connection:
    """One connection through a proxy: its number from 0, and the bytes that arrived each way."""

    number: int
    up: int = 0
    down: int = 0

    def note(self, way: Way, count: int) -> None:
        if way == "up":
            self.up += count
        else:
            self.down += count


Carry: TypeAlias = Callable[
    [asyncio.StreamReader, asyncio.StreamWriter, Way, Connection], Awaitable[None]
]
"""Carries one way of a connection to its end. A ConnectionError ends the connection at once."""


async def straight(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, connection: Connection
) -> None:
    """A Carry that adds nothing."""
    while data := await reader.read(_READ):
        connection.note(way, len(data))
        writer.write(data)
        await writer.drain()
    writer.write_eof()


def over(link: EmulatedLink) -> Carry:
    """A Carry over the link."""
    if link == EmulatedLink(seed=link.seed):
        return straight

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, connection: Connection
    ) -> None:
        clock, schedule = asyncio.get_running_loop().time, link.schedule(way, connection.number)
        waiting: deque[tuple[float, bytes | Exception]] = deque()  # empty bytes: the end
        changed = asyncio.Event()
        held = 0

        async def receive() -> None:
            nonlocal held
            data = b"-"
            while data:
                try:
                    data = await reader.read(_READ)
                except OSError as error:
                    waiting.append((0.0, error))
                    data = b""
                else:
                    for at in range(0, max(1, len(data)), SEGMENT):
                        segment = data[at : at + SEGMENT]
                        waiting.append((schedule.due(clock(), len(segment)), segment))
                held += len(data)
                changed.set()
                while held >= _IN_FLIGHT:
                    changed.clear()
                    await changed.wait()

        receiving = asyncio.ensure_future(receive())
        try:
            while True:
                while not waiting:
                    changed.clear()
                    await changed.wait()
                due, data = waiting.popleft()
                if isinstance(data, Exception):
                    raise data
                if (rest := due - clock()) > 0:
                    await asyncio.sleep(rest)
                if not data:
                    writer.write_eof()
                    return
                connection.note(way, len(data))
                writer.write(data)
                held -= len(data)
                changed.set()
                await writer.drain()
        finally:
            receiving.cancel()

    return carry


class Proxy:
    """Takes connections on a free port of loopback and carries each to another port of it.

    target       that port; a change counts for later connections
    port         its own, once it is entered
    connections  all so far, in order

    When it is left, all connections are cut and all tasks have ended. Raises: OSError if loopback
    has no port left.
    """

    def __init__(self, target: int, carry: Carry = straight) -> None:
        self.target = target
        self.port = 0
        self.connections: list[Connection] = []
        self._carry = carry
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def open(self) -> int:
        """Connections that have not ended."""
        return len(self._tasks)

    @property
    def up(self) -> int:
        """Bytes that arrived at the target."""
        return sum(one.up for one in self.connections)

    @property
    def down(self) -> int:
        """Bytes that arrived at the clients."""
        return sum(one.down for one in self.connections)

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._take, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        await self._server.wait_closed()

    def cut(self) -> None:
        """End every connection at once; new ones are taken."""
        for task in self._tasks:
            task.cancel()

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also if it is cut before it begins

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(len(self.connections))
        self.connections.append(connection)
        writers, ways = [writer], list[asyncio.Future[None]]()
        broken = True
        try:
            there_reader, there = await asyncio.open_connection(LOOPBACK, self.target)
            writers.append(there)
            ways.append(asyncio.ensure_future(self._carry(reader, there, "up", connection)))
            ways.append(
                asyncio.ensure_future(self._carry(there_reader, writer, "down", connection))
            )
            await asyncio.wait(ways, return_when="FIRST_EXCEPTION")
            broken = any(not way.done() or way.exception() is not None for way in ways)
        except OSError:
            pass  # there is no server
        finally:  # which a second cancellation must not find half done
            for way in ways:
                way.cancel()
            for one in writers:
                if broken:
                    one.transport.abort()
                one.close()
        for one in writers:
            with suppress(OSError):
                await one.wait_closed()
        for error in await asyncio.gather(*ways, return_exceptions=True):
            if isinstance(error, Exception) and not isinstance(error, OSError):
                raise error


@contextmanager
def in_thread(proxy: Proxy) -> Iterator[Proxy]:
    """The proxy in a thread with an event loop of its own, while the body runs."""
    ready, loop = threading.Event(), asyncio.SelectorEventLoop(selectors.SelectSelector())
    ended = asyncio.Event()

    failed: list[OSError] = []

    async def run() -> None:
        try:
            async with proxy:
                ready.set()
                await ended.wait()
        except OSError as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="proxy")
    thread.start()
    try:
        ready.wait()
        if failed:
            raise failed[0]
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def link_of(arguments: Sequence[str]) -> tuple[int, EmulatedLink]:
    """The port and the link that the command above is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=int, required=True)
    for name in ("rtt", "jitter", "loss"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--bandwidth", type=float)
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args(arguments))
    return given.pop("to"), EmulatedLink(**given)


def main() -> None:
    """The command above. Delays are waited for with select, to the microsecond: with epoll they
    would end at the next millisecond."""
    port, link = link_of(sys.argv[1:])
    with in_thread(Proxy(port, over(link))) as proxy:
        print(json.dumps({"port": proxy.port}), flush=True)
        for _ in sys.stdin:
            counts = {"up": proxy.up, "down": proxy.down, "connections": len(proxy.connections)}
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
