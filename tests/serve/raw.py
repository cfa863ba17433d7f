"""Requests as bytes, and a connection that sends them as they are."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from serve.running import Running

SMUGGLED = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt":"a"}'
CHUNKS = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"
LENGTH, CHUNKED = b"Content-Length: 14", b"Transfer-Encoding: chunked"
MOST = 64 << 10


def to_the_end(client: socket.socket) -> bytes:
    """All that comes until the server has ended the connection; a timeout if it does not."""
    received = b""
    while part := client.recv(1 << 16):
        received += part
    return received


def told(server: Running, *parts: bytes, pause: float = 0.05) -> bytes:
    """What comes in answer to these bytes, until the server has ended the connection."""
    with server.connected() as client:
        for at, part in enumerate(parts):
            if at:
                time.sleep(pause)
            client.sendall(part)
        return to_the_end(client)


def post(*headers: bytes, body: bytes = BODY, path: bytes = b"/tokenize") -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + JSON
    return head + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def head_of(size: int, kind: str) -> bytes:
    """A head of so many bytes, its last empty line not counted."""
    rest = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close"
    if kind == "line":
        begin = b"GET /live?"
        return begin + b"a" * (size - len(begin) - len(rest)) + rest + b"\r\n\r\n"
    head = b"GET /live" + rest
    if kind == "header":
        return head + b"\r\nX-Any: " + b"a" * (size - len(head) - 9) + b"\r\n\r\n"
    head += b"\r\nX-Any: 0123" * ((size - len(head)) // 13 - 1)
    return head + b"\r\nX-Any: " + b"a" * (size - len(head) - 9) + b"\r\n\r\n"


def error_of(answer: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    return error
