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
import inspect
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from foresay.bench.proxy import Carry, Connection, Way
from foresay.errors import InputError

__all__ = ["Action", "Fault", "Part", "Splitter", "chaos", "random_script"]

Fault: TypeAlias = Literal[
    "delay",
    "drop",
    "truncate",
    "half-close",
    "duplicate",
    "reorder",
    "bytewise",
    "flip",
    "stall",
    "kill",
]
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

    Raises: InputError when constructed.
    """

    fault: Fault
    way: Way = "up"
    after: int = 0
    seconds: float = 0.02
    bit: int = 0

    def __post_init__(self) -> None:
        if self.fault not in _FAULTS:
            raise InputError(f"fault is {self.fault!r}; expected one of {', '.join(_FAULTS)}")
        if self.way not in ("up", "down"):
            raise InputError(f"way is {self.way!r}; expected 'up' or 'down'")
        if type(self.after) is not int or self.after < 0:
            raise InputError(f"after is {self.after!r}; expected a whole number from 0")
        if type(self.bit) is not int or self.bit < 0:
            raise InputError(f"bit is {self.bit!r}; expected a whole number from 0")
        if not 0 <= self.seconds <= 60:
            raise InputError(f"seconds is {self.seconds!r}; expected 0 to 60")


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
        whole = _frame_size(self.rest)
        if whole is None or len(self.rest) < whole:
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


def _frame_size(data: bytes) -> int | None:
    """The bytes of the frame that begins here; None if its head is not whole."""
    if len(data) < 2:
        return None
    size, head = data[1] & 0x7F, 2
    longer = {126: 2, 127: 8}.get(size, 0)
    if len(data) < head + longer:
        return None
    if longer:
        size = int.from_bytes(data[2 : 2 + longer], "big")
    return head + longer + (4 if data[1] & 0x80 else 0) + size


def flipped(message: bytes, bit: int) -> bytes:
    """A message of one frame with one bit of its content flipped; an empty one as it is."""
    whole, size = bytearray(message), message[1] & 0x7F
    head = 2 + {126: 2, 127: 8}.get(size, 0) + (4 if message[1] & 0x80 else 0)
    if len(whole) > head:
        at = bit % (8 * (len(whole) - head))
        whole[head + at // 8] ^= 1 << at % 8
    return bytes(whole)


def chaos(
    script: Sequence[Action], *, kill: Callable[[], Awaitable[None] | None] | None = None
) -> Carry:
    """A Carry that acts by the script, once; afterwards everything passes.

    kill  is called, and awaited if it can be, for each action "kill"

    Raises: InputError for a script with "kill" and no `kill`.
    """
    if kill is None and any(action.fault == "kill" for action in script):
        raise InputError("the script has 'kill' and kill is None; expected a function")
    left: dict[Way, list[Action]] = {
        "up": [action for action in script if action.way == "up"],
        "down": [action for action in script if action.way == "down"],
    }
    passed: dict[Way, int] = {"up": 0, "down": 0}

    def next_fault(way: Way, begun: int, head: bool) -> Action | None:
        """What happens to the next part, if anything; `begun`: messages of this connection."""
        if not left[way] or passed[way] < left[way][0].after:
            return None
        if left[way][0].fault in _WHOLE and begun < 1:
            return None
        if left[way][0].fault == "flip" and head:
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
                    done = kill()
                    if inspect.isawaitable(done):
                        await done
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
