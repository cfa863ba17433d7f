"""Messages as text frames: JSON, to debug with. `Frames` chooses between these and binary ones.

Ids are lists, other bytes hex digits, -inf is null, and fields that have their defaults may be left
out. `JSON_NAMES` has the fields with another name here. A draft may have q_token_probs and
hard_mask, which are ignored: no draft is weighed or held back, so they could change nothing. What
can be computed from other fields (k, correction, most of `metrics`) has to agree with them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from foresay.edge.ids import pack, unpack
from foresay.edge.messages import FINISH, MAX_NODES, Commit, DraftMessage, Message, Open, Sampling
from foresay.edge.wire import (
    DEFAULTS,
    MAX_FRAME,
    MESSAGES,
    NAMES,
    TAGS,
    Side,
    check_pad,
    clipped,
    decode,
    encode,
)
from foresay.errors import InputError

__all__ = ["JSON_NAMES", "Frames", "decode_json", "encode_json", "size_of"]

JSON_NAMES = {
    "stream": "ctx_id",
    "sampling": "sampling_cfg",
    "accepted": "accepted_len",
    "temperature": "temp",
    "repetition_penalty": "rep_penalty",
}
"""Besides, the tokens of a draft are `draft_tokens`, and server_us is in `metrics`, beside
alpha_mean, la_over_k and kv_length, which are computed from other fields of a commit."""

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
        """The message in a frame of at most so many bytes. Raises: InputError."""
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
    kind = type(message)
    found: dict[str, Any] = {"type": NAMES[kind]}
    if isinstance(message, DraftMessage | Commit):
        if stream:
            found["ctx_id"] = stream.hex()
    else:
        vocabulary = getattr(message, "vocabulary", None)
    for name in kind.__struct_fields__[:-1]:
        value, default = getattr(message, name), DEFAULTS[kind].get(name, msgspec.NODEFAULT)
        if value != default:
            found[_json_name(kind, name)] = _readable(name, value, vocabulary)
    if isinstance(message, DraftMessage):
        found["k"] = len(found["draft_tokens"])
    elif isinstance(message, Commit):
        found |= {"seq": message.seq, "accepted_len": message.accepted}
        found["correction"] = found["tokens"][-1] if found["tokens"] else None
        found["metrics"] = {"server_us": found.pop("server_us", 0), **_metrics_of(message)}
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
    metrics: dict[str, Any] = {}
    try:
        data = text.encode() if isinstance(text, str) else text
        if len(data) > min(most, MAX_FRAME):
            raise InputError(
                f"the frame has {len(data)} bytes; expected at most {min(most, MAX_FRAME)}"
            )
        given = msgspec.json.decode(data, type=dict[str, Any])
        kind = MESSAGES.get(name) if isinstance(name := given.pop("type", None), str) else None
        if kind is None:
            raise InputError(f"type is {clipped(name)}; expected one of {', '.join(MESSAGES)}")
        if kind is Open:
            vocabulary = given.get("vocabulary")
        elif kind in (DraftMessage, Commit):
            metrics = _take_derived(given, kind, stream)
        frame = msgspec.msgpack.encode([TAGS[kind], *_values(kind, given, vocabulary)])
    except InputError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(
            f"the frame is {clipped(text[:40])}; expected a JSON object: {clipped(str(error))}"
        ) from None
    message = decode(frame, side=side)
    if isinstance(message, Commit):
        expected = _metrics_of(message)
        for name, found in metrics.items():
            if name in expected and found is not None and not _agree(found, expected[name]):
                raise InputError(f"{name} is {clipped(found)}; expected {expected[name]}")
    return message


def _agree(found: object, expected: float | None) -> bool:
    """Whether a metric is the expected one; a share may be rounded to three digits or more."""
    if not isinstance(found, int | float) or expected is None:
        return found == expected
    return abs(found - expected) <= (_ROUNDED if isinstance(expected, float) else 0)


def _metrics_of(commit: Commit) -> dict[str, float | int | None]:
    """What `metrics` has besides server_us."""
    alpha, share = commit.alpha_mean, commit.la_over_k
    return {
        "alpha_mean": None if alpha is None else round(alpha, 4),
        "la_over_k": None if share is None else round(share, 4),
        "kv_length": commit.kv_length,
    }


def _take_derived(
    given: dict[str, Any], kind: type[msgspec.Struct], stream: bytes
) -> dict[str, Any]:
    """Take out what no field holds: the stream's name, and what can be computed from other fields.
    Returns the metrics of a commit."""
    metrics: dict[str, Any] = {}
    context = given.pop("ctx_id", None)
    if context is not None and stream and context != stream.hex():
        raise InputError(f"ctx_id is {clipped(context)}; expected {stream.hex()}, this stream")
    if kind is DraftMessage:
        if given.get("sampling_cfg") is not None:
            raise InputError(
                f"sampling_cfg is {clipped(given['sampling_cfg'])}; expected none in a draft: the "
                "parameters are those of open"
            )
        given.pop("sampling_cfg", None)
        for name in _IGNORED:
            given.pop(name, None)
        tokens = given.get("draft_tokens")
        name, expected = "k", len(tokens) if isinstance(tokens, list) else given.get("k")
    else:
        tokens = given.get("tokens")
        name, expected = "correction", tokens[-1] if isinstance(tokens, list) and tokens else None
        metrics = given.pop("metrics", {})
        if not isinstance(metrics, dict):
            raise InputError(f"metrics is {clipped(metrics)}; expected an object")
        if "server_us" in metrics:
            given["server_us"] = metrics["server_us"]
    if (found := given.pop(name, None)) is not None and found != expected:
        raise InputError(f"{name} is {clipped(found)}; expected {clipped(expected)}")
    return metrics


def _values(kind: type[msgspec.Struct], given: dict[str, Any], vocabulary: int | None) -> list[Any]:
    """The fields in order, as they are on the wire; takes them out of `given`."""
    found = []
    for name in kind.__struct_fields__:
        readable = _json_name(kind, name)
        if name == "padding":
            continue
        if readable in given:
            found.append(_wired(kind, name, given.pop(readable), vocabulary))
        elif kind is Sampling:
            found.append(getattr(Sampling(), name))
        elif name in DEFAULTS[kind]:
            found.append(DEFAULTS[kind][name])
        else:
            raise InputError(f"there is no {readable}; expected it in {NAMES[kind]}")
    if given:
        expected = ", ".join(_json_name(kind, name) for name in kind.__struct_fields__)
        raise InputError(f"there is a field {clipped(next(iter(given)))}; expected {expected}")
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
        defaults = Sampling()
        return {
            JSON_NAMES.get(field, field): _readable(field, found, None)
            for field in Sampling.__struct_fields__
            if (found := getattr(value, field)) != getattr(defaults, field)
        }
    return value.hex() if isinstance(value, bytes) else value


def _wired(kind: type[msgspec.Struct], name: str, value: Any, vocabulary: int | None) -> Any:
    """The opposite of `_readable`; a value of a wrong type is left to `decode`."""
    shown = _json_name(kind, name)
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


def _json_name(kind: type[msgspec.Struct], name: str) -> str:
    if kind is DraftMessage and name == "tokens":
        return "draft_tokens"
    return JSON_NAMES.get(name, name)


def _known(vocabulary: int | None) -> int:
    if vocabulary is None:
        raise InputError("vocabulary is None; expected the stream's: the message has ids")
    return vocabulary
