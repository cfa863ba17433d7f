"""Bytes on a connection that two servers could read in two ways, or that are too many: a documented
answer, a closed connection, and no second request.
"""

from __future__ import annotations

import time

import h11
import pytest

from foresay.serve.limits import Limits
from foresay.serve.wire import _Strict
from serve.raw import (
    BODY,
    CHUNKED,
    CHUNKS,
    JSON,
    LENGTH,
    MOST,
    SMUGGLED,
    error_of,
    head_of,
    post,
    told,
)
from serve.running import Running

ODD: dict[str, bytes] = {
    "length and chunked": post(b"Content-Length: 24", CHUNKED, body=CHUNKS),
    "chunked and length": post(CHUNKED, b"Content-Length: 5", body=CHUNKS),
    "length 0 and chunked": post(b"Content-Length: 0", CHUNKED, body=CHUNKS),
    "two lengths": post(LENGTH, b"Content-Length: 3"),
    "the same length twice": post(LENGTH, LENGTH),
    "lengths in a list": post(b"Content-Length: 14, 14"),
    "another list": post(b"Content-Length: 14,3"),
    "a plus": post(b"Content-Length: +14"),
    "a minus": post(b"Content-Length: -14"),
    "hexadecimal": post(b"Content-Length: 0xe"),
    "a space within": post(b"Content-Length: 1 4"),
    "an underscore": post(b"Content-Length: 1_4"),
    "no digits": post(b"Content-Length: "),
    "too many digits": post(b"Content-Length: " + b"0" * 30 + b"14"),
    "identity last": post(b"Transfer-Encoding: chunked, identity", body=CHUNKS),
    "identity first": post(b"Transfer-Encoding: identity, chunked", body=CHUNKS),
    "identity alone": post(b"Transfer-Encoding: identity", LENGTH),
    "gzip": post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "chunked twice": post(CHUNKED, CHUNKED, body=CHUNKS),
    "chunked in a list twice": post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS),
    "another word": post(b"Transfer-Encoding: xchunked", LENGTH),
    "quoted": post(b'Transfer-Encoding: "chunked"', LENGTH),
    "a vertical tab": post(b"Transfer-Encoding: \x0bchunked", LENGTH),
    "a zero": post(b"Transfer-Encoding: chunked\x00", LENGTH),
    "nothing": post(b"Transfer-Encoding:", LENGTH),
    "a space before the colon": post(b"Content-Length : 14"),
    "a space before another colon": post(b"Transfer-Encoding : chunked", LENGTH),
    "a tab before the colon": post(b"Transfer-Encoding\t: chunked", LENGTH),
    "no colon": post(b"Transfer-Encoding", LENGTH),
    "a folded value": post(b"Transfer-Encoding:\r\n chunked", LENGTH),
    "a folded other value": post(b"X-Any: a\r\n\tTransfer-Encoding: chunked", LENGTH),
    "a folded first line": b"POST /tokenize HTTP/1.1\r\n " + JSON + LENGTH + b"\r\n\r\n" + BODY,
    "bare LF": post(b"X-Any: a\nTransfer-Encoding: chunked", LENGTH),
    "bare LF everywhere": post(LENGTH).replace(b"\r\n", b"\n"),
    "bare LF at the end": post(LENGTH).replace(b"\r\n\r\n", b"\r\n\n"),
    "bare CR": post(b"X-Any: a\rTransfer-Encoding: chunked", LENGTH),
    "two CR": post(b"X-Any: a\r", LENGTH),
    "two hosts": post(b"Host: other", LENGTH),
    "no host": b"POST /tokenize HTTP/1.1\r\n" + LENGTH + b"\r\n\r\n" + BODY,
    "two spaces": post(LENGTH).replace(b"POST ", b"POST  ", 1),
    "a space in the path": post(LENGTH, path=b"/tok enize"),
    "an empty line first": b"\r\n" + post(LENGTH),
    "no version": b"GET /version\r\n\r\n",
    "HTTP/1.0 in chunks": post(CHUNKED, body=CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "a chunk's size with a sign": post(CHUNKED, body=b"+e" + CHUNKS[1:]),
    "a chunk's size in words": post(CHUNKED, body=b"0xe" + CHUNKS[1:]),
    "a chunk's size with bare LF": post(CHUNKED, body=b"e\n" + CHUNKS[3:]),
    "an extension with bare LF": post(CHUNKED, body=b"e;a\nb\r\n" + CHUNKS[3:]),
    "an extension with bare CR": post(CHUNKED, body=b"e;a\rb\r\n" + CHUNKS[3:]),
    "a last chunk with bare CR": post(CHUNKED, body=CHUNKS[:-5] + b"0;a\rb\r\n\r\n"),
    "a chunk that is too long": post(CHUNKED, body=b"d" + CHUNKS[1:]),
    "a chunk that is too short": post(CHUNKED, body=b"f" + CHUNKS[1:]),
    "a last chunk with bare LF": post(CHUNKED, body=CHUNKS[:-2] + b"\n"),
    "a trailer": post(CHUNKED, body=CHUNKS[:-2] + b"Content-Length: 9\r\n\r\n"),
    "a trailer with bare LF": post(CHUNKED, body=CHUNKS[:-2] + b"X: a\n\n"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_could_be_read_in_two_ways_is_refused(server: Running, name: str) -> None:
    answer = told(server, ODD[name] + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1 and b'"version"' not in answer
    assert b"connection: close" in answer.lower()
    error = error_of(answer)
    assert error["code"] == "bad_http" and len(error["message"]) > 20
    server.idle()


@pytest.mark.parametrize("name", ["length and chunked", "bare LF", "a trailer with bare LF"])
def test_also_when_it_comes_in_small_parts(server: Running, name: str) -> None:
    whole = ODD[name] + SMUGGLED
    answer = told(server, *(whole[at : at + 31] for at in range(0, len(whole), 31)), pause=0.005)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1


def test_also_behind_a_good_request(server: Running) -> None:
    """On the same connection, and in the same packet."""
    for good in (SMUGGLED, post(LENGTH), post(CHUNKED, body=CHUNKS)):
        answer = told(server, good + ODD["length and chunked"] + SMUGGLED)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 400 " in answer
        assert answer.count(b"HTTP/1.1 ") == 2


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"Content-Length: 14", BODY),
        (b"content-LENGTH:\t014 ", BODY),
        (b"Transfer-Encoding: chunked", CHUNKS),
        (b"transfer-ENCODING:  ChUnKeD\t", CHUNKS),
        (
            b"Transfer-Encoding: chunked",
            b"7;a=b\r\n" + BODY[:7] + b"\r\n07\r\n" + BODY[7:] + b"\r\n",
        ),
    ],
)
def test_what_is_read_in_one_way_is_answered(server: Running, header: bytes, body: bytes) -> None:
    """So that the tests above are not of a server that refuses everything. What follows is the
    client's next request, and is answered."""
    if b"0\r\n\r\n" not in body and body != BODY:
        body += b"0\r\n\r\n"
    last = SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    for parts in ([post(header, body=body) + last], [post(header, body=b""), body, last]):
        answer = told(server, *parts)
        assert answer.count(b"HTTP/1.1 200 ") == 2, answer
        assert b'"count":1' in answer and b'"version"' in answer


def test_a_version_that_is_not_known(server: Running) -> None:
    answer = told(server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 505 ") and "HTTP/1.1" in error_of(answer)["message"]


@pytest.mark.parametrize("kind", ["line", "header", "headers"])
@pytest.mark.parametrize("size", [MOST + 1, 70_000, 100_000, 5_000_000])
def test_a_head_that_is_too_long(server: Running, kind: str, size: int) -> None:
    head = head_of(size, kind)
    assert len(head) == size + 4
    answer = told(server, head + SMUGGLED)
    assert answer.startswith(b"HTTP/1.1 431 "), answer[:100]
    assert answer.count(b"HTTP/1.1 ") == 1 and "65536" in error_of(answer)["message"]


@pytest.mark.parametrize("kind", ["line", "header", "headers"])
def test_a_head_that_is_as_long_as_it_may_be(server: Running, kind: str) -> None:
    answer = told(server, head_of(MOST, kind))
    assert answer.startswith(b"HTTP/1.1 200 "), answer[:100]


@pytest.mark.parametrize("kind", ["line", "header", "headers", "chunk"])
def test_bytes_that_drip_are_looked_at_once(kind: str) -> None:
    """The parser is in the event loop: while it works, everybody else waits. Over a socket the
    system would put bytes together, so here they come to it one by one.
    """
    parser, dripped = _Strict(Limits()), head_of(MOST, kind)
    if kind == "chunk":
        parser.receive_data(post(CHUNKED, body=b""))
        assert isinstance(parser.next_event(), h11.Request)
        dripped = b"e;" + b"a" * (MOST - 4) + b"\r\n" + CHUNKS[3:4]
    begin = time.thread_time()
    for letter in dripped[:-1]:
        parser.receive_data(bytes([letter]))
        assert parser.next_event() is h11.NEED_DATA and parser.begun
        assert time.thread_time() - begin < 8  # in all; a busy machine takes 1
    parser.receive_data(dripped[-1:])
    event = parser.next_event()
    assert isinstance(event, h11.Data if kind == "chunk" else h11.Request)


@pytest.mark.parametrize("name", [*ODD])
def test_parts_of_any_size_are_read_alike(name: str) -> None:
    """What is refused as a whole is refused in parts, for the same reason; behind a good request,
    too, whose last packet may have the first bytes of the next.
    """
    whole = ODD[name] + SMUGGLED
    wanted = refused_parts([whole])
    for size in (1, 2, 3, 5):
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert refused_parts(parts) == wanted
        for good in (post(LENGTH), post(CHUNKED, body=CHUNKS)):
            assert refused_parts(parts, good) == wanted
            assert refused_parts(parts[1:], good + parts[0]) == wanted


def refused_parts(parts: list[bytes], good: bytes = b"") -> tuple[int, str]:
    """Why the parser refuses this, after a good request; h11's own words are left out."""
    parser = _Strict(Limits())
    if good:
        parser.receive_data(good)
        while not isinstance(parser.next_event(), h11.EndOfMessage):
            pass
        for event in (h11.Response(status_code=200, headers=[]), h11.EndOfMessage()):
            parser.send(event)
        parser.start_next_cycle()
    for part in parts:
        parser.receive_data(part)
        try:
            while parser.next_event() not in (h11.NEED_DATA, h11.PAUSED):
                pass
        except h11.RemoteProtocolError as error:
            return error.error_status_hint, str(parser.refused)
    raise AssertionError("it was not refused")


def test_a_head_without_an_end(server: Running) -> None:
    """It is refused at the limit, not when it ends."""
    answer = told(server, head_of(MOST, "header")[:-4] + b"a")
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_what_is_no_http_is_counted(server: Running) -> None:
    before = server.number("foresay_refused_total", status="505")
    told(server, b"GET / HTTP/9.9\r\n\r\n")
    assert server.number("foresay_refused_total", status="505") == before + 1
