"""Messages as binary frames: msgpack, one message per WebSocket message.

A frame is checked before anything in it is used; what does not fit is an InputError, and nothing
else is ever raised. `json_frames` has the same messages as text, to debug with.

OPENED and COMMIT have checks, CRC-32s by which the edge knows a message that was damaged:

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

import re
import zlib
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import FieldInfo, replace

from foresay.edge.messages import (
    MAX_PAD,
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
)
from foresay.errors import InputError

__all__ = [
    "FIELDS",
    "MAX_FRAME",
    "MESSAGES",
    "NAMES",
    "TAGS",
    "Side",
    "check_of_commit",
    "check_of_opened",
    "check_pad",
    "check_size",
    "checked_commit",
    "checked_opened",
    "clipped",
    "convert",
    "decode",
    "encode",
    "hash_of_open",
]

Side: TypeAlias = Literal["edge", "cloud"]
"""Who reads a frame."""
MAX_FRAME = 4 << 20
"""Bytes of any frame."""
MESSAGES: dict[str, type[msgspec.Struct]] = {
    "open": Open,
    "opened": Opened,
    "draft": DraftMessage,
    "commit": Commit,
    "resume": Resume,
    "close": Close,
    "error": Error,
}
"""By the name that the JSON form has in `type`."""
NAMES = {kind: name for name, kind in MESSAGES.items()}
TAGS = {kind: kind.__struct_config__.tag for kind in NAMES}
_KINDS: tuple[type[msgspec.Struct], ...] = (*MESSAGES.values(), Sampling)
FIELDS: dict[type[msgspec.Struct], dict[str, FieldInfo]] = {
    kind: {field.name: field for field in msgspec.structs.fields(kind)} for kind in _KINDS
}
"""Of each struct, with their names in JSON and their defaults."""
_READ: dict[Side, Any] = {
    "cloud": Open | DraftMessage | Resume | Close,
    "edge": Opened | Commit | Close | Error,
}
_DECODERS = {side: msgspec.msgpack.Decoder(kinds) for side, kinds in _READ.items()}
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<path>.*?)`)?$", re.DOTALL)
_NAMED = 1 << 16
"""The value is looked up, to be named, only in frames up to this size."""


def check_pad(pad: int) -> None:
    """Refuse what is no number of bytes to pad to. Raises: InputError."""
    if type(pad) is not int or not 0 <= pad <= MAX_PAD:
        raise InputError(f"pad is {pad!r:.100}; expected a number of bytes from 0 to {MAX_PAD}")


# -- binary frames -----------------------------------------------------------------------------


def encode(message: Message, pad: int = 0) -> bytes:
    """A message as a binary frame, padded to a multiple of `pad` bytes.

    The frame has the next multiple; where the padding itself does not fit (it takes at least 3
    bytes, and fields at the end that may be left out are then written), the one after it.
    Raises: InputError for a frame that is too long, or a pad that is not valid.
    """
    check_pad(pad)
    kind = type(message)
    fields = list(FIELDS[kind].values())[:-1]  # all but the padding
    values = [getattr(message, field.name) for field in fields]
    used = len(values)
    while used and values[used - 1] == fields[used - 1].default:
        used -= 1
    frame = msgspec.msgpack.encode([TAGS[kind], *values[:used]])
    if pad and len(frame) % pad:
        whole = bytearray(msgspec.msgpack.encode([TAGS[kind], *values]))
        whole[0] += 1  # the array has one entry more
        size = -(len(whole) + 3) % pad
        # The length always in two bytes: with the shortest form some lengths could not be reached.
        frame = bytes(whole) + b"\xc5" + size.to_bytes(2, "big") + bytes(size)
    check_size(frame, MAX_FRAME)
    return frame


def decode(frame: bytes, *, side: Side, most: int = MAX_FRAME) -> Message:
    """The message in a binary frame that `side` received; its padding is checked and dropped.

    most: the length of the longest frame. Packed ids are not looked at: `unpack` checks them, and
    `DraftMessage.draft` a tree. Raises: InputError.
    """
    check_size(frame, min(most, MAX_FRAME))
    try:
        message: Message = _DECODERS[side].decode(frame)
    except msgspec.ValidationError as error:
        try:
            values = msgspec.msgpack.decode(frame) if len(frame) <= _NAMED else None
        except (ValueError, RecursionError):
            values = None
        known = values is not None
        raise InputError(_said(error, values if known else [*frame[1:2]], side, known)) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"the frame is {clipped(bytes(frame[:8]))}; expected msgpack: {clipped(str(error))}"
        ) from None
    return _checked(message)


def _checked(message: Message) -> Message:
    """What no struct can check. Raises: InputError."""
    if isinstance(message, Open):
        if message.version != VERSION:
            who = "client" if message.version < VERSION else "server"
            raise InputError(
                f"version is {message.version}; expected {VERSION}: the {who} needs a newer foresay"
            )
        message.params()
    if message.padding:
        if message.padding.strip(b"\0"):
            shown = clipped(message.padding.lstrip(b"\0")[:40])
            raise InputError(f"the padding has {shown}; expected zero bytes")
        message = replace(message, padding=b"")
    return message


def convert(values: list[Any], side: Side) -> Message:
    """The message of a frame's tag and values, checked as by `decode`. Raises: InputError."""
    try:
        message: Message = msgspec.convert(values, _READ[side], builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise InputError(_said(error, values, side)) from None
    return _checked(message)


def check_size(frame: bytes, most: int) -> None:
    """Refuse a frame that is too long. Raises: InputError."""
    if len(frame) > most:
        raise InputError(f"the frame has {len(frame)} bytes; expected at most {most}")


def _said(error: msgspec.ValidationError, values: Any, side: Side, known: bool = True) -> str:
    """msgspec's message with the name of the message, of the field, and its value.

    values: of the frame; where they are not known, the tag alone.
    """
    matched = _AT.match(str(error))
    what, path = (matched["what"], matched["path"]) if matched else (str(error), None)
    what = what[:1].lower() + what[1:]
    steps = [int(step) for step in re.findall(r"\[(\d+)\]", path or "")]
    tag = values[0] if isinstance(values, list) and values else None
    kind = next((kind for kind, its in TAGS.items() if type(tag) is int and its == tag), None)
    if steps == [0] or kind is None:
        tags = ", ".join(f"{TAGS[each]} {NAMES[each]}" for each in _READ[side].__args__)
        return f"the frame starts with {clipped(tag)}; expected the tag of a message: {tags}"
    if not steps:
        return f"a message {NAMES[kind]} is not valid: {what}"
    names = kind.__struct_fields__
    name = names[steps[0] - 1] if steps[0] <= len(names) else "a field"
    if name == "sampling" and len(steps) > 1:
        name = Sampling.__struct_fields__[steps[1]]
    shown = "not valid"
    if known and name != "key":
        for step in steps:
            values = values[step] if isinstance(values, list) and step < len(values) else None
        shown = clipped(values)
    return f"{name} of a message {NAMES[kind]} is {shown}; {what}"


def clipped(value: object) -> str:
    """The value in ASCII, as an error names it: at most 100 characters."""
    shown = ascii(value)
    return shown if len(shown) <= 100 else shown[:99] + "…"


# -- checks ------------------------------------------------------------------------------------


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
