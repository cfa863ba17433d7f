"""One connection to the cloud: WebSocket messages to ours, what failed as sentences.

Nothing is compressed: packed ids do not shrink, and the length of what is compressed tells of its
content. docs/edge.md has the messages.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from foresay.edge.json_frames import Frames, size_of
from foresay.edge.messages import Close, Error, Message
from foresay.edge.statistics import StreamStatistics
from foresay.edge.wire import MAX_FRAME
from foresay.errors import InputError, StreamError

__all__ = ["PATH", "Backoff", "Connection", "Lost", "connect", "edge_url"]

PATH = "/v1/edge"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_PING_SECONDS = 10.0
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0  # seconds before another try
_AGAIN = ("busy", "draining", "timeout")
"""Codes of ERROR after which it is worth to try again."""


class Lost(Exception):
    """There is no connection, or none any more; it is worth to try again.

    code      of ERROR: unknown_stream (it has to be opened again), unknown_prefix (the cloud has
              another text than RESUME named, or RESUME was damaged on its way), bad_frame (what was
              sent is no message for the cloud: damaged, or of another version); or cancelled: the
              cloud has cancelled the stream, unasked, and it has to be opened again
    at_first  also before the stream was opened; otherwise the address is more likely to be wrong
    """

    def __init__(self, sentence: str, code: str = "", *, at_first: bool = False) -> None:
        super().__init__(sentence)
        self.code = code
        self.at_first = at_first


def edge_url(url: str) -> str:
    """The address of edge streams of a server, ws:// or wss://; without a path: `PATH`.

    Raises: InputError.
    """
    expected = "a URL such as http://127.0.0.1:8000 or https://example.org"
    secret = isinstance(url, str) and "@" in url  # a password may stand before it
    shown = "one with an @, which is not shown here" if secret else f"{url!r:.200}"
    try:
        parts = urlsplit(url)
        known = parts.scheme in _SCHEMES and bool(parts.hostname)
    except (ValueError, AttributeError, TypeError):
        known = False
    if not known:
        raise InputError(f"the cloud's address is {shown}; expected {expected}")
    if "@" in parts.netloc:
        raise InputError(
            "the cloud's address has a user or a password; expected none there, and the server's "
            "key with --api-key or FORESAY_API_KEY"
        )
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InputError(
            f"the cloud's address is {shown}; expected a port from 1 to 65535 after the colon"
        )
    try:
        str(parts.hostname).encode("idna")
    except UnicodeError:
        raise InputError(
            f"the cloud's address is {shown}; expected the name of a host, such as example.org"
        ) from None
    path = parts.path.rstrip("/")
    path = path if path.endswith(PATH) else path.removesuffix("/v1") + PATH
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, "", ""))


@dataclass(slots=True)
class Backoff:
    """Waits that double, with jitter, until `seconds` without progress have passed.

    `next_wait` and `reset` mutate it. No clock is read here.
    """

    seconds: float
    _since: float | None = None
    _tries: int = 0

    def reset(self) -> None:
        """There was progress: the next loss is the first one."""
        self._since, self._tries = None, 0

    def next_wait(self, now: float) -> float | None:
        """Seconds until the next try; None: the time is over."""
        if self._since is None:
            self._since = now
        left = self._since + self.seconds - now
        if left <= 0:
            return None
        full = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(self._tries, 16))
        self._tries += 1
        return float(min(left, full * (0.5 + random.random() / 2)))


class Connection:
    """Messages over one WebSocket, counted in `statistics`.

    frames: their form. Raises, all methods: `Lost` when the connection is gone.
    """

    def __init__(
        self, socket: ClientConnection, statistics: StreamStatistics, *, json: bool = False
    ) -> None:
        self._socket = socket
        self._counted = statistics
        self.frames = Frames("edge", json)
        self.last_size = 0
        """Bytes on the wire of the last message that came."""

    async def send(self, message: Message) -> int:
        """Send a message; returns its bytes on the wire. Raises: also InputError."""
        frame = self.frames.write(message)
        size = size_of(frame)
        try:
            await self._socket.send(frame)
        except ConnectionClosed as closed:
            raise Lost(_closed(closed)) from None
        wire = size + _header(size) + 4  # a client's frames are masked
        self._counted.messages_up += 1
        self._counted.bytes_up += size
        self._counted.wire_up += wire
        return wire

    async def receive(self, seconds: float | None) -> Message:
        """The next message; a frame that is none is a lost connection too. Raises: also Lost if
        nothing came for `seconds`, and what `raise_error` raises.
        """
        try:
            frame = await asyncio.wait_for(self._socket.recv(), seconds)
        except ConnectionClosed as closed:
            raise Lost(_closed(closed)) from None
        except (asyncio.TimeoutError, TimeoutError):
            raise Lost(f"the cloud said nothing for {seconds:g} s") from None
        size = size_of(frame)
        self._counted.messages_down += 1
        self._counted.bytes_down += size
        self.last_size = size + _header(size)
        self._counted.wire_down += self.last_size
        try:
            message = self.frames.read(frame)
        except InputError as error:
            raise Lost(f"the cloud sent what is no message: {error}") from error
        if isinstance(message, Error):
            raise_error(message)
        if isinstance(message, Close):
            raise StreamError(f"the cloud ended the stream: {message.reason or 'no reason given'}")
        return message

    async def close(self) -> None:
        """Close it, politely if the other side still answers."""
        await self._socket.close()


def raise_error(error: Error) -> NoReturn:
    """The cloud's ERROR as what it means for the edge.

    Raises: `Lost` where it is worth to try again, else StreamError.
    """
    said = f"the cloud refuses the stream ({error.code}): {error.message}"
    if error.code in _AGAIN:
        raise Lost(f"the cloud is not ready ({error.code}): {error.message}", at_first=True)
    if error.code == "unknown_stream":
        raise Lost(f"the cloud has forgotten the stream: {error.message}", error.code)
    if error.code in ("unknown_prefix", "bad_frame"):
        raise Lost(said, error.code)
    if error.code == "unauthorized":
        said += "; expected a key with --api-key or FORESAY_API_KEY"
    raise StreamError(said, error.code)


async def connect(
    url: str,
    statistics: StreamStatistics,
    *,
    api_key: str | None,
    seconds: float,
    json: bool = False,
) -> Connection:
    """A new connection.

    Raises: `Lost` if there is none, StreamError if what answers there is not what is expected.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    try:
        socket = await connect_websocket(
            url,
            additional_headers=headers,
            compression=None,
            open_timeout=seconds,
            close_timeout=1.0,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            max_size=MAX_FRAME,
        )
    except InvalidStatus as error:
        _refused(url, error.response.status_code)
    except (asyncio.TimeoutError, TimeoutError):
        raise Lost(f"{url} did not answer within {seconds:g} s") from None
    except OSError as error:
        raise Lost(f"there is no connection to {url}: {_reason(url, error)}") from None
    except InvalidHandshake as error:
        raise Lost(f"{url} does not answer as a WebSocket server: {error}") from None
    except (InvalidURI, UnicodeError) as error:
        raise StreamError(f"{url} is no address to connect to: {error}", "unreachable") from None
    statistics.connects += 1
    return Connection(socket, statistics, json=json)


def _refused(url: str, status: int) -> NoReturn:
    if status in (401, 403):
        raise StreamError(
            f"{url} refuses the key (status {status}); expected a valid one with --api-key or "
            "FORESAY_API_KEY",
            "unauthorized",
        )
    if status == 429 or status >= 500:
        raise Lost(f"{url} is not ready (status {status})", at_first=True)
    raise StreamError(
        f"{url} has no edge streams (status {status}); expected a server of `foresay serve`",
        "unreachable",
    )


def _reason(url: str, error: OSError) -> str:
    """Without the addresses that asyncio names again."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    hint = "; try http:// if the server has no TLS"
    if isinstance(error, ssl.SSLError):
        return f"there is no TLS ({error.reason or error}){hint}"
    if isinstance(error, ConnectionResetError):
        return "it was reset" + (hint if url.startswith("wss:") else "")
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "connection refused"
    return (error.strerror or str(error) or type(error).__name__).lower()


def _closed(closed: ConnectionClosed) -> str:
    frame = closed.rcvd
    said = f" ({frame.code} {frame.reason}".rstrip() + ")" if frame is not None else ""
    return f"the connection to the cloud was lost{said}"


def _header(size: int) -> int:
    """Bytes of a WebSocket frame's header, without the mask."""
    return 2 if size < 126 else 4 if size < 1 << 16 else 10
