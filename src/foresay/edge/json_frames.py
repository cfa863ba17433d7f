"""Messages as text frames: JSON, to debug with. `Frames` chooses between these and binary ones.

Ids are lists, other bytes hex digits, finish reasons words, -inf is null, and fields that have
their defaults may be left out. The structs of `messages` have the names here; server_us is in
`metrics`, beside alpha_mean, la_over_k and kv_length, which are computed from other fields of a
commit. A draft may have q_token_probs and hard_mask, which are ignored: no draft is weighed or held
back, so they could change nothing. What can be computed from other fields (k, correction, most of
`metrics`) has to agree with them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from foresay.edge.ids import pack, unpack
from foresay.edge.messages import FINISH, MAX_NODES, Commit, DraftMessage, Message, Sampling
from foresay.edge.wire import (
    FIELDS,
    MAX_FRAME,
    MESSAGES,
    NAMES,
    TAGS,
    Side,
    check_pad,
    check_size,
    clipped,
    convert,
    decode,
    encode,
)
from foresay.errors import InputError

__all__ = ["Frames", "decode_json", "encode_json", "size_of"]

_COMPUTED = {DraftMessage: ("ctx_id", "k"), Commit: ("ctx_id", "correction", "metrics")}
"""What no field holds."""
_IGNORED = ("q_token_probs", "hard_mask")
_ROUNDED = 0.0006  # what rounding a share to three digits, and this side's to four, may change


@dataclass(slots=True)
class Frames:
    """The frames of one connection; each is read in the form that it has.

    side                     who reads here
    json                     messages are written as JSON
    vocabulary, stream, pad  of the stream, once it has one
    """

    side: Side
    json: bool = False
    vocabulary: int | None = None
    stream: bytes = b""
    pad: int = 0

    def write(self, message: Message) -> bytes | str:
        """A message as a frame. Raises: InputError."""
        if not self.json:
            return encode(message, self.pad)
        return encode_json(message, vocabulary=self.vocabulary, stream=self.stream, pad=self.pad)

    def read(self, frame: bytes | str, most: int = MAX_FRAME) -> Message:
        """The message in a frame of at most `most` bytes. Raises: InputError."""
        if not isinstance(frame, str):
            return decode(frame, side=self.side, most=most)
        vocabulary, stream = self.vocabulary, self.stream
        return decode_json(frame, side=self.side, vocabulary=vocabulary, stream=stream, most=most)


def size_of(frame: bytes | str) -> int:
    """Bytes of a frame."""
    return len(frame.encode() if isinstance(frame, str) else frame)


def encode_json(
    message: Message, *, vocabulary: int | None = None, stream: bytes = b"", pad: int = 0
) -> str:
    """A message as a text frame, padded with spaces to a multiple of `pad` bytes.

    vocabulary: of the stream, to unpack the ids of DRAFT and COMMIT, which have to be valid.
    stream: its name, which these two then have as ctx_id. Raises: InputError.
    """
    check_pad(pad)
    vocabulary = getattr(message, "vocabulary", vocabulary)
    found = {"type": NAMES[type(message)], **_object(message, vocabulary)}
    found.pop("server_us", None)
    if isinstance(message, Commit):
        found |= {"seq": message.seq, "accepted_len": message.accepted}
    found |= _computed(message, found, stream)
    text = msgspec.json.encode(found)
    check_size(text, MAX_FRAME)
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
        check_size(data, min(most, MAX_FRAME))
        given = msgspec.json.decode(data, type=dict[str, Any])
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the frame is {clipped(text[:40])}; expected a JSON object: {clipped(str(error))}"
        ) from None
    name = given.pop("type", None)
    kind = MESSAGES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InputError(f"type is {clipped(name)}; expected one of {', '.join(MESSAGES)}")
    computed = {name: given.pop(name, None) for name in _COMPUTED.get(kind, ())}
    if kind is DraftMessage:
        if (own := given.pop("sampling_cfg", None)) is not None:
            raise InputError(
                f"sampling_cfg is {clipped(own)}; expected none in a draft: the parameters are "
                "those of open"
            )
        given = {name: value for name, value in given.items() if name not in _IGNORED}
    if (metrics := computed.get("metrics")) is not None:
        if not isinstance(metrics, dict):
            raise InputError(f"metrics is {clipped(metrics)}; expected an object")
        given |= {name: metrics[name] for name in ("server_us",) if name in metrics}
    values = _values(kind, dict(given), given.get("vocabulary", vocabulary))
    message = convert([TAGS[kind], *values], side)
    _compare(computed, _computed(message, given, stream))
    return message


def _computed(message: Message, given: dict[str, Any], stream: bytes) -> dict[str, Any]:
    """What the JSON form has besides its fields, which are `given`."""
    found: dict[str, Any] = {}
    if isinstance(message, DraftMessage | Commit) and stream:
        found["ctx_id"] = stream.hex()
    if isinstance(message, DraftMessage):
        found["k"] = len(given["draft_tokens"])
    elif isinstance(message, Commit):
        found["correction"] = given["tokens"][-1] if given["tokens"] else None
        alpha, share = message.alpha_mean, message.la_over_k
        found["metrics"] = {
            "server_us": message.server_us,
            "alpha_mean": None if alpha is None else round(alpha, 4),
            "la_over_k": None if share is None else round(share, 4),
            "kv_length": message.kv_length,
        }
    return found


def _compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse another value than the computed one, where there is one; a share may be rounded to
    three digits or more. Raises: InputError."""
    for name, value in found.items():
        right = expected.get(name, value)
        if isinstance(value, dict) and isinstance(right, dict):
            _compare(value, right)
        elif isinstance(value, int | float) and isinstance(right, float):
            if not abs(value - right) <= _ROUNDED:
                raise InputError(f"{name} is {clipped(value)}; expected {right}")
        elif value is not None and value != right:
            raise InputError(f"{name} is {clipped(value)}; expected {clipped(right)}")


def _object(message: msgspec.Struct, vocabulary: int | None) -> dict[str, Any]:
    """The fields by their names in JSON, without those that have their defaults."""
    return {
        field.encode_name: _readable(name, value, vocabulary)
        for name, field in FIELDS[type(message)].items()
        if (value := getattr(message, name)) != _default(field)
    }


def _default(field: FieldInfo) -> Any:
    factory = field.default_factory
    return field.default if factory is msgspec.NODEFAULT else factory()


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
        return _object(value, None)
    return value.hex() if isinstance(value, bytes) else value


def _values(kind: type[msgspec.Struct], given: dict[str, Any], vocabulary: int | None) -> list[Any]:
    """The fields in order, as they are on the wire; takes them out of `given`.

    Raises: InputError for a field that is missing, unknown, or cannot be brought into that form.
    """
    found = []
    for name, field in FIELDS[kind].items():
        readable = field.encode_name
        if readable in given and name != "padding":
            found.append(_wired(name, readable, given.pop(readable), vocabulary))
        elif not field.required:
            found.append(_default(field))
        else:
            raise InputError(f"there is no {readable}; expected it in {NAMES[kind]}")
    if given:
        expected = ", ".join(field.encode_name for field in FIELDS[kind].values())
        raise InputError(f"there is a field {clipped(next(iter(given)))}; expected {expected}")
    return found


def _wired(name: str, shown: str, value: Any, vocabulary: int | None) -> Any:
    """The opposite of `_readable`; another value of a wrong type is left to msgspec."""
    if name in ("tokens", "prompt", "parents") and not isinstance(value, list):
        raise InputError(f"{shown} is {clipped(value)}; expected a list")
    if name in ("tokens", "prompt"):
        return pack(value, _known(vocabulary), shown)
    if name == "parents":
        if any(type(parent) is not int or not 0 <= parent <= MAX_NODES for parent in value):
            raise InputError(f"parents is {clipped(value)}; expected numbers from 0 to {MAX_NODES}")
        return bytes(value)
    if name == "finish":
        if not isinstance(value, str) or value not in FINISH:
            raise InputError(f"finish is {clipped(value)}; expected one of {', '.join(FINISH[1:])}")
        return FINISH.index(value)
    if name == "logit_bias" and isinstance(value, dict):
        if wrong := [at for at in value if not re.fullmatch("[0-9]{1,10}", at)]:
            raise InputError(f"logit_bias has the key {clipped(wrong[0])}; expected a token id")
        return {int(at): -math.inf if bias is None else bias for at, bias in value.items()}
    if name == "sampling" and isinstance(value, dict):
        return _values(Sampling, dict(value), None)
    if name in ("stream", "key", "tokenizer") and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            said = "not valid" if name == "key" else clipped(value)
            raise InputError(f"{shown} is {said}; expected hex digits") from None
    return value


def _known(vocabulary: int | None) -> int:
    if vocabulary is None:
        raise InputError("vocabulary is None; expected the stream's: the message has ids")
    return vocabulary
