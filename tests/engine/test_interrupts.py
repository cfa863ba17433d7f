"""An interrupt at any place leaks no memory: after it, unused memory is free."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from foresay import SamplingParams
from foresay._core import AttentionStep, Kv
from foresay.drafters import SuffixDrafter
from foresay.engine import pages, prefixes, scheduler
from foresay.engine.engine import Engine
from foresay.engine.groups import Groups
from foresay.engine.pages import PAGE, Pages
from foresay.engine.request import Request
from foresay.engine.samples import add_samples
from foresay.engine.scheduler import Scheduler
from models import zoo
from models.quick import quick_target

Place = tuple[CodeType, int]
FILES = {module.__file__ for module in (pages, prefixes, scheduler)}


class Stop(BaseException):
    """What Ctrl-C raises, as far as anybody can tell."""


@contextmanager
def watched(wanted: Callable[[CodeType], bool], seen: Callable[[Place], None]) -> Iterator[None]:
    """Every bytecode of these functions is told before it runs."""

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        if not wanted(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return at

    def at(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            seen((frame.f_code, frame.f_lasti))
        return at

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks whether any frame wants them, now
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


def places(run: Callable[[], object], wanted: Callable[[CodeType], bool]) -> dict[Place, int]:
    """How often each bytecode runs."""
    found: dict[Place, int] = {}

    def count(place: Place) -> None:
        found[place] = found.get(place, 0) + 1

    with watched(wanted, count):
        run()
    return found


@contextmanager
def interrupted(place: Place, left: int) -> Iterator[None]:
    """The body ends when that bytecode is to run for the `left`-th time. Only its own function is
    watched: that is what takes long."""

    def strike(here: Place) -> None:
        nonlocal left
        if here == place:
            left -= 1
            if left == 0:
                raise Stop

    with pytest.raises(Stop), watched(lambda code: code is place[0], strike):
        yield


def in_files(code: CodeType) -> bool:
    return code.co_filename in FILES


class Work:
    """Some requests through a scheduler with little memory: they wait, share, are preempted, cached
    and forgotten. There is a model's memory, and no model.
    """

    def __init__(self) -> None:
        self.scheduler = Scheduler(
            lambda: Kv([(1, 8, 8)], "float32"), Pages(8), max_running=3, max_rows=90
        )
        random = np.random.default_rng(0)
        alike = random.integers(0, 99, 122)
        texts = [alike, alike[:70], *random.integers(0, 99, (2, 120))]
        params = SamplingParams(max_tokens=200)
        self.requests = [
            Request(at, text.astype(np.int32), params, 0, (), None, None, None)
            for at, text in enumerate([*texts, *texts[:2]])
        ]
        for request in self.requests:
            self.scheduler.add(request)

    def go_on(self) -> None:
        steps = 0
        while self.scheduler.running or self.scheduler.waiting:
            steps += 1
            if steps == 5:
                self.scheduler.recompute()
            for turn in self.scheduler.schedule():
                request, kv = turn.request, turn.request.kv
                assert kv is not None
                rows = np.arange(turn.tokens, dtype=np.int32)
                own: Any = kv
                step = AttentionStep([own], np.array([0, len(rows)], np.int32), rows - 1)
                for_all = np.zeros((1, 1, len(rows), 8), np.float32)
                step.attend(0, for_all, for_all, for_all, for_all.reshape(1, -1, 1, 8), scaling=1.0)
                kv.keep(rows)
                if turn.whole:
                    request.append(np.array([5], np.int32))
                    self.scheduler.reserve([request], [70])
                if len(request) - len(request.prompt) == 9:
                    self.scheduler.release(request, cache=True)
                    request.finish_reason = "length"
        self.scheduler.recompute()

    def end(self) -> None:
        """As `Engine.cancel` does it."""
        for request in self.requests:
            if request.finished:
                self.scheduler.mend()
            else:
                self.scheduler.release(request, cache=False)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_bytecode_of_the_scheduler(every: int) -> None:
    """Or each seventh of them."""
    whole = Work()
    found = places(whole.go_on, in_files)
    names = {code.co_name for code, _ in found}
    assert {
        "hold",
        "release",
        "cache",
        "drop_oldest",
        "_preempt",
        "_admit",
        "longest",
        "recompute",
    } <= names
    assert sum(request.stats.preemptions for request in whole.requests) > 0
    assert any(request.stats.shared_tokens for request in whole.requests)
    assert len(found) > 500
    for place, times in list(found.items())[::every]:
        for at in {1, times}:
            work = Work()
            with interrupted(place, at):
                work.go_on()
            work.end()
            left = work.scheduler
            left.check_integrity()
            assert not left.running and not left.waiting
            assert left.pages.in_use == left.prefixes.held
            assert all(request.kv is None for request in work.requests if not request.finished)
            left.recompute()
            assert left.pages.in_use == 0 == left.prefixes.held
            assert not left.prefixes._cached_tree and not left.prefixes._running


ENDS = {
    code.__code__ for code in (Engine._finish, Pages.hold, Pages.release, prefixes.Prefixes.cache)
}


def test_an_engine_that_was_interrupted_goes_on_as_if_nothing_had_been() -> None:
    """Where an answer ends and its prefix is cached; the caller cancels the running requests."""
    target, random = quick_target(), np.random.default_rng(1)
    texts = [zoo.tokens(random, size) for size in (70, 40)]
    params = SamplingParams(temperature=0, max_tokens=3)
    engine = Engine(target, memory=16 * PAGE * target.bytes_per_token)

    def asked() -> list[Request]:
        return [engine.add(text, params, seed=0) for text in texts]

    def told(requests: list[Request]) -> list[list[int]]:
        return [request.token_ids for request in requests]

    def fresh() -> None:
        while engine.scheduler.prefixes.drop_oldest():
            pass

    wanted = asked()
    found = places(engine.run, ENDS.__contains__)
    assert {code for code, _ in found} == ENDS
    for place, times in found.items():
        fresh()
        requests = asked()
        with interrupted(place, times):
            engine.run()
        for request in requests:
            engine.cancel(request)
        engine.check_integrity()
        assert not engine.busy and all(request.finished for request in requests)
        assert engine.scheduler.pages.in_use == engine.scheduler.prefixes.held
    again = asked()
    engine.run()
    assert told(again) == told(wanted)


class Groupwise(SuffixDrafter):
    """Knows which groups it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str | None] = set()

    def begin(self, prompt: Any, /, **names: Any) -> Any:
        self.held.add(names["group"])
        return super().begin(prompt, **names)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        super().drop_group(group, tenant)
        self.held.discard(group)


GROUPS = {
    code.__code__
    for code in (
        add_samples,
        Groups.join,
        Groups.leave,
        Groups.close,
        Engine._finish,
        Engine.cancel,
    )
}


def test_a_group_ends_also_after_an_interrupt() -> None:
    """While it is asked, while it ends, and while it is cancelled."""
    target, drafter = quick_target(), Groupwise()
    text = zoo.tokens(np.random.default_rng(1), 40)
    params = SamplingParams(temperature=0, max_tokens=2)
    engine = Engine(target, drafter, policy="fixed")
    asked: list[Request] = []

    def work() -> None:
        asked.clear()
        asked.extend(add_samples(engine, text, params, seeds=[1, 2]))
        engine.run()
        asked.extend(add_samples(engine, text, params, seeds=[1, 2]))
        engine.step()
        engine.cancel(*asked)

    found = places(work, GROUPS.__contains__)
    assert {code for code, _ in found} == GROUPS
    for place, times in found.items():
        for at in {1, times}:
            with interrupted(place, at):
                work()
            engine.cancel(*asked, *engine.scheduler.running, *engine.scheduler.waiting)
            assert not engine.busy and not len(engine.groups) and not drafter.held
            engine.check_integrity()
