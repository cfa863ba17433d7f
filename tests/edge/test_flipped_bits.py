"""One flipped bit in any frame of a stream: the text is the right one, or there is an error.

The frames of a stream are recorded; each is given to the other end with one bit flipped, every bit
in its turn. Only the network is left out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError

from edge.asking import answered
from edge.toy_cloud import VOCABULARY, ToyCloud, plain, toy_cloud
from foresay.draft import Draft
from foresay.edge import stream as stream_module
from foresay.edge.ahead import DraftThread
from foresay.edge.client import Answer
from foresay.edge.connection import Connection, Lost
from foresay.edge.ids import pack
from foresay.edge.json_frames import Frames
from foresay.edge.messages import (
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
)
from foresay.edge.prefix import Prefix
from foresay.edge.settings import ClientOptions
from foresay.edge.stream import Stream
from foresay.edge.wire import Side, check_of_opened, checked_commit, checked_opened, hash_of_open
from foresay.errors import InputError, StreamError
from foresay.sampling.noise import SPEC
from foresay.sampling.params import SamplingParams

Frame = bytes | str
NAME, KEY = bytes(range(16)), bytes(range(16, 32))
PROMPT, SEED = [5, 6, 7, 5, 6], 9
SIZES = (2, 4)  # tokens of each commit
ANSWER = plain(PROMPT, sum(SIZES), 0.8, SEED)
PARAMS = SamplingParams(max_tokens=len(ANSWER), temperature=0.8, seed=SEED)
ASKED = Open(
    VERSION,
    "",
    b"",
    VOCABULARY,
    pack(PROMPT, VOCABULARY),
    Sampling.of(PARAMS),
    SEED,
    PARAMS.max_tokens,
    "block",
)
OPENED = checked_opened(
    Opened(NAME, KEY, 0, len(PROMPT), VOCABULARY, SEED, SPEC, 64, 32, 60, (2,), "block"),
    hash_of_open(ASKED),
)


def commits() -> Iterator[Commit]:
    upto, prefix = len(PROMPT), Prefix(np.array(PROMPT, np.int32))
    for number, size in enumerate(SIZES):
        first = upto - len(PROMPT)
        new, upto = ANSWER[first : first + size], upto + size
        prefix.extend(np.array(new, np.int32))
        finish = 2 * (first + size == len(ANSWER))
        told = (number, size - 1, size, 4, 1, 1500) if number else (0, 0, 0, 0, 0, 0)
        commit = Commit(upto, pack(new, VOCABULARY), 0, *told, None, finish)
        yield checked_commit(commit, NAME, prefix.at(upto))


def frames_of(side: Side, json: bool) -> Frames:
    return Frames(side, json, VOCABULARY, NAME)


def recorded(json: bool) -> list[Frame]:
    """What the cloud sends: OPENED, and the commits."""
    written = frames_of("cloud", json)
    messages: list[Message] = [OPENED, *commits()]
    return [written.write(message) for message in messages]


def bits_of(frame: Frame) -> int:
    return 8 * len(frame)  # of text too: it is ASCII


def flipped(frame: Frame, bit: int) -> Frame:
    """The frame with one bit flipped."""
    data = bytearray(frame.encode() if isinstance(frame, str) else frame)
    data[bit // 8] ^= 1 << bit % 8
    return data.decode("utf-8", "replace") if isinstance(frame, str) else bytes(data)


class Played:
    """A socket that gives recorded frames, and is then lost."""

    def __init__(self, frames: list[Frame]) -> None:
        self._frames = iter(frames)

    async def send(self, frame: Frame) -> None:
        pass

    async def recv(self) -> Frame:
        for frame in self._frames:
            return frame
        raise ConnectionClosedError(None, None)

    async def close(self) -> None:
        pass


def outcome_of(
    monkeypatch: pytest.MonkeyPatch, json: bool, step: int = 1, kinds: tuple[int, ...] = (0, 1, 2)
) -> Counter[str]:
    """What became of each stream with one flipped bit, of every `step`-th bit."""
    sent, found = recorded(json), Counter[str]()
    options = ClientOptions("ws://nowhere", vocabulary=VOCABULARY, wait="block", json=json)

    async def one(frames: list[Frame]) -> str:
        async def connect(*_: Any, **__: Any) -> Connection:
            return Connection(Played(frames), stream.statistics, json=json)  # type: ignore[arg-type]

        monkeypatch.setattr(stream_module, "connect", connect)
        prompt = np.array(PROMPT, np.int32)
        stream = Stream(options, prompt, PARAMS, None, DraftThread())
        try:
            finish = await stream._one_connection()
        except (Lost, StreamError) as error:
            assert str(error) and "\n" not in str(error)
            right = stream.text.tokens == ANSWER[: len(stream.text.tokens)]
            return "refused" if right else "wrong"
        right = (stream.text.tokens, finish) == (ANSWER, "length")
        return "right" if right and stream.opened == OPENED else "wrong"

    async def every() -> None:
        assert await one(sent) == "right"
        for at in kinds:
            for bit in range(0, bits_of(sent[at]), step):
                found[await one([*sent[:at], flipped(sent[at], bit), *sent[at + 1 :]])] += 1

    asyncio.run(every())
    return found


def test_every_bit_of_what_the_cloud_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    found = outcome_of(monkeypatch, json=False)
    assert found["wrong"] == 0 and found["right"] == 0, found  # each bit says something
    assert found["refused"] == sum(map(bits_of, recorded(json=False)))


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_bits_of_what_the_cloud_sends_as_json(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """What a bit changes may be of no meaning there, such as the name of a metric."""
    found = outcome_of(monkeypatch, json=True, step=step)
    assert found["wrong"] == 0 and found["refused"] > 4 * found["right"] > 0, found


@pytest.mark.parametrize("name", ["check_of_commit", "check_of_opened"])
def test_without_a_check_there_are_wrong_texts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The control: a client that believes every check."""
    monkeypatch.setattr(stream_module, name, lambda message, *_: message.check)
    kinds = (1, 2) if name == "check_of_commit" else (0,)
    found = outcome_of(monkeypatch, json=False, step=3, kinds=kinds)
    assert found["wrong"] > 10, found


def read(message: Message, json: bool) -> Iterator[Message]:
    """What the cloud reads, for each flipped bit that leaves a message."""
    frame, reading = frames_of("edge", json).write(message), frames_of("cloud", json)
    for bit in range(bits_of(frame)):
        try:
            yield reading.read(flipped(frame, bit))
        except InputError:
            continue


@pytest.mark.parametrize("json", [False, True])
def test_bits_of_open(json: bool) -> None:
    """The cloud reads it as it was, or refuses it, or its answer has another check."""
    others = 0
    for found in read(ASKED, json):
        assert isinstance(found, Open)
        same = check_of_opened(OPENED, hash_of_open(found)) == OPENED.check
        assert found == ASKED or not same
        others += not same
    assert others > 30


@pytest.mark.parametrize("json", [False, True])
def test_bits_of_resume(json: bool) -> None:
    """The cloud finds no such stream, or no such text in it."""
    prefix = Prefix(np.array(PROMPT, np.int32))
    prefix.extend(np.array(ANSWER, np.int32))
    have = len(PROMPT) + 3
    told = Resume(NAME, KEY, have, prefix.at(have))
    others = 0
    for found in read(told, json):
        assert isinstance(found, Resume)
        known = (found.stream, found.key) == (NAME, KEY) and prefix.agrees(found.have, found.prefix)
        assert known == (found == told)
        others += not known
    assert others > 100


@pytest.mark.parametrize("json", [False, True])
def test_bits_of_a_draft(json: bool) -> None:
    """Another draft, or none: a draft can only be verified, and never writes. See `test_chaos` for
    the text of whole streams."""
    draft = DraftMessage.of(
        Draft([1, 2, 3, 4], [-1, -1, 0, 2]), seq=3, base=9, prefix=2**31, vocabulary=VOCABULARY
    )
    valid = 0
    for found in read(draft, json):
        assert isinstance(found, DraftMessage)
        try:
            assert len(found.draft(VOCABULARY)) <= 4
            valid += 1
        except InputError:
            continue
    assert valid > 20


def of_cloud(**faults: Any) -> tuple[Answer, ToyCloud]:
    """The answer of a client whose cloud has these faults; the seed is the cloud's."""

    async def run() -> tuple[Answer, ToyCloud]:
        asked = SamplingParams(max_tokens=30, temperature=0.8)
        async with toy_cloud(**faults) as cloud:
            return await answered(cloud.url, VOCABULARY, PROMPT, asked, retry_seconds=20), cloud

    found, cloud = asyncio.run(run())
    assert list(found.tokens) == plain(PROMPT, 30, 0.8, 77) and found.finish == "length"
    return found, cloud


def test_a_refused_draft_does_not_end_the_stream() -> None:
    found, _ = of_cloud(complains=[5, 12])
    assert found.statistics.resumes == 2 and found.statistics.reopens == 0


def test_a_refused_resume_is_tried_again_from_the_start_of_the_answer() -> None:
    found, cloud = of_cloud(drops=[7], doubts=2)
    resumes = [message for message in cloud.heard if isinstance(message, Resume)]
    first, *others = (message.have for message in resumes)
    assert first > len(PROMPT) and others == [len(PROMPT)] * 2
    assert found.statistics.resumes == 1 and found.statistics.reopens == 0


def test_an_opened_stream_that_is_another_one_is_closed_and_opened_again() -> None:
    found, cloud = of_cloud(damages=2)
    assert found.statistics.damaged == found.statistics.retries == 2
    assert found.statistics.seed == 77
    assert [type(message) for message in cloud.heard[:5]] == [Open, Close, Open, Close, Open]


def test_a_server_that_cannot_read_open_is_told_at_once() -> None:
    """As one of another version."""
    with pytest.raises(StreamError, match=r"^the cloud refuses the stream \(bad_frame\): ") as told:
        of_cloud(refuses="bad_frame")
    assert told.value.code == "bad_frame"


def test_a_commit_of_another_stream_has_another_check() -> None:
    """Of the same text, at the same place: only the name tells them apart."""
    prefix = Prefix(np.array(PROMPT, np.int32))
    commit = Commit(len(PROMPT), b"", 0)
    checks = {checked_commit(commit, name, prefix.at(len(PROMPT))).check for name in (NAME, KEY)}
    assert len(checks) == 2
