"""The process behind a `Trial`: it reads a tokenizer once, and forks for every grammar."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

from foresay.structured.library import begin, read_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

__all__ = ["main"]

STATM = Path("/proc/self/statm")
"""Where Linux tells the pages of a process."""

SECONDS = 0.5
"""Of processor time, for compiling a grammar and its first masks."""
WAIT = 5.0
"""Seconds, however busy the machine is."""
MEMORY = 1 << 29
"""Bytes, beside those that the process had."""
STEPS = 8
"""Masks that are computed, each behind a token that the one before allows, whatever it is."""


def main(descriptor: int) -> None:
    """Serve until the other end of the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of whoever started it, who closes the socket
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no fork is waited for
    with socket.socket(fileno=descriptor) as control:
        about = json.loads(_read(control))
        tokenizer = read_tokenizer(about["text"], about["ends"])
        while True:
            asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not asked:
                return
            if os.fork() == 0:
                control.detach()
                _try(tokenizer, descriptors[0])
            os.close(descriptors[0])


def _try(tokenizer: LLTokenizer, descriptor: int) -> None:
    """In a fork: answer, or be killed. Never returns."""
    try:
        with socket.socket(fileno=descriptor) as asked:
            signal.setitimer(signal.ITIMER_REAL, WAIT)
            source = _read(asked)
            with suppress(OSError, ValueError):  # a system that does not tell has no such limit
                pages = int(STATM.read_text().split()[0])
                most = pages * resource.getpagesize() + MEMORY
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                _follow(tokenizer, source)
                answer = "+"
            except ValueError as error:
                answer = f"-{error}"
            except MemoryError:
                return
            except BaseException as error:  # a panic of the library is no Exception
                answer = f"-it cannot be tried: {error!r}"
            asked.sendall(answer.encode())
    finally:
        os._exit(0)


def _follow(tokenizer: LLTokenizer, source: str) -> None:
    """Compile it, and go some tokens into it. Raises: ValueError with the reason, if the library
    refuses it or cannot follow it."""
    matcher = begin(tokenizer, source)
    draw = Random(0)
    for _ in range(STEPS):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        if matcher.is_stopped() or not len(allowed):
            return
        if not matcher.consume_token(draw.choice(allowed.tolist())):
            raise ValueError(matcher.get_error())


def _read(connection: socket.socket) -> str:
    """A text, behind its length in bytes. Raises: EOFError."""
    return _exactly(connection, int.from_bytes(_exactly(connection, 8), "little")).decode()


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 1 << 20))
        if not part:
            raise EOFError("the connection has ended")
        found += part
    return bytes(found)
