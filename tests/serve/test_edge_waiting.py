"""How long an edge stream is waited for, without a server."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from foresay.draft import Draft
from foresay.drafter import ExternalDraft
from foresay.serve.edge import waiting
from foresay.serve.edge.waiting import Waits


class Pausing:
    """An engine that is told whom to pause, with a drafter that says what it is told."""

    def __init__(self, takes: bool = True) -> None:
        self.paused: list[bool] = []
        self.drafter = self
        self.takes_external_drafts = takes
        self.here = False
        self.scheduler = SimpleNamespace(waiting=[])

    def pause(self, request: Any, paused: bool = True) -> None:
        request.paused = paused
        self.paused.append(paused)

    def has_external_draft(self, request: Any) -> bool:
        return self.here

    def add_external_draft(self, request: Any, offer: ExternalDraft) -> None:
        self.here = True


class Asked:
    """A request that gets tokens."""

    def __init__(self) -> None:
        self.paused = self.finished = False
        self.stats = SimpleNamespace(tokens=0)

    def __len__(self) -> int:
        return 3


def rounds(wait: str, takes: bool = True) -> tuple[Pausing, Waits, Asked, Callable[[int], int]]:
    engine: Any = Pausing(takes)
    request: Any = Asked()
    waits = Waits(engine, 0.01)
    waits.watch("stream", request, wait)

    def step(tokens: int) -> int:
        """A step; returns whether the request is paused after it."""
        waits.before_step()
        engine.here = False
        request.stats.tokens += tokens
        waits.after_step([request], 0.05)
        return int(request.paused)

    return engine, waits, request, step


def expired(waits: Waits) -> None:
    end = perf_counter() + 5
    while waits.expire() is not None:
        assert perf_counter() < end


def test_a_client_that_comes_after_its_first_step_is_waited_for() -> None:
    """Its connection is told to the engine's thread, which may have computed a step by then."""
    _, waits, request, step = rounds("block")
    assert step(1)
    waits.connect("stream", True)
    assert request.paused and waits.expire() is not None


def test_block_waits_and_lets_go() -> None:
    engine, waits, request, step = rounds("block")
    assert step(1) and waits.expire() is not None
    waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))
    assert not request.paused and waits.expire() is None
    assert step(1)
    waits.add("stream", ExternalDraft(2, 0, Draft.empty()))  # nothing for a place that has passed
    assert engine.paused[-1]
    waits.add("stream", ExternalDraft(3, 0, Draft.empty()))  # nothing is coming
    assert not request.paused
    assert step(1)
    expired(waits)
    assert not request.paused
    assert step(1)
    waits.connect("stream", False)
    assert not request.paused and not step(1)
    waits.connect("stream", True)
    assert step(1)
    ended: Any = request
    waits.forget(ended)
    assert len(waits) == 0 and waits.expire() is None
    waits.add("stream", ExternalDraft(3, 0, Draft.empty()))  # of a stream that has ended
    assert engine.paused.count(True) == 5


@pytest.mark.parametrize("wait", ["block", "adaptive"])
def test_a_client_that_drafts_no_more_is_waited_for_a_few_times(wait: str) -> None:
    engine, waits, request, step = rounds(wait)
    for _ in range(20):
        step(4)
        waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))
        engine.here = True
    waited = 0
    for _ in range(200):
        waited += step(1)
        expired(waits)
    assert 1 <= waited <= 12  # each of them may take half a second
    waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))
    step(4)
    assert wait == "adaptive" or step(1)  # it drafts again
    assert request.paused or wait == "adaptive"


def test_nobody_is_paused_while_another_waits_for_a_place() -> None:
    engine, waits, request, step = rounds("block")
    assert step(1)
    engine.scheduler.waiting.append(SimpleNamespace(paused=True))  # which waits by itself
    waits.after_step([], 0.0)
    assert [request.paused] == [True]
    engine.scheduler.waiting.append(SimpleNamespace(paused=False))
    waits.after_step([], 0.0)  # a step in which nothing could run
    assert [request.paused] == [False] and waits.expire() is None
    assert not step(1) and not step(1)
    engine.scheduler.waiting.clear()
    assert step(1)


def late(waits: Waits, seconds: float = 0.006) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass
    waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))


def test_late_drafts_of_no_use_are_waited_for_a_few_times() -> None:
    _, waits, _, step = rounds("block")
    waited = 0
    for _ in range(20):
        if step(1):
            waited += 1
            late(waits)
    assert waited == 3
    for tokens, seconds in ((4, 0.006), (1, 0.0)):  # of use, or in time
        _, waits, _, step = rounds("block")
        for _ in range(20):
            assert step(tokens)
            late(waits, seconds)


def test_a_stream_is_waited_for_so_long_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_MOST", 4)
    _, waits, _, step = rounds("block")
    waited, begun = 0, perf_counter()
    for _ in range(200):
        if step(4):
            waited += 1
            late(waits, 0.002)
    assert 2 <= waited <= 20 and perf_counter() - begun < 5
    assert not step(4)


def test_free_run_never_waits() -> None:
    _, waits, _, step = rounds("free-run")
    for _ in range(50):
        assert not step(1)
        waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))


def test_adaptive_waits_for_drafts_that_pay_and_not_for_ever() -> None:
    engine, waits, request, step = rounds("adaptive")
    assert not any(step(1) for _ in range(50))  # who never drafts is never waited for
    paused = 0
    for _ in range(40):  # 4 tokens for a step of 50 ms, after almost no time
        paused += step(4)
        waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))
        engine.here = True
        assert not request.paused
    assert paused > 30
    waited = []
    for _ in range(100):  # and then no drafts any more
        waited.append(step(1))
        expired(waits)
    assert sum(waited[50:]) < 10


@pytest.mark.parametrize("wait", ["block", "adaptive"])
def test_a_server_without_a_drafter_for_offers_waits_for_nothing(wait: str) -> None:
    _, waits, _, step = rounds(wait, takes=False)
    for _ in range(5):
        assert not step(1)
        waits.add("stream", ExternalDraft(3, 0, Draft.chain([1])))
