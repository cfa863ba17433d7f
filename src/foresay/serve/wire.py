"""HTTP on a connection: h11, with stricter checks against request smuggling.

Between clients and this server there may be a proxy. If the two do not agree on where a request
ends, the rest of one client's body becomes another client's request. So a request that could be
parsed in two ways is refused, and the connection closed: no byte after it is parsed as a request.

The parser is always h11. It comes with uvicorn on every machine, while httptools may be missing;
and its buffer can be read, so that a head is checked as it was sent. From 0.16 on it also refuses
wrong ends of chunks.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from foresay.serve.answer import encoded, error_body
from foresay.serve.limits import Limits, Refused

__all__ = ["Wire"]

_LINGER = 2.0  # seconds in which a client that still sends may read why it was refused
_PART = 4096  # bytes that h11 gets at a time: what it holds is copied at every event
_END = b"\r\n\r\n"  # of a head
_BARE = re.compile(rb"(?<!\r)\n")
_BARE_RETURN = re.compile(rb"\r(?!\n)")
_DIGITS = re.compile(rb"[0-9]{1,20}")
_log = logging.getLogger("foresay.serve")


class _Strict(h11.Connection):
    """An h11 connection that refuses a head or an end of chunks that another server could parse
    differently (request smuggling). `refused` says why.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(h11.SERVER, limits.head + _PART)
        self.refused: Refused | None = None
        self._limits = limits
        self._ahead = bytearray()  # not given to h11 yet
        self._held = bytearray()  # given to it, and no event made of it
        self._checked = 0  # of these, as the beginning of a head
        self._chunked = False

    @property
    def begun(self) -> bool:
        """Whether there are bytes that are not parsed yet."""
        return bool(self._ahead or self._held)

    def receive_data(self, data: bytes) -> None:
        self._ahead += data

    def next_event(self) -> Any:
        while True:
            event = self._next()
            if event is not h11.NEED_DATA or not self._ahead:
                return event
            part = bytes(self._ahead[:_PART])
            del self._ahead[:_PART]
            self._held += part
            super().receive_data(part)

    def _next(self) -> Any:
        if self.their_state is h11.IDLE:
            self._check_head()
        event = super().next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return event
        left = self.trailing_data[0]  # a copy, so not for every byte that arrives
        taken = bytes(self._held[: len(self._held) - len(left)])
        self._held, self._checked = bytearray(left), 0
        if self._chunked and isinstance(event, (h11.Data, h11.EndOfMessage)):
            data = event.data if isinstance(event, h11.Data) else b""
            if _BARE_RETURN.search(taken, 0, len(taken) - len(data)):  # what stands before it
                self._refuse(400, "a line between chunks has a carriage return in it")
        if isinstance(event, h11.Request):
            self._chunked = any(name == b"transfer-encoding" for name, _ in event.headers)
        elif isinstance(event, h11.EndOfMessage) and self._chunked:
            plain = taken.endswith(b"\r\n") and not list(event.headers)
            if not plain:
                self._refuse(400, "the body's chunks do not end with 0 and an empty line")
        return event

    def _check_head(self) -> None:
        """Check the part of the head that has arrived: each byte once, in any number of packets."""
        end = self._held.find(_END, max(self._checked - 3, 0))
        known = end
        if end < 0:  # the last bytes may be the first of the end
            ending = (n for n in (3, 2, 1) if self._held.endswith(_END[:n]))
            known = len(self._held) - next(ending, 0)
        if known > self._limits.head:
            self._refuse(
                431,
                f"the head of the request is too large; expected at most {self._limits.head} bytes",
            )
        if _BARE.search(self._held, self._checked, len(self._held) if end < 0 else end):
            self._refuse(400, "a line of the request's head ends without a carriage return")
        self._checked = len(self._held)
        if end < 0:
            return
        head = bytes(self._held[:end])
        first, *lines = head.split(b"\r\n")
        version = first.rpartition(b" ")[2]
        if version.startswith(b"HTTP/") and version not in (b"HTTP/1.1", b"HTTP/1.0"):
            self._refuse(505, f"the version is {_shown(version)}; expected HTTP/1.1 or HTTP/1.0")
        found: dict[bytes, list[bytes]] = {}
        for line in lines:
            if line[:1] in (b" ", b"\t"):
                self._refuse(400, "a header continues on the next line; expected one line")
            name, _, value = line.partition(b":")
            found.setdefault(name.lower(), []).append(value.strip(b" \t"))
        self._check_end(found, version)

    def _check_end(self, found: dict[bytes, list[bytes]], version: bytes) -> None:
        """Check that the headers define the end of the body in one way only."""
        lengths = found.get(b"content-length", [])
        codings = found.get(b"transfer-encoding", [])
        if lengths and codings:
            self._refuse(
                400, "there are Content-Length and Transfer-Encoding; expected one of them"
            )
        if len(lengths) > 1:
            self._refuse(400, f"there are {len(lengths)} Content-Length; expected one")
        if lengths and not _DIGITS.fullmatch(lengths[0]):
            shown = _shown(lengths[0])
            self._refuse(400, f"Content-Length is {shown}; expected 1 to 20 digits")
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
            shown = _shown(b", ".join(codings))
            self._refuse(400, f"Transfer-Encoding is {shown}; expected 'chunked' alone")
        if codings and version != b"HTTP/1.1":
            self._refuse(400, "there is Transfer-Encoding; expected none with HTTP/1.0")

    def _refuse(self, status: int, why: str) -> None:
        self.refused = Refused(status, why, code="bad_http")
        raise h11.RemoteProtocolError(why, error_status_hint=status)


class Wire(H11Protocol):
    """One connection. To be made by uvicorn, as `functools.partial(Wire, limits, refused)`.

    limits   of the head: its bytes, and the seconds in which it must arrive
    refused  called with the status of every request that is refused before a route

    A connection is closed if a head does not arrive in time, if something else than plain HTTP
    arrives, or if a response was sent before the request's body had arrived. In the last two cases
    the client can read the response: we close our side only, and the whole connection when the
    client closes its side, or after 2 seconds.

    Mutates: the server's state, as uvicorn's protocol does.
    """

    conn: _Strict

    def __init__(
        self, limits: Limits, refused: Callable[[int], None], *values: Any, **names: Any
    ) -> None:
        super().__init__(*values, **names)
        self.conn = _Strict(limits)
        self.app = self._answered
        self._limits = limits
        self._refused = refused
        self._head: asyncio.TimerHandle | None = None

    @property
    def client_sends(self) -> bool:
        """Whether the client may still be sending bytes that will be thrown away."""
        over = (h11.SEND_BODY, h11.ERROR)
        return self.conn.refused is not None or self.conn.their_state in over

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        gentle: Any = _Gentle(transport, self)
        super().connection_made(gentle)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._head is not None:
            self._head.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._wait_for_head()

    def on_response_complete(self) -> None:
        """Continue with what arrived meanwhile."""
        super().on_response_complete()
        self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or is ambiguous, and close."""
        refused = self.conn.refused or Refused(
            400, "this is not a valid request of HTTP/1.1", code="bad_http"
        )
        self.conn.refused = refused
        self._refused(refused.status)
        _log.info("a connection is closed with status %d: %s", refused.status, refused)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encoded(error_body(refused))
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            head = h11.Response(status_code=refused.status, headers=list(headers.items()))
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the route that waits for the body gets none
            self.cycle.message_event.set()
        self.transport.close()

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; a response before the end of the body gets `connection: close`."""
        cycle = self.cycle

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start" and cycle.more_body:
                headers = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": headers}
            await send(message)

        app: Any = self.config.loaded_app
        await app(scope, receive, send_head)

    def _wait_for_head(self) -> None:
        """Give a head that has begun, and the first of a connection, `head_seconds` in all, however
        many bytes arrive."""
        waits = self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.begun)
        if not waits and self._head is not None:
            self._head.cancel()
            self._head = None
        elif waits and self._head is None:
            self._head = self.loop.call_later(self._limits.head_seconds, self.transport.close)


class _Gentle:
    """A transport that closes slowly while the client sends: else the system would throw away the
    response that the client has not read yet. What arrives is thrown away, for a while.
    """

    def __init__(self, transport: asyncio.Transport, wire: Wire) -> None:
        self._transport = transport
        self._wire = wire
        self._lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self._lingers:
            self._transport.write(data)

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._wire.client_sends:
            self._transport.close()
            return
        self._lingers = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._wire.loop.call_later(_LINGER, self._transport.abort)


def _shown(value: bytes) -> str:
    return ascii(value[:40].decode("latin-1"))
