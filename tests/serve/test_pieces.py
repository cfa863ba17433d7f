"""What waits before it is sent: the engine's thread tells of many pieces a few steps at a time, and
a shield holds pieces back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic

import pytest

from foresay.engine.answers import Chunk
from foresay.errors import InputError
from foresay.serve.shield import Shield
from foresay.serve.stream import AnswerStream, StepUpdate, UpdateBuffer, merged, split


def piece(number: int) -> Chunk:
    return Chunk(0, "a", [number])


async def fed(stream: AnswerStream, pieces: int, seconds: float) -> None:
    """Pieces that come one after the other, so many seconds apart."""
    for number in range(pieces):
        await asyncio.sleep(seconds)
        stream.put(piece(number))


def test_coalescing_keeps_nobody_waiting_longer_than_silence_may_last() -> None:
    """A token every 0.1 s and 50 wanted: each write comes after 0.3 s, and not after 5 s."""

    async def run() -> None:
        stream = AnswerStream(1, None)
        feeding = asyncio.ensure_future(fed(stream, 9, 0.1))
        found: list[int] = []
        while len(found) < 9:
            begin = monotonic()
            told = await Shield(coalesce=50).take(stream, 0.3, begin)
            assert monotonic() - begin < 0.6
            found += [token for one in told for token in one.token_ids]
        await feeding
        assert found == list(range(9))

    asyncio.run(asyncio.wait_for(run(), 10))


def test_coalescing_waits_for_its_tokens() -> None:
    """So that the test above is not one of a shield that waits for nothing."""

    async def run() -> list[Chunk]:
        stream = AnswerStream(1, None)
        feeding = asyncio.ensure_future(fed(stream, 6, 0.01))
        told = await Shield(coalesce=4).take(stream, 5.0, monotonic())
        await feeding
        return told

    (told,) = asyncio.run(run())
    assert told.token_ids == [0, 1, 2, 3]


def test_the_numbers_of_a_step_are_counted_once() -> None:
    """Whether chunks are split into tokens or joined."""
    of_step = {"drafted": 5, "accepted": 2, "seconds": 0.5}
    first = Chunk(0, "ab", [1, 2], words=["a", "b"], **of_step)  # type: ignore[arg-type]
    second = replace(first, text="cd", token_ids=[3, 4], words=["c", "d"])
    apart = [*split(first), *split(second)]
    assert [one.text for one in apart] == ["a", "b", "c", "d"]
    assert [one.drafted for one in apart] == [5, 0, 5, 0]
    for whole in (merged(apart), merged([first, second])):
        (one,) = whole
        assert (one.text, one.token_ids) == ("abcd", [1, 2, 3, 4])
        assert (one.drafted, one.accepted, one.seconds) == (10, 4, 1.0)


def test_what_is_held_back_is_not_a_slow_readers_fault() -> None:
    async def run() -> tuple[bool, bool, list[Chunk]]:
        stream = AnswerStream(1, None, most=3)
        feeding = asyncio.ensure_future(fed(stream, 20, 0.001))
        told = await Shield(every=0.2).take(stream, 5.0, monotonic())
        await feeding
        held = stream.overflow.is_set()
        await fed(stream, 4, 0)  # which nobody takes
        return held, stream.overflow.is_set(), told

    held, slow, (told,) = asyncio.run(run())
    assert (held, slow) == (False, True)
    assert told.token_ids == list(range(20))


def test_what_does_not_go_together_is_named() -> None:
    with pytest.raises(InputError, match=r"^--every is 1 and --coalesce is 3; expected one"):
        Shield(every=1.0, coalesce=3)
    with pytest.raises(InputError, match=r"^--pad is 1048576; expected 0 to 65536 bytes$"):
        Shield(pad=1 << 20)
    with pytest.raises(InputError, match=r"^--coalesce is 9999; expected 0 to 4096 tokens$"):
        Shield(coalesce=9999)


def test_no_shield_is_silent_for_longer_than_a_stream_may_be() -> None:
    assert Shield(every=15.0).every == 15.0
    with pytest.raises(InputError, match=r"^--every is 16\.0; expected 0 to 15 seconds$"):
        Shield(every=16.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("foresay.serve.stream.perf_counter", made)
    return made


def update_of(count: int) -> StepUpdate:
    stream = AnswerStream(1, None, None)
    return StepUpdate([(stream, piece(1))] * count, None, [], {})


def test_many_pieces_wait_for_a_moment_and_keep_their_order(clock: Clock) -> None:
    buffer, steps = UpdateBuffer(), [update_of(20) for _ in range(4)]
    assert buffer.add(steps[0]) == [steps[0]]
    clock.now += 0.02
    assert buffer.add(steps[1]) == []
    clock.now += 0.03
    assert buffer.add(steps[2]) == [steps[1], steps[2]]
    assert buffer.add(steps[3]) == []


def test_few_pieces_first_tokens_and_ends_do_not_wait(clock: Clock) -> None:
    buffer = UpdateBuffer()
    assert len(buffer.add(update_of(20))) == 1
    assert len(buffer.add(update_of(2))) == 1
    assert buffer.add(update_of(20)) == []
    assert len(buffer.add(update_of(20), first=True)) == 2
    assert buffer.add(update_of(20)) == []
    ended = update_of(20)._replace(ended=[None])  # type: ignore[list-item]
    assert len(buffer.add(ended)) == 2
