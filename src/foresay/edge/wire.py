"""Messages as frames: msgpack in binary WebSocket messages, JSON in text messages to debug with.

A frame is checked before anything in it is used; what does not fit is an InputError, and nothing
else is ever raised. The JSON form has the same messages under the names of `JSON_NAMES`, ids as
lists and other bytes as hex digits. Who is asked in JSON answers in JSON.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal, TypeAlias

import msgspec

from foresay.edge.ids import bits_of, count_of, pack, unpack
from foresay.edge.messages import (
    FINISH,
    MAX_NODES,
    MAX_PAD,
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Policy,
    Resume,
    Sampling,
)
from foresay.errors import InputError

__all__ = [
    "FINISH",
    "JSON_NAMES",
    "MAX_FRAME",
    "MAX_NODES",
    "MAX_PAD",
    "MESSAGES",
    "VERSION",
    "Close",
    "Commit",
    "DraftMessage",
    "Error",
    "Message",
    "Open",
    "Opened",
    "Policy",
    "Resume",
    "Sampling",
    "Side",
    "bits_of",
    "count_of",
    "decode",
    "decode_json",
    "encode",
    "encode_json",
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

JSON_NAMES = {
    "stream": "ctx_id",
    "sampling": "sampling_cfg",
    "accepted": "accepted_len",
    "temperature": "temp",
    "repetition_penalty": "rep_penalty",
}
"""Fields that have another name in the JSON form. Besides, the tokens of a draft are
`draft_tokens`, and server_us is in `metrics`."""

_KINDS = {kind: name for name, kind in MESSAGES.items()}
_TAGS = {kind: kind.__struct_config__.tag for kind in _KINDS}
_BY_TAG = {tag: kind for kind, tag in _TAGS.items()}
_DEFAULTS: dict[type[msgspec.Struct], dict[str, Any]] = {
    kind: {
        field.name: field.default
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    }
    | ({"logit_bias": {}} if kind is Sampling else {})
    for kind in (*_KINDS, Sampling)
}
_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "cloud": msgspec.msgpack.Decoder(Open | DraftMessage | Resume | Close),
    "edge": msgspec.msgpack.Decoder(Opened | Commit | Close | Error),
}
_ENCODER = msgspec.msgpack.Encoder()
_AT = re.compile(
    r"^(?P<what>.*?)(?: - at `(?:key in )?(?:key` in `)?\$(?P<path>.*?)`)?$", re.DOTALL
)
_PADDING = "padding"
_NAMED = 1 << 16
"""The value is looked up, to be named, only in frames up to this size."""
_IGNORED = ("q_token_probs", "hard_mask")
"""Of a draft in the JSON form: no draft is weighed or held back, so these change nothing."""


def encode(message: Message, pad: int = 0) -> bytes:
    """A message as a binary frame, padded to a multiple of `pad` bytes.

    The frame has the next multiple; where the padding itself does not fit (it takes at least 3
    bytes, and fields at the end that may be left out are then written), the one after it.
    Raises: InputError for a frame that is too long, or a pad that is not valid.
    """
    _check_pad(pad)
    kind = type(message)
    names = kind.__struct_fields__[:-1]  # all but the padding
    values = [getattr(message, name) for name in names]
    defaults, used = _DEFAULTS[kind], len(values)
    while used and names[used - 1] in defaults and values[used - 1] == defaults[names[used - 1]]:
        used -= 1
    frame = _ENCODER.encode([_TAGS[kind], *values[:used]])
    if pad and len(frame) % pad:
        whole = bytearray(_ENCODER.encode([_TAGS[kind], *values]))
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
            f"the frame is {_short(bytes(frame[:40]))}; expected msgpack: {_short(str(error))}"
        ) from None
    if isinstance(message, Open):
        if message.version != VERSION:
            raise InputError(f"version is {message.version}; expected {VERSION}")
        message.params()
    if message.padding:
        if message.padding.strip(b"\0"):
            shown = _short(message.padding.lstrip(b"\0")[:40])
            raise InputError(f"the padding has {shown}; expected zero bytes")
        message = msgspec.structs.replace(message, padding=b"")
    return message


def encode_json(
    message: Message, *, vocabulary: int | None = None, stream: bytes = b"", pad: int = 0
) -> str:
    """A message as a text frame, padded with spaces to a multiple of `pad` bytes.

    vocabulary: of the stream, to unpack the ids of DRAFT and COMMIT, which have to be valid.
    stream: its name, which these two then have as ctx_id. Raises: InputError.
    """
    _check_pad(pad)
    kind = type(message)
    found: dict[str, Any] = {"type": _KINDS[kind]}
    if isinstance(message, DraftMessage | Commit):
        if stream:
            found["ctx_id"] = stream.hex()
    else:
        vocabulary = getattr(message, "vocabulary", None)
    for name in kind.__struct_fields__[:-1]:
        value, default = getattr(message, name), _DEFAULTS[kind].get(name, msgspec.NODEFAULT)
        if value != default:
            found[_json_name(kind, name)] = _readable(name, value, vocabulary)
    if isinstance(message, DraftMessage):
        found["k"] = len(found["draft_tokens"])
    elif isinstance(message, Commit):
        found |= {"seq": message.seq, "accepted_len": message.accepted}
        found["correction"] = found["tokens"][-1] if found["tokens"] else None
        found["metrics"] = {"server_us": found.pop("server_us", 0)}
    text = msgspec.json.encode(found)
    if len(text) > MAX_FRAME:
        raise InputError(f"the frame has {len(text)} bytes; expected at most {MAX_FRAME}")
    return (text + b" " * (-len(text) % pad if pad else 0)).decode()


def decode_json(
    text: str | bytes,
    *,
    side: Side,
    vocabulary: int | None = None,
    stream: bytes = b"",
    most: int = MAX_FRAME,
) -> Message:
    """The message in a text frame that `side` received, checked as a binary one.

    vocabulary, stream: as of `encode_json`; a ctx_id of another stream is refused.
    Raises: InputError.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
        if len(data) > min(most, MAX_FRAME):
            raise InputError(
                f"the frame has {len(data)} bytes; expected at most {min(most, MAX_FRAME)}"
            )
        given = msgspec.json.decode(data, type=dict[str, Any])
        kind = MESSAGES.get(name) if isinstance(name := given.pop("type", None), str) else None
        if kind is None:
            raise InputError(f"type is {_short(name)}; expected one of {', '.join(MESSAGES)}")
        if kind is Open:
            vocabulary = given.get("vocabulary")
        elif kind in (DraftMessage, Commit):
            _take_seed_names(given, kind, stream)
        frame = _ENCODER.encode([_TAGS[kind], *_values(kind, given, vocabulary)])
    except InputError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"the frame is {_short(text[:40])}; expected a JSON object: {_short(str(error))}"
        ) from None
    return decode(frame, side=side)


def _take_seed_names(given: dict[str, Any], kind: type[msgspec.Struct], stream: bytes) -> None:
    """Take out what no field holds: names of the stream, and what can be counted from the ids."""
    context = given.pop("ctx_id", None)
    if context is not None and stream and context != stream.hex():
        raise InputError(f"ctx_id is {_short(context)}; expected {stream.hex()}, this stream")
    if kind is DraftMessage:
        if given.get("sampling_cfg") is not None:
            raise InputError(
                f"sampling_cfg is {_short(given['sampling_cfg'])}; expected none in a draft: the "
                "parameters are those of open"
            )
        given.pop("sampling_cfg", None)
        for name in _IGNORED:
            given.pop(name, None)
        tokens = given.get("draft_tokens")
        name, expected = "k", len(tokens) if isinstance(tokens, list) else None
    else:
        tokens = given.get("tokens")
        name, expected = "correction", tokens[-1] if isinstance(tokens, list) and tokens else None
        metrics = given.pop("metrics", None)
        if metrics is not None and not isinstance(metrics, dict):
            raise InputError(f"metrics is {_short(metrics)}; expected an object")
        given["server_us"] = (metrics or {}).get("server_us", 0)
    if (found := given.pop(name, None)) is not None and found != expected:
        raise InputError(f"{name} is {_short(found)}; expected {_short(expected)}")


def _values(kind: type[msgspec.Struct], given: dict[str, Any], vocabulary: int | None) -> list[Any]:
    """The fields in order, as they are on the wire; takes them out of `given`."""
    found = []
    for name in kind.__struct_fields__:
        readable = _json_name(kind, name)
        if name == _PADDING:
            continue
        if readable in given:
            found.append(_wired(kind, name, given.pop(readable), vocabulary))
        elif name in _DEFAULTS[kind]:
            found.append(_DEFAULTS[kind][name])
        else:
            raise InputError(f"there is no {readable}; expected it in {_KINDS[kind]}")
    if given:
        expected = ", ".join(_json_name(kind, name) for name in kind.__struct_fields__)
        raise InputError(f"there is a field {_short(next(iter(given)))}; expected {expected}")
    return found


def _readable(name: str, value: Any, vocabulary: int | None) -> Any:
    if name in ("tokens", "prompt"):
        return unpack(value, _known(vocabulary)).tolist()
    if name == "parents":
        return list(value)
    if name == "finish":
        return FINISH[value]
    if name == "logit_bias":  # JSON has no -inf
        return {str(at): None if bias == -math.inf else bias for at, bias in value.items()}
    if isinstance(value, Sampling):
        defaults = _DEFAULTS[Sampling]
        return {
            JSON_NAMES.get(field, field): _readable(field, found, None)
            for field in Sampling.__struct_fields__
            if (found := getattr(value, field)) != defaults[field]
        }
    return value.hex() if isinstance(value, bytes) else value


def _wired(kind: type[msgspec.Struct], name: str, value: Any, vocabulary: int | None) -> Any:
    """The opposite of `_readable`; a value of a wrong type is left to `decode`."""
    shown = _json_name(kind, name)
    if name in ("tokens", "prompt") and isinstance(value, list):
        return pack(value, _known(vocabulary))
    if name == "parents" and isinstance(value, list):
        if any(type(parent) is not int or not 0 <= parent <= MAX_NODES for parent in value):
            raise InputError(f"parents is {_short(value)}; expected numbers from 0 to {MAX_NODES}")
        return bytes(value)
    if name == "finish":
        if not isinstance(value, str) or value not in FINISH:
            raise InputError(f"finish is {_short(value)}; expected one of {', '.join(FINISH[1:])}")
        return FINISH.index(value)
    if name == "logit_bias" and isinstance(value, dict):
        if wrong := [at for at in value if not re.fullmatch("[0-9]{1,10}", at)]:
            raise InputError(f"logit_bias has the key {_short(wrong[0])}; expected a token id")
        return {int(at): -math.inf if bias is None else bias for at, bias in value.items()}
    if name == "sampling" and isinstance(value, dict):
        return _values(Sampling, dict(value), None)
    if name in ("stream", "key", "tokenizer") and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise InputError(f"{shown} is {_short(value)}; expected hex digits") from None
    return value


def _json_name(kind: type[msgspec.Struct], name: str) -> str:
    if kind is DraftMessage and name == "tokens":
        return "draft_tokens"
    return JSON_NAMES.get(name, name)


def _known(vocabulary: int | None) -> int:
    if vocabulary is None:
        raise InputError("vocabulary is None; expected the stream's: the message has ids")
    return vocabulary


def _check_pad(pad: int) -> None:
    if not 0 <= pad <= MAX_PAD:
        raise InputError(f"pad is {pad}; expected a number of bytes from 0 to {MAX_PAD}")


def _said(error: msgspec.ValidationError, frame: bytes, side: Side) -> str:
    """msgspec's message with the name of the message, of the field, and its value."""
    matched = _AT.match(str(error))
    what, path = (matched["what"], matched["path"]) if matched else (str(error), None)
    steps = [int(step) for step in re.findall(r"\[(\d+)\]", path or "")]
    try:
        value = msgspec.msgpack.decode(frame) if len(frame) <= _NAMED else None
    except (ValueError, RecursionError, TypeError):
        value = None
    tag = value[0] if isinstance(value, list) and value else None
    kind = _BY_TAG.get(tag) if isinstance(tag, int) else None
    what = what[:1].lower() + what[1:]
    if steps == [0] or kind is None:
        tags = ", ".join(f"{_TAGS[k]} {_KINDS[k]}" for k in _KINDS if _read_by(k, side))
        return f"the frame starts with {_short(tag)}; expected the tag of a message: {tags}"
    if not steps:
        return f"a message {_KINDS[kind]} is not valid: {what}"
    names = kind.__struct_fields__
    name = names[steps[0] - 1] if steps[0] <= len(names) else "a field"
    if name == "sampling" and len(steps) > 1:
        name = Sampling.__struct_fields__[steps[1]]
    for step in steps:
        value = value[step] if isinstance(value, list) and step < len(value) else None
    shown = "hidden" if name == "key" else _short(value)
    return f"{name} of a message {_KINDS[kind]} is {shown}; {what}"


def _read_by(kind: type[msgspec.Struct], side: Side) -> bool:
    return (
        kind
        in ((Open, DraftMessage, Resume, Close), (Opened, Commit, Close, Error))[side == "edge"]
    )


def _short(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= 100 else shown[:99] + "…"
