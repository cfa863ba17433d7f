"""Frames: what is sent is what arrives, sizes and padding are exact, nonsense is an InputError."""

from __future__ import annotations

import math
import random
import time
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.messages import Case, cases
from explore import examples
from foresay.draft import Draft
from foresay.edge.ids import pack
from foresay.edge.json_frames import decode_json, encode_json
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
from foresay.edge.wire import MAX_FRAME, MESSAGES, TAGS, Side, decode, encode
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams

STREAM, KEY = bytes(range(16)), bytes(range(16, 32))
SAMPLING = Sampling(0.7, 0.9, 40, logit_bias={3: -math.inf, 7: 1.5}, stop=("\n\n",), stop_ids=(2,))
OPEN = Open(
    VERSION, "m", b"\x01" * 32, 49152, pack(range(30), 49152), SAMPLING, 5, 100, "block", 64
)
OPENED = Opened(STREAM, KEY, 77, 30, 49152, 5, "philox", 32, 16, 120, (0, 2), "block")
DRAFT = DraftMessage(2, 31, 0xDEADBEEF, pack([1, 2, 3], 49152), bytes([0, 0, 1]))
COMMIT = Commit(33, pack([1, 2], 49152), 77, 2, 1, 2, 3, 1, 1500, 32, 1)
EVERY: list[tuple[Message, Side]] = [
    (OPEN, "cloud"),
    (OPENED, "edge"),
    (DRAFT, "cloud"),
    (COMMIT, "edge"),
    (Resume(STREAM, KEY, 33, 77), "cloud"),
    (Close("done"), "cloud"),
    (Close("done"), "edge"),
    (Error("bad_frame", "version is 1; expected 2", "version"), "edge"),
]
SAMPLED = msgspec.to_builtins(Sampling())
raw = msgspec.msgpack.encode


def with_field(message: Message, name: str, value: Any) -> bytes:
    """The frame of a message in which one field has that value."""
    names = message.__struct_fields__
    return raw([TAGS[type(message)], *(getattr(message, n) if n != name else value for n in names)])


@given(cases(), st.integers(0, 200))
@examples(100)
def test_a_message_arrives_as_it_was_sent(case: Case, pad: int) -> None:
    message, side, vocabulary = case
    frame = encode(message, pad)
    assert decode(frame, side=side) == message
    text = encode_json(message, vocabulary=vocabulary, stream=STREAM, pad=pad)
    assert decode_json(text, side=side, vocabulary=vocabulary, stream=STREAM) == message
    assert not pad or len(frame) % pad == len(text.encode()) % pad == 0


def test_each_message_has_a_case_here() -> None:
    assert (
        {type(message) for message, _ in EVERY} == set(MESSAGES.values()) == set(get_args(Message))
    )
    for message, side in EVERY:
        assert decode(encode(message), side=side) == message


@pytest.mark.parametrize("vocabulary", [49152, 151936])
def test_sizes(vocabulary: int) -> None:
    """The largest values that a long stream has; credit up to 127 takes one byte."""
    last = vocabulary - 1
    chain = DraftMessage.of(
        Draft.chain([last] * 8), seq=60_000, base=100_000, prefix=2**32 - 1, vocabulary=vocabulary
    )
    tree = DraftMessage.of(
        Draft([last] * 8, [-1] * 8),
        seq=60_000,
        base=100_000,
        prefix=2**32 - 1,
        vocabulary=vocabulary,
    )
    assert len(encode(chain)) <= 35
    assert len(encode(tree)) <= 48
    ids = pack([last] * 9, vocabulary)
    for credit in (None, 0, 127):
        told = (100_000, ids, 2**32 - 1, 60_000, 8, 8, 8, 1, 16_000_000)
        assert len(encode(Commit(*told, credit))) <= (47 if credit is None else 48)
    # Once per stream the finish reason comes on top.
    assert len(encode(Commit(*told, None, 1))) <= 49


def test_padding_is_exact() -> None:
    for size in [*range(600), *range(65_500, 65_600)]:
        message = Commit(size, bytes(size), 0)
        bare = encode(message)
        for pad in (1, 2, 16, 64, 255, 256, 257, 512, 4096, MAX_PAD):
            frame = encode(message, pad)
            assert decode(frame, side="edge") == message
            spare = -len(bare) % pad
            if spare and spare < 11:  # the eight defaults before the padding, and its head, take 11
                spare += -(-(11 - spare) // pad) * pad
            assert len(frame) == len(bare) + spare


def test_padding_of_every_message() -> None:
    for message, side in EVERY:
        for pad in range(1, 300):
            frame = encode(message, pad)
            assert len(frame) % pad == 0 and decode(frame, side=side) == message
    with pytest.raises(InputError, match=r"^pad is -1; expected"):
        encode(DRAFT, -1)
    with pytest.raises(InputError, match="zero bytes"):
        decode(with_field(DRAFT, "padding", b"\0\0x\0"), side="cloud")


WRONG: list[tuple[Message, Side, str, Any, str]] = [
    (OPEN, "cloud", "version", 1, "^version is 1; expected 2: the client needs a newer foresay$"),
    (OPEN, "cloud", "version", 3, "^version is 3; expected 2: the server needs a newer foresay$"),
    (OPEN, "cloud", "version", -1, "^version of a message open is -1; expected"),
    (OPEN, "cloud", "vocabulary", 0, "vocabulary of a message open is 0; expected"),
    (OPEN, "cloud", "wait", "lossy", "wait of a message open is 'lossy'; invalid enum"),
    (OPEN, "cloud", "pad", MAX_PAD + 1, f"pad of a message open is {MAX_PAD + 1}"),
    (OPEN, "cloud", "max_tokens", 0, "^max_tokens is 0; expected"),
    (OPEN, "cloud", "seed", -1, "seed of a message open is -1"),
    (OPEN, "cloud", "prompt", "text", "prompt of a message open is 'text'; expected `bytes`"),
    (OPEN, "cloud", "model", "x" * 257, "model of a message open is 'xxx"),
    (OPEN, "cloud", "sampling", [math.nan], "^temperature of a message open is nan; expected"),
    (OPEN, "cloud", "sampling", [1.0, math.nan], "^top_p of a message open is nan; expected"),
    (OPEN, "cloud", "sampling", [1.0, 2.0], "^top_p of a message open is 2.0; .* <= 1.0"),
    (OPEN, "cloud", "sampling", [1e300], "^temperature of a message open is 1e\\+300"),
    (OPEN, "cloud", "sampling", [1, 1, -5], "^top_k of a message open is -5; expected"),
    (OPEN, "cloud", "sampling", [1, 1, 0, 0, 1, 0, 0, {1: math.nan}], r"logit_bias\[1\] is nan"),
    (OPEN, "cloud", "sampling", [1, 1, 0, 0, 1, 0, 0, {-1: 1.0}], "^logit_bias of a message"),
    (OPEN, "cloud", "sampling", [0.0, 0.0], "^top_p is 0, which leaves no token"),
    (OPEN, "cloud", "sampling", [*SAMPLED, 1], "sampling of a message open is"),
    (OPENED, "edge", "stream", b"short", "stream of a message opened is b'short'; expected"),
    (OPENED, "edge", "nodes", 256, "nodes of a message opened is 256"),
    (OPENED, "edge", "ends", [-4], "ends of a message opened is -4"),
    (DRAFT, "cloud", "seq", 0, "seq of a message draft is 0; expected"),
    (DRAFT, "cloud", "base", 2**31, "base of a message draft is 2147483648; expected"),
    (DRAFT, "cloud", "base", True, "base of a message draft is True; expected `int`"),
    (DRAFT, "cloud", "base", 3.0, "base of a message draft is 3.0; expected `int`"),
    (DRAFT, "cloud", "prefix", 2**32, "prefix of a message draft is 4294967296"),
    (DRAFT, "cloud", "tokens", b"x" * 1021, "tokens of a message draft is b'xx"),
    (DRAFT, "cloud", "parents", bytes(256), "parents of a message draft is"),
    (COMMIT, "edge", "finish", 5, "finish of a message commit is 5; expected"),
    (COMMIT, "edge", "server_us", 2**32, "server_us of a message commit is"),
    (COMMIT, "edge", "credit", -1, "credit of a message commit is -1"),
]


@pytest.mark.parametrize(("message", "side", "name", "value", "said"), WRONG)
def test_a_wrong_value_is_named(
    message: Message, side: Side, name: str, value: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        decode(with_field(message, name, value), side=side)
    assert len(str(caught.value)) < 300


def test_a_wrong_value_in_a_long_frame() -> None:
    """Such a frame is not read again to find the value."""
    long = Open(VERSION, "", b"", 49152, bytes(200_000), max_tokens=-1)
    with pytest.raises(InputError, match=r"^max_tokens of a message open is not valid; .* >= 0"):
        decode(with_field(long, "max_tokens", -1), side="cloud")


def test_a_key_is_never_shown() -> None:
    wrong = with_field(EVERY[4][0], "key", b"secret, but too long")
    with pytest.raises(
        InputError, match="key of a message resume is not valid; expected"
    ) as caught:
        decode(wrong, side="cloud")
    assert "secret" not in str(caught.value)
    with pytest.raises(InputError, match="expected msgpack") as caught:
        decode(encode(Resume(STREAM, b"secret, 16 bytes", 1, 2))[:-1], side="cloud")
    assert "secret" not in str(caught.value)
    assert KEY.hex() not in repr(OPENED) and repr(KEY) not in repr(OPENED) + repr(EVERY[4][0])


def test_wrong_frames() -> None:
    frame = encode(DRAFT)
    for data, said in (
        (b"", "expected msgpack: 'Input data was truncated'"),
        (frame + b"\x00", "trailing"),
        (frame[:-1], "truncated"),
        (raw(5), "expected the tag of a message: 1 open, 3 draft, 5 resume, 6 close"),
        (raw([]), "the frame starts with None"),
        (raw([9, 1]), "the frame starts with 9; expected the tag"),
        (raw([True, 1]), "the frame starts with True; expected the tag"),
        (raw([3, 1, 2]), "a message draft is not valid: expected `array` of at least length 5"),
        (raw([3, 1, 2, 3, b"", b"", b"", 1]), "at most length 6, got 7"),
        (raw({"a": 1}), "the frame starts with None; expected the tag"),
        (encode(COMMIT), "the frame starts with 4; expected the tag of a message: 1 open"),
        (b"\x91" * 100_000, "expected the tag of a message"),
        (b"\x92\x06\xa1\xff", "expected msgpack"),
        (b"\xdd\xff\xff\xff\xff\x03", "expected"),
        (
            bytes(MAX_FRAME + 1),
            f"the frame has {MAX_FRAME + 1} bytes; expected at most {MAX_FRAME}",
        ),
    ):
        with pytest.raises(InputError) as caught:
            decode(data, side="cloud")
        assert said in str(caught.value)
    with pytest.raises(InputError, match="expected at most 10"):
        decode(frame, side="cloud", most=10)
    with pytest.raises(InputError, match="expected at most"):
        encode(Commit(1, bytes(MAX_FRAME), 0))


def used(message: Message) -> None:
    """What a receiver does with a message."""
    if isinstance(message, DraftMessage):
        message.draft(49152)
    encode_json(message, vocabulary=49152)


@given(st.binary(max_size=200), st.sampled_from(["edge", "cloud"]))
@examples(200)
def test_random_bytes(data: bytes, side: Side) -> None:
    for read in (decode, decode_json):
        try:
            used(read(data, side=side))
        except InputError as error:
            assert str(error)


def mutated(frame: bytes, rng: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
        elif kind == 2:
            del data[at : at + rng.randint(1, 4)]
        elif kind == 3:
            data[at : at + 1] = bytes([rng.choice(b"\xc0\xc4\xc6\xcb\xcf\xd3\xd9\xdd\xdf\x90\xff")])
        elif at < len(data):
            data[at] = rng.randrange(256) if kind == 4 else data[at] ^ (1 << rng.randrange(8))
    return bytes(data)


def test_mutated_frames() -> None:
    """50,000 of them; some are still messages, none raises anything but InputError."""
    rng, taken, started = random.Random(7), 0, time.monotonic()
    binary = [(encode(message, pad), side) for message, side in EVERY for pad in (0, 0, 64)]
    text = [(encode_json(m, vocabulary=49152).encode(), side) for m, side in EVERY]
    for at in range(50_000):
        frame, side = rng.choice(text if at % 4 == 0 else binary)
        try:
            if at % 4 == 0:
                used(decode_json(mutated(frame, rng), side=side, vocabulary=49152))
            else:
                used(decode(mutated(frame, rng), side=side))
            taken += 1
        except InputError as error:
            assert str(error)
    assert 1000 < taken < 40_000
    assert time.monotonic() - started < 20


def test_parameters_and_back() -> None:
    params = SamplingParams(
        max_tokens=9, temperature=0.5, top_k=3, stop=["a", 5], seed=4, logit_bias={2: -math.inf}
    )
    message = Open(VERSION, "", b"", 100, b"", Sampling.of(params), params.seed, params.max_tokens)
    opened = decode(encode(message), side="cloud")
    assert isinstance(opened, Open) and opened.params() == params
    for wrong in ({"n": 2}, {"logprobs": 0}, {"rule": "rejection"}, {"speculative": False}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Sampling.of(SamplingParams(**wrong))


def test_drafts_and_back() -> None:
    for draft in (Draft.empty(), Draft.chain([5, 6, 7]), Draft([5, 6, 7, 8], [-1, -1, 1, 0])):
        message = DraftMessage.of(draft, seq=1, base=9, prefix=3, vocabulary=300)
        assert message.draft(300) == draft
        assert bool(message.parents) == (draft.parents.tolist() != list(range(-1, len(draft) - 1)))
    ids = pack([1, 2], 300)
    for tokens, parents, said in (
        (ids, b"\0", "there are 1 parents of 2 nodes"),
        (ids, b"\0\2", "parents"),
        (ids, b"\1\0", "parents"),
        (pack([1] * 256, 200), b"", "the draft has"),
    ):
        with pytest.raises(InputError, match=said):
            DraftMessage(1, 9, 3, tokens, parents).draft(200 if len(tokens) == 256 else 300)
    with pytest.raises(InputError, match="the draft has 256 nodes; expected at most 255"):
        most = Draft(np.zeros(256, np.int32), np.arange(-1, 255, dtype=np.int32))
        DraftMessage.of(most, seq=1, base=0, prefix=0, vocabulary=300)
