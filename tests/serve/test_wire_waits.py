"""Bytes that do not come, or come after the answer: a documented answer in the documented time, and
a closed connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from foresay.serve.keys import Keys
from foresay.serve.limits import Limits
from serve.raw import (
    BODY,
    CHUNKED,
    CHUNKS,
    LENGTH,
    SMUGGLED,
    error_of,
    head_of,
    post,
    to_the_end,
    told,
)
from serve.running import Running, served, wait_for

SECONDS = 0.4  # for a head, and for a body, in these tests
SLACK = 4.0  # for a machine that does other things, too
LINGERS = 2.0  # what docs/deploy.md says


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = Limits(head_seconds=SECONDS, body_seconds=SECONDS, body=4000)
    with served(folder, limits=limits) as found:
        yield found


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"G"],
        [b"POST /tokenize HTTP/1.1\r\nHost: local"],
        [bytes([letter]) for letter in head_of(1000, "headers")[:400]],  # longer than all may take
        [SMUGGLED, b"GE", b"T /"],
        [post(LENGTH) + b"GET /ver"],
    ],
)
def test_a_head_that_does_not_come(server: Running, parts: list[bytes]) -> None:
    """Byte by byte is no help: the time is that of the whole head."""
    begin = time.monotonic()
    with server.connected() as client:
        received = b""
        with suppress(OSError):  # it may be closed already, while more is sent
            for part in parts:
                client.sendall(part)
                time.sleep(0.02)
        with suppress(ConnectionResetError):
            received = to_the_end(client)
    assert SECONDS * 0.9 < time.monotonic() - begin < SECONDS + SLACK
    assert received.count(b"HTTP/1.1 ") == (len(parts[0]) > 40 and b"\r\n\r\n" in parts[0])


@pytest.mark.parametrize(
    "sent",
    [
        post(LENGTH, body=b""),
        post(LENGTH, body=BODY[:9]),
        post(CHUNKED, body=b""),
        post(CHUNKED, body=CHUNKS[:9]),
        post(CHUNKED, body=CHUNKS[:-2]),
    ],
)
def test_a_body_that_does_not_come(server: Running, sent: bytes) -> None:
    begin = time.monotonic()
    answer = told(server, sent)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"connection: close" in answer.lower()
    assert SECONDS * 0.9 < time.monotonic() - begin < SECONDS + SLACK


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (413, post(b"Content-Length: 5000", body=b"")),
        (413, post(b"Content-Length: 5000", body=b"{")),
        (413, post(CHUNKED, body=b"1388\r\n" + b"a" * 4500)),
        (415, post(LENGTH, body=b"").replace(b"/json", b"/text")),
        (404, post(LENGTH, path=b"/nowhere", body=b"")),
        (405, post(LENGTH, path=b"/live", body=b"")),
        (403, post(LENGTH, body=b"").replace(b"localhost", b"elsewhere")),
        (200, post(LENGTH, path=b"/live", body=b"").replace(b"POST", b"GET")),
    ],
)
def test_an_answer_before_the_body_is_the_last(server: Running, status: int, sent: bytes) -> None:
    """The rest could otherwise be read as a request, or hold the connection for ever."""
    begin = time.monotonic()
    answer = told(server, sent)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in answer.lower() and time.monotonic() - begin < SLACK
    assert status != 413 or "at most 4000 bytes" in error_of(answer)["message"]
    wait_for(lambda: len(server.server.server_state.connections) <= 1)


def test_who_goes_on_sending_is_cut_off(server: Running) -> None:
    """It has its answer, and some time to read it; nobody answers to the rest."""
    begin = time.monotonic()
    with server.connected() as client:
        client.sendall(post(b"Content-Length: 5000", body=b""))
        assert to_the_end(client).startswith(b"HTTP/1.1 413 ")
        assert not cut_off(client)
        wait_for(lambda: cut_off(client), LINGERS + SLACK)
        assert time.monotonic() - begin > LINGERS * 0.9


def cut_off(client: socket.socket) -> bool:
    """Whether the server has closed its side for good: what is sent is sent back."""
    try:
        client.sendall(b"x")
        time.sleep(0.05)
        client.sendall(b"x")
    except OSError:
        return True
    return False


def test_who_leaves_after_it_was_refused_is_forgotten_at_once(server: Running) -> None:
    refused = post(b"Content-Length: 24", CHUNKED, body=CHUNKS)
    assert told(server, refused).startswith(b"HTTP/1.1 400 ")
    wait_for(lambda: len(server.server.server_state.connections) <= 1, LINGERS / 2)


def test_a_large_body_can_be_sent_to_a_server_that_refuses_it(server: Running) -> None:
    """The client reads why, also if it sends all before it reads."""
    with server.connected() as client:
        client.sendall(post(b"Content-Length: 3000000", body=b"a" * 3_000_000))
        answer = to_the_end(client)
        assert answer.startswith(b"HTTP/1.1 413 ") and b"at most 4000 bytes" in answer


def test_without_a_key_the_body_is_not_waited_for(folder: Path) -> None:
    keys = Keys.of([("a-good-key-of-one", "one")])
    with served(folder, keys=keys) as server:
        assert told(server, post(LENGTH, body=b"")).startswith(b"HTTP/1.1 401 ")
        whole = told(server, post(LENGTH, b"Connection: close"))
        assert whole.startswith(b"HTTP/1.1 401 ")
        with server.connected() as client:  # a body that has come leaves the connection open
            for _ in range(2):
                client.sendall(post(LENGTH))
                received = client.recv(1 << 16)
                while b"\r\n\r\n" not in received or not received.endswith(b"}}"):
                    received += client.recv(1 << 16)
                assert b" 401 " in received and b"connection: close" not in received.lower()
