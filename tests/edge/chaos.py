"""Faults on a connection, by script: for tests of both ends of an edge stream.

`chaos(script)` is a `Carry` for `foresay.bench.proxy.Proxy`. It knows WebSocket: what it repeats,
swaps or cuts are whole messages, frames as they were written, so that each fault is one that the
other end has to bear, and not a broken frame; `truncate` alone breaks one. `flip` changes what a
message says, and not WebSocket's header of it.

    delay      wait
    drop       cut the connection
    truncate   half of a message, then cut the connection
    half-close no more this way; the other way goes on
    duplicate  a message twice
    reorder    a message after the next one, or after a while if there is none
    bytewise   a message in writes of one byte
    flip       a message with one bit flipped
    stall      read nothing for a while: what is sent fills the buffers of the system
    kill       call `kill`

A script is a list of actions. Those of one way are taken in order, over all connections of the
proxy: each after so many messages that passed since the one before. The HTTP head of a connection
counts as a message; it is not repeated, swapped or flipped. The first message after it is neither
repeated nor swapped, which a network that keeps the order of bytes cannot do to a stream that has
just begun.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from foresay.bench.proxy import Carry, Connection, Way

__all__ = ["Action", "Fault", "Part", "Splitter", "chaos", "random_script"]

_Cut: TypeAlias = Literal["drop", "truncate", "half-close"]
_Message: TypeAlias = Literal["duplicate", "reorder", "bytewise", "flip"]
Fault: TypeAlias = Literal[_Cut, _Message, "delay", "stall", "kill"]
_FAULTS = get_args(Fault)
_WHOLE = ("duplicate", "reorder")  # which take a message, and no head and no first one
_EXTENSIONS = re.compile(rb"\r\nsec-websocket-extensions:[^\r\n]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Action:
    """One fault.

    way      "up": of what the client sends; "down": of what the server sends
    after    messages of this way that pass before it
    seconds  of a delay, a stall, and at most of a swapped message
    bit      of a flip: which one, counted from the message's begin, and from there again at its end
    """

    fault: Fault
    way: Way = "up"
    after: int = 0
    seconds: float = 0.02
    bit: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What passes as one: the HTTP head, a whole message, or a control frame."""

    kind: Literal["head", "message", "control"]
    data: bytes


class Splitter:
    """Splits the bytes of one way into parts; `rest` is the beginning of one that is not whole."""

    def __init__(self) -> None:
        self.rest = b""
        self._head = True
        self._fragments = b""

    def feed(self, data: bytes) -> list[Part]:
        """The parts that are whole now; the splitter keeps the rest."""
        self.rest += data
        found: list[Part] = []
        while (part := self._next()) is not None:
            if part.data:
                found.append(part)
        return found

    def _next(self) -> Part | None:
        if self._head:
            size = self.rest.find(b"\r\n\r\n") + 4
            if size == 3:
                return None
            self._head = False
            return Part("head", self._taken(size))
        head, size = _head(self.rest)
        if len(self.rest) < (whole := head + size):
            return None
        first, frame = self.rest[0], self._taken(whole)
        if first & 0x08:
            return Part("control", frame)
        self._fragments += frame
        if not first & 0x80:
            return Part("message", b"")  # goes on in the next frame
        message, self._fragments = self._fragments, b""
        return Part("message", message)

    def _taken(self, size: int) -> bytes:
        data, self.rest = self.rest[:size], self.rest[size:]
        return data


def _head(data: bytes) -> tuple[int, int]:
    """The bytes of the head of the frame that begins here, and of its content; 0 of what is not
    known yet."""
    masked, size = divmod(data[1] if len(data) > 1 else 0, 0x80)
    head, longer = 2, {126: 2, 127: 8}.get(size, 0)
    if longer:
        head, size = head + longer, int.from_bytes(data[2 : 2 + longer], "big")
    return head + 4 * masked, size


def flipped(message: bytes, bit: int) -> bytes:
    """A message of one frame with one bit of its content flipped; an empty one as it is."""
    whole, (head, size) = bytearray(message), _head(message)
    if size:
        at = bit % (8 * size)
        whole[head + at // 8] ^= 1 << at % 8
    return bytes(whole)


def chaos(script: Sequence[Action], *, kill: Callable[[], None] | None = None) -> Carry:
    """A Carry that acts by the script, once; afterwards everything passes.

    kill  is called for each action "kill"
    """
    ways: tuple[Way, Way] = "up", "down"
    left = {way: [action for action in script if action.way == way] for way in ways}
    passed: dict[Way, int] = {"up": 0, "down": 0}

    def next_fault(way: Way, begun: int, head: bool) -> Action | None:
        """What happens to the next part, if anything; `begun`: messages of this connection."""
        if not left[way] or passed[way] < left[way][0].after:
            return None
        fault = left[way][0].fault
        if (fault in _WHOLE and begun < 1) or (fault == "flip" and head):
            return None
        passed[way] = 0
        return left[way].pop(0)

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way, connection: Connection
    ) -> None:
        splitter, messages = Splitter(), 0
        held, patience = b"", 0.0

        async def send(data: bytes) -> None:
            connection.note(way, len(data))
            writer.write(data)
            await writer.drain()

        async def act(action: Action, data: bytes) -> bool:
            """Whether this way goes on."""
            nonlocal held, patience
            match action.fault:
                case "delay":
                    await asyncio.sleep(action.seconds)
                    await send(data)
                case "drop":
                    raise ConnectionAbortedError("by the script")
                case "truncate":
                    await send(data[: max(1, len(data) // 2)])
                    raise ConnectionAbortedError("by the script")
                case "half-close":
                    await send(data)
                    writer.write_eof()
                    return False
                case "duplicate":
                    await send(data + data)
                case "reorder":
                    held, patience = data, action.seconds
                case "bytewise":
                    for at in range(len(data)):
                        await send(data[at : at + 1])
                        await asyncio.sleep(0)
                case "flip":
                    await send(flipped(data, action.bit))
                case "stall":
                    await send(data)
                    await asyncio.sleep(action.seconds)
                case "kill":
                    assert kill is not None
                    kill()
                    await send(data)
            return True

        while True:
            try:
                data = await asyncio.wait_for(reader.read(1 << 16), patience if held else None)
            except asyncio.TimeoutError:  # no message came to be swapped with
                data, held = held, b""
                await send(data)
                continue
            if not data:
                break
            for part in splitter.feed(data):
                whole, control = part.data, part.kind == "control"
                if part.kind == "head":
                    # Compressed messages depend on each other: none could be repeated.
                    whole = _EXTENSIONS.sub(b"", whole)
                action = None if control else next_fault(way, messages, part.kind == "head")
                messages += part.kind == "message"
                before, held = held, b""
                if action is None:
                    passed[way] += not control
                    await send(whole)
                elif not await act(action, whole):
                    while await reader.read(1 << 16):
                        pass
                    return
                if before:
                    await send(before)
        await send(held + splitter.rest)
        writer.write_eof()

    return carry


def random_script(seed: int, *, most: int = 6, kill: bool = False) -> list[Action]:
    """1 to `most` actions, the same for the same seed; with `kill` the last one may be a kill."""
    draw = random.Random(seed)
    faults = [fault for fault in _FAULTS if fault != "kill"]
    script = [
        Action(
            draw.choice(faults),
            draw.choice(("up", "down")),
            draw.choice((0, 0, 1, 1, 2, 3, 5, 8)),
            draw.choice((0.001, 0.005, 0.02, 0.05)),
            draw.randrange(4096),
        )
        for _ in range(draw.randint(1, most))
    ]
    if kill and draw.random() < 0.5:
        script.append(Action("kill", draw.choice(("up", "down")), draw.randint(1, 6)))
    return script
