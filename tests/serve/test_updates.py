"""The engine's thread tells of many pieces a few steps at a time, and of what matters at once."""

from __future__ import annotations

import pytest

from foresay.engine.answers import Chunk
from foresay.serve import updates
from foresay.serve.stream import AnswerStream
from foresay.serve.updates import StepUpdate, UpdateBuffer


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(updates, "perf_counter", made)
    return made


def update_of(count: int) -> StepUpdate:
    stream = AnswerStream(1, None, None)
    return StepUpdate([(stream, Chunk(0, "a", [1]))] * count, None, [], {})


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
