"""Every fault of the chaos proxy does what it says, to whole WebSocket messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.chaos import Action, Part, Splitter, chaos, flipped, random_script
from edge.test_proxy import no_task_is_left, served
from foresay.bench.proxy import LOOPBACK, Proxy

HEAD = b"GET /v1/edge HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
PLAIN = b"GET /v1/edge HTTP/1.1\r\nHost: a\r\n\r\n"


def frame(payload: bytes, opcode: int = 2, *, mask: bytes = b"", final: bool = True) -> bytes:
    size = len(payload)
    longer = b"" if size < 126 else size.to_bytes(2 if size < 1 << 16 else 8, "big")
    length = size if size < 126 else 126 if size < 1 << 16 else 127
    head = bytes([opcode | (0x80 if final else 0), length | (0x80 if mask else 0)])
    body = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload)) if mask else payload
    return head + longer + mask + body


A, B, C = frame(b"first", mask=b"abcd"), frame(b"second", mask=b"bcde"), frame(b"third")


@dataclass
class Seen:
    """What a server received, in the pieces that it read, and how it ended."""

    pieces: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: str = ""
    back: bytes = b""

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def through(
    script: list[Action],
    sent: list[bytes],
    *,
    kill: Callable[[], None] | None = None,
    end: bool = True,
    pause: float = 0.0,
    seconds: float = 5.0,
) -> Seen:
    """The parts sent up through the proxy, what arrived, and what the client got of an answer."""
    seen = Seen()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                seen.pieces.append(data)
                seen.times.append(time.perf_counter())
            seen.ended = "end"
            writer.write(b"HTTP/1.1 101\r\n\r\n" + frame(b"answer"))
            await writer.drain()
        except ConnectionError:
            seen.ended = "reset"
        writer.close()

    async def run() -> None:
        async with served(serve) as port, Proxy(port, chaos(script, kill=kill)) as proxy:
            reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
            try:
                for part in sent:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(pause)
                if end:
                    writer.write_eof()
                seen.back = await asyncio.wait_for(reader.read(), seconds)
            except OSError:
                pass
            writer.close()
        await no_task_is_left()

    asyncio.run(run())
    return seen


@pytest.mark.parametrize(
    ("script", "sent", "arrived"),
    [
        ([], [HEAD, A, B + C], [A, B, C]),  # everything but compression
        ([Action("drop", after=2)], [HEAD, A, B, C], [A]),
        ([Action("truncate", after=1)], [HEAD, A, B], [A[: len(A) // 2]]),
        ([Action("half-close", after=1)], [HEAD, A, B], [A]),
        ([Action("duplicate")], [HEAD, A, B, C], [A, B, B, C]),  # not the head, nor the first one
        ([Action("reorder")], [HEAD, A, B, C], [A, C, B]),
        ([Action("reorder", seconds=30)], [HEAD, A, B], [A, B]),  # not lost at the end
        (
            [Action("duplicate", after=2), Action("delay", after=0), Action("reorder", after=1)],
            [HEAD, A, B, C, *map(frame, (b"d", b"e", b"f"))],
            [A, B, B, C, *map(frame, (b"d", b"f", b"e"))],
        ),
        (  # of what a message says, and never of a header or of the HTTP head
            [Action("flip", bit=8 + 3), Action("flip", bit=1)],
            [HEAD, frame(b"ab"), B, C],
            [frame(b"aj"), frame(b"qecond", mask=b"bcde"), C],
        ),
    ],
    ids=["none", "drop", "truncate", "half", "twice", "swap", "swap at the end", "three", "flip"],
)
def test_what_arrives(script: list[Action], sent: list[bytes], arrived: list[bytes]) -> None:
    cut = any(action.fault in ("drop", "truncate") for action in script)
    half = any(action.fault == "half-close" for action in script)
    seen = through(script, sent, end=not half, pause=0.01 * cut)
    assert seen.data == PLAIN + b"".join(arrived)
    if cut:
        assert seen.back == b""
    else:  # also where the other way has ended
        assert seen.ended == "end" and seen.back.endswith(frame(b"answer"))


def test_flipped_bits_of_other_frames() -> None:
    assert flipped(frame(b"ab", mask=b"1234"), 16) == frame(b"`b", mask=b"1234")
    assert flipped(frame(bytes(200)), 8 * 199 + 7) == frame(bytes(199) + b"\x80")
    assert flipped(frame(b""), 5) == frame(b"")


@given(
    st.lists(
        st.tuples(
            st.binary(max_size=300),
            st.sampled_from([b"", b"mask"]),
            st.integers(1, 3),
        ),
        max_size=6,
    ),
    st.sampled_from([1, 7, 130, 2001]),
)
def test_the_splitter_finds_every_message_whatever_the_reads(
    messages: list[tuple[bytes, bytes, int]], size: int
) -> None:
    whole = []
    for payload, mask, fragments in messages:
        pieces = [payload[at::fragments] for at in range(fragments)]
        whole.append(
            b"".join(
                frame(piece, 0 if at else 2, mask=mask, final=at == fragments - 1)
                for at, piece in enumerate(pieces)
            )
        )
    ping = frame(b"?", 9)
    data = HEAD + ping + b"".join(whole) + b"\x82"
    splitter = Splitter()
    found = [
        part for at in range(0, len(data), size) for part in splitter.feed(data[at : at + size])
    ]
    assert found == [
        Part("head", HEAD),
        Part("control", ping),
        *(Part("message", message) for message in whole),
    ]
    assert splitter.rest == b"\x82"


def test_a_long_message() -> None:
    long = frame(bytes(70_000))
    assert [part.data for part in Splitter().feed(HEAD + long + A + b"\x82\xfe\x01")] == [
        *(HEAD, long, A)
    ]


def test_delay() -> None:
    began = time.perf_counter()
    seen = through([Action("delay", after=2, seconds=0.2)], [HEAD, A, B, C], pause=0.01)
    assert seen.data == PLAIN + A + B + C
    assert seen.times[1] - began < 0.15 and seen.times[-1] - began >= 0.2


def test_a_message_with_none_to_be_swapped_with_arrives_after_a_while() -> None:
    seen = through([Action("reorder", seconds=0.05)], [HEAD, A, B], pause=0.2)
    assert seen.data == PLAIN + A + B
    assert seen.times[2] - seen.times[1] >= 0.2


def test_bytewise() -> None:
    long = frame(bytes(range(100)))
    seen = through([Action("bytewise", after=1)], [HEAD, long, B], pause=0.05)
    assert seen.data == PLAIN + long + B
    assert len(seen.pieces) > 10


def test_stall() -> None:
    began = time.perf_counter()
    seen = through([Action("stall", after=0, seconds=0.2)], [HEAD, A, B])
    assert seen.data == PLAIN + A + B
    assert time.perf_counter() - began >= 0.2


def test_kill() -> None:
    called = []
    seen = through([Action("kill", after=1)], [HEAD, A, B], kill=lambda: called.append(1))
    assert called == [1] and seen.data == PLAIN + A + B


def test_down() -> None:
    seen = through([Action("truncate", "down", after=1)], [HEAD, A])
    assert seen.back == b"HTTP/1.1 101\r\n\r\n" + frame(b"answer")[:4]


def test_random_scripts_are_the_same_again_and_have_every_fault() -> None:
    scripts = [random_script(seed, kill=True) for seed in range(300)]
    assert scripts == [random_script(seed, kill=True) for seed in range(300)]
    assert {action.fault for script in scripts for action in script} >= {
        *("delay", "drop", "truncate", "half-close", "duplicate"),
        *("reorder", "bytewise", "flip", "stall", "kill"),
    }
    assert {action.way for script in scripts for action in script} == {"up", "down"}
    assert all(1 <= len(script) <= 7 for script in scripts)
