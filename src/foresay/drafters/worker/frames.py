"""The messages between a `WorkerDrafter` and its process: frames over a socket.

    4 bytes "fsy1", two uint32: the lengths of the head and of the data
    head   JSON: {"kind": …, "arrays": [[dtype, shape], …], and values of the message}
    data   the arrays, one after the other

Both sides check what they read: lengths before anything is read, types and sizes before anything is
used. What does not fit is a WorkerError, and ends the connection.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import WorkerError

__all__ = ["MAX_DATA", "Frame", "packed", "receive", "send"]

MAX_HEAD = 1 << 24
MAX_DATA = 1 << 30
_MAGIC = b"fsy1"
_START = struct.Struct("<4sII")
_DTYPES = {"int32": np.dtype("<i4"), "float32": np.dtype("<f4")}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    values: dict[str, Any]
    arrays: list[NDArray[Any]]

    def whole(self, name: str, low: int = 0, high: int = 2**53) -> int:
        """The int of that name. Raises: WorkerError."""
        value = self.values.get(name)
        if type(value) is not int or not low <= value <= high:
            raise WorkerError(
                f"{name} of a message {self.kind!r} is {value!r}; expected a whole number from "
                f"{low} to {high}"
            )
        return value

    def wholes(self, name: str) -> list[int]:
        """The list of ints from 0 of that name. Raises: WorkerError."""
        found = self.values.get(name)
        if not isinstance(found, list) or any(type(n) is not int or n < 0 for n in found):
            raise WorkerError(
                f"{name} of a message {self.kind!r} are {str(found)[:80]}; expected whole numbers"
            )
        return found

    def expect(self, arrays: int) -> list[NDArray[Any]]:
        """The arrays, of which there must be this number. Raises: WorkerError."""
        if len(self.arrays) != arrays:
            raise WorkerError(
                f"a message {self.kind!r} has {len(self.arrays)} arrays; expected {arrays}"
            )
        return self.arrays


def packed(kind: str, arrays: Sequence[NDArray[Any]] = (), **values: Any) -> bytes:
    """A frame as bytes. Raises: WorkerError if it is too large."""
    shapes = [[array.dtype.name, list(array.shape)] for array in arrays]
    head = json.dumps({**values, "kind": kind, "arrays": shapes}, default=_plain).encode()
    size = sum(array.nbytes for array in arrays)
    _check_sizes(len(head), size)
    data = [np.ascontiguousarray(array, _DTYPES[array.dtype.name]).tobytes() for array in arrays]
    return b"".join([_START.pack(_MAGIC, len(head), size), head, *data])


def _plain(value: Any) -> Any:
    """A value that JSON does not know: a path, a hash, settings, a number, a sequence."""
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Real):  # of numpy, or a fraction
        return int(value) if isinstance(value, Integral) else float(value)
    return asdict(value) if is_dataclass(value) else list(value)  # type: ignore[arg-type]


def send(sock: socket.socket, frame: bytes, seconds: float | None) -> None:
    """Write a frame within `seconds`; None: however long it takes. Raises: WorkerError."""
    try:
        sock.settimeout(seconds)
        sock.sendall(frame)
    except TimeoutError:
        raise WorkerError(f"a message was not read within {seconds:g} s") from None
    except OSError as error:
        raise WorkerError(f"a message could not be sent: {error}") from None


def receive(sock: socket.socket, deadline: float | None) -> Frame:
    """Read a frame until then, by `time.monotonic`; None: however long it takes.

    Raises: WorkerError for the end of the connection, the deadline, and what is no frame.
    """
    magic, head_size, size = _START.unpack(_read(sock, _START.size, deadline))
    if magic != _MAGIC:
        raise WorkerError(f"a message starts with {magic!r}; expected {_MAGIC!r}")
    _check_sizes(head_size, size)
    try:
        head = json.loads(bytes(_read(sock, head_size, deadline)))
    except (ValueError, RecursionError) as error:
        raise WorkerError(f"the head of a message is no JSON: {error}") from None
    kind = head.pop("kind", None) if isinstance(head, dict) else None
    if not isinstance(kind, str):
        raise WorkerError(f"the head of a message is {str(head)[:80]}; expected one with a kind")
    shapes = _shapes(head.pop("arrays", None))
    if sum(4 * math.prod(shape) for _, shape in shapes) != size:
        raise WorkerError(f"a message {kind!r} has {size} bytes of data; expected its arrays'")
    data, arrays, at = _read(sock, size, deadline), [], 0
    for dtype, shape in shapes:
        count = math.prod(shape)
        array = np.frombuffer(data, _DTYPES[dtype], count, at).reshape(shape)
        arrays.append(array.astype(dtype, copy=False))
        at += 4 * count
    return Frame(kind, head, arrays)


def _check_sizes(head: int, data: int) -> None:
    if head > MAX_HEAD or data > MAX_DATA:
        raise WorkerError(
            f"a message has a head of {head} bytes and {data} bytes of data; expected at most "
            f"{MAX_HEAD} and {MAX_DATA}"
        )


def _shapes(found: object) -> list[tuple[str, list[int]]]:
    good = isinstance(found, list) and all(
        isinstance(item, list)
        and len(item) == 2
        and item[0] in ("int32", "float32")
        and isinstance(item[1], list)
        and 1 <= len(item[1]) <= 2
        and all(type(n) is int and 0 <= n <= MAX_DATA for n in item[1])
        for item in found
    )
    if not good:
        raise WorkerError(
            f"the arrays of a message are {str(found)[:80]}; expected int32 or float32, and shapes"
        )
    return [(dtype, shape) for dtype, shape in found]  # type: ignore[attr-defined]


def _read(sock: socket.socket, size: int, deadline: float | None) -> bytearray:
    found, at = bytearray(size), 0
    view = memoryview(found)
    while at < size:
        # What is there is read even after the deadline.
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        try:
            sock.settimeout(left)
            count = sock.recv_into(view[at:])
        except (TimeoutError, BlockingIOError):
            raise WorkerError("the answer did not come in time") from None
        except OSError as error:
            raise WorkerError(f"the connection broke: {error}") from None
        if not count:
            raise WorkerError("the connection was closed")
        at += count
    return found
