"""Messages as binary frames: msgpack, one message per WebSocket message, all names in one place.

A frame is checked before anything in it is used; what does not fit is an InputError, and nothing
else is ever raised. `json_frames` has the same messages as text, to debug with.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias

import msgspec

from foresay.edge.ids import bits_of, count_of, pack, unpack
from foresay.edge.messages import (
    CODES,
    FINISH,
    MAX_NODES,
    MAX_PAD,
    VERSION,
    WAITS,
    Close,
    Commit,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
    Wait,
)
from foresay.errors import InputError

__all__ = [
    "CODES",
    "DEFAULTS",
    "FINISH",
    "MAX_FRAME",
    "MAX_NODES",
    "MAX_PAD",
    "MESSAGES",
    "NAMES",
    "TAGS",
    "VERSION",
    "WAITS",
    "Close",
    "Commit",
    "DraftMessage",
    "Error",
    "Message",
    "Open",
    "Opened",
    "Resume",
    "Sampling",
    "Side",
    "Wait",
    "bits_of",
    "check_pad",
    "clipped",
    "count_of",
    "decode",
    "encode",
    "pack",
    "unpack",
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
DEFAULTS: dict[type[msgspec.Struct], dict[str, Any]] = {
    kind: {
        field.name: field.default
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    }
    for kind in NAMES
}
"""The fields of each message that may be left out at its end, with what they then are."""
_BY_TAG = {tag: kind for kind, tag in TAGS.items()}
_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "cloud": msgspec.msgpack.Decoder(Open | DraftMessage | Resume | Close),
    "edge": msgspec.msgpack.Decoder(Opened | Commit | Close | Error),
}
_READ: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "cloud": (Open, DraftMessage, Resume, Close),
    "edge": (Opened, Commit, Close, Error),
}
_ENCODER = msgspec.msgpack.Encoder()
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$(?P<path>.*?)`)?$", re.DOTALL)
_NAMED = 1 << 16
"""The value is looked up, to be named, only in frames up to this size."""


def encode(message: Message, pad: int = 0) -> bytes:
    """A message as a binary frame, padded to a multiple of `pad` bytes.

    The frame has the next multiple; where the padding itself does not fit (it takes at least 3
    bytes, and fields at the end that may be left out are then written), the one after it.
    Raises: InputError for a frame that is too long, or a pad that is not valid.
    """
    check_pad(pad)
    kind = type(message)
    names = kind.__struct_fields__[:-1]  # all but the padding
    values = [getattr(message, name) for name in names]
    defaults, used = DEFAULTS[kind], len(values)
    while used and names[used - 1] in defaults and values[used - 1] == defaults[names[used - 1]]:
        used -= 1
    frame = _ENCODER.encode([TAGS[kind], *values[:used]])
    if pad and len(frame) % pad:
        whole = bytearray(_ENCODER.encode([TAGS[kind], *values]))
        whole[0] += 1  # the array has one entry more
        size = -(len(whole) + 3) % pad
        # The length always in two bytes: with the shortest form some lengths could not be reached.
        frame = bytes(whole) + b"\xc5" + size.to_bytes(2, "big") + bytes(size)
    if len(frame) > MAX_FRAME:
        raise InputError(f"the frame has {len(frame)} bytes; expected at most {MAX_FRAME}")
    return frame


def decode(frame: bytes, *, side: Side, most: int = MAX_FRAME) -> Message:
    """The message in a binary frame that `side` received; its padding is checked and dropped.

    most: the length of the longest frame. Packed ids are not looked at: `unpack` checks them, and
    `DraftMessage.draft` a tree. Raises: InputError.
    """
    if len(frame) > min(most, MAX_FRAME):
        raise InputError(
            f"the frame has {len(frame)} bytes; expected at most {min(most, MAX_FRAME)}"
        )
    try:
        message: Message = _DECODERS[side].decode(frame)
    except msgspec.ValidationError as error:
        raise InputError(_said(error, frame, side)) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"the frame is {clipped(bytes(frame[:8]))}; expected msgpack: {clipped(str(error))}"
        ) from None
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
        message = msgspec.structs.replace(message, padding=b"")
    return message


def check_pad(pad: int) -> None:
    """Refuse what is no number of bytes to pad to. Raises: InputError."""
    if type(pad) is not int or not 0 <= pad <= MAX_PAD:
        raise InputError(f"pad is {pad!r:.100}; expected a number of bytes from 0 to {MAX_PAD}")


def _said(error: msgspec.ValidationError, frame: bytes, side: Side) -> str:
    """msgspec's message with the name of the message, of the field, and its value."""
    matched = _AT.match(str(error))
    what, path = (matched["what"], matched["path"]) if matched else (str(error), None)
    steps = [int(step) for step in re.findall(r"\[(\d+)\]", path or "")]
    value, known = None, len(frame) <= _NAMED
    try:
        value = msgspec.msgpack.decode(frame) if known else [frame[1]]
    except (ValueError, RecursionError, TypeError, IndexError):
        known = False
    tag = value[0] if isinstance(value, list) and value else None
    kind = _BY_TAG.get(tag) if isinstance(tag, int) else None
    what = what[:1].lower() + what[1:]
    if steps == [0] or kind is None:
        tags = ", ".join(f"{TAGS[k]} {NAMES[k]}" for k in _READ[side])
        return f"the frame starts with {clipped(tag)}; expected the tag of a message: {tags}"
    if not steps:
        return f"a message {NAMES[kind]} is not valid: {what}"
    names = kind.__struct_fields__
    name = names[steps[0] - 1] if steps[0] <= len(names) else "a field"
    if name == "sampling" and len(steps) > 1:
        name = Sampling.__struct_fields__[steps[1]]
    for step in steps:
        value = value[step] if isinstance(value, list) and step < len(value) else None
    shown = clipped(value) if known and name != "key" else "not valid"
    return f"{name} of a message {NAMES[kind]} is {shown}; {what}"


def clipped(value: object) -> str:
    """The value in ASCII, as an error names it: at most 100 characters."""
    shown = ascii(value)
    return shown if len(shown) <= 100 else shown[:99] + "…"
