"""Checks of OPENED and COMMIT: CRC-32s by which the edge knows a message that was damaged.

    OPENED   of OPEN as the cloud has read it, then of OPENED
    COMMIT   of all ids up to `upto`, prompt and answer, then of the stream's name, then of COMMIT

A message is taken as its binary frame, without padding, with check 0; COMMIT without its ids, which
come first. JSON messages have the same check: it is of what a message says, however it is written.

So OPENED tells of a prompt, parameters or a seed that arrived as others, and COMMIT of ids, a place
or a finish reason that did, of tokens missing before it, of another stream's commit, and of texts
that differ between the two ends from any earlier place on. Four bytes are enough: a CRC-32 changes
with every flipped bit, and every burst of up to 32 bits, of the ids or of a field; of other damage,
such as a field that is longer now, one in 2**32 passes. It is no signature: who can write messages
can write checks. TLS keeps such people out.
"""

from __future__ import annotations

import zlib

from msgspec.structs import replace

from foresay.edge.messages import Commit, Open, Opened
from foresay.edge.wire import decode, encode

__all__ = ["check_of_commit", "check_of_opened", "checked_commit", "checked_opened", "hash_of_open"]


def hash_of_open(asked: Open) -> int:
    """The CRC-32 of OPEN, the same at both ends. Raises: InputError for one that is not valid."""
    # As who decodes it has it: a temperature of 1 is 1.0 there.
    return zlib.crc32(encode(decode(encode(asked), side="cloud")))


def check_of_opened(opened: Opened, asked: int) -> int:
    """The check that OPENED has to have; `asked`: the hash of OPEN."""
    return zlib.crc32(encode(replace(opened, check=0)), asked)


def check_of_commit(commit: Commit, stream: bytes, prefix: int) -> int:
    """The check that COMMIT has to have in the stream of this name; `prefix`: the hash of the text
    up to its `upto`, as `edge.prefix` has it."""
    return zlib.crc32(stream + encode(replace(commit, tokens=b"", check=0)), prefix)


def checked_opened(opened: Opened, asked: int) -> Opened:
    """OPENED with its check."""
    return replace(opened, check=check_of_opened(opened, asked))


def checked_commit(commit: Commit, stream: bytes, prefix: int) -> Commit:
    """COMMIT with its check."""
    return replace(commit, check=check_of_commit(commit, stream, prefix))
