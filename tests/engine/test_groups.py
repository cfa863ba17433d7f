"""Samples of one prompt: a group of their own, which ends with its last answer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from foresay import SamplingParams
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.engine.request import Request
from foresay.engine.samples import add_samples
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError, UnknownGroup
from foresay.models.target import Target

PROMPT = np.tile(np.arange(3, 9), 5).tolist()
PARAMS = SamplingParams(temperature=1.0, max_tokens=6)


class Watched(SuffixDrafter):
    """Counts what it is told of groups; none may be forgotten while a member is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: Counter[Any] = Counter()
        self.dropped: Counter[Any] = Counter()
        self.members: dict[Any, str | None] = {}  # under way, and their groups
        self.refuse = False

    def begin(self, prompt: Any, /, **names: Any) -> Any:
        if self.refuse:
            raise InputError("the drafter refuses")
        self.begun[names["group"], names["tenant"]] += 1
        state = super().begin(prompt, **names)
        self.members[state] = names["group"]
        return state

    def finish(self, state: Any, /) -> None:
        del self.members[state]
        super().finish(state)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        assert group not in self.members.values()
        self.dropped[group, tenant] += 1
        super().drop_group(group, tenant)


@pytest.fixture
def drafter() -> Watched:
    return Watched()


@pytest.fixture
def engine(target: Target, drafter: Watched) -> Engine:
    return Engine(target, drafter, policy="fixed")


def three(engine: Engine, **more: Any) -> list[Request]:
    return add_samples(engine, PROMPT, PARAMS, seeds=[1, 2, 3], **more)


def check_ended(engine: Engine, drafter: Watched) -> None:
    assert not engine.busy and not len(engine.groups)
    assert len(drafter.begun) == 1
    assert drafter.dropped == Counter(dict.fromkeys(drafter.begun, 1))


def test_samples_are_what_each_would_be_alone(engine: Engine, drafter: Watched) -> None:
    requests = three(engine, tenant="one")
    engine.run()
    for seed, request in enumerate(requests, 1):
        assert request.token_ids == plain(logits_of(engine.target), PROMPT, PARAMS, seed, ())
    assert {request.group for request in requests} == {group for group, _ in drafter.begun}
    check_ended(engine, drafter)


@pytest.mark.parametrize("whole", [1, 2])
def test_a_group_ends_with_its_last_answer(engine: Engine, drafter: Watched, whole: int) -> None:
    """The others were cancelled before it ended by itself."""
    requests = three(engine)
    while not requests[0].token_ids:  # siblings wait until the prompt has been read
        engine.step()
    engine.cancel(*requests[whole:])
    assert not drafter.dropped and len(engine.groups) == 1
    engine.run()
    check_ended(engine, drafter)


def test_a_group_that_is_cancelled_whole(engine: Engine, drafter: Watched) -> None:
    requests = three(engine)
    while not requests[2].token_ids:
        engine.step()
    for request in [one for one in requests if not one.finished]:
        assert not drafter.dropped
        engine.cancel(request)
    engine.cancel(*requests)
    check_ended(engine, drafter)
    waiting = three(engine)  # of which the drafter has never heard
    engine.cancel(*waiting)
    assert not engine.busy and not len(engine.groups)


class Unreadable(IncrementalDetokenizer):
    def __init__(self) -> None:
        super().__init__(lambda _: "")

    def add(self, token: int) -> bool:
        raise ValueError("no such token")


def test_a_group_of_which_all_fail(engine: Engine, drafter: Watched) -> None:
    requests = three(engine, text=Unreadable)
    engine.run()
    assert [request.finish_reason for request in requests] == ["error"] * 3
    check_ended(engine, drafter)
    drafter.refuse = True
    refused = three(engine)
    engine.run()
    assert [request.finish_reason for request in refused] == ["error"] * 3
    assert not len(engine.groups)


def test_names_are_unique(engine: Engine, target: Target, drafter: Watched) -> None:
    """Two engines of one drafter, and a user whose group looks like ours."""
    other = Engine(target, drafter, policy="fixed")
    own = f"{three(engine)[0].group}0"
    three(other)
    mine = engine.add(PROMPT, SamplingParams(temperature=0, max_tokens=30), group=own)
    while not mine.finished:
        engine.step()
    assert len(drafter.dropped) == 1 and (own, None) not in drafter.dropped
    other.run()
    assert len(drafter.dropped) == 2
    engine.drop_group(own)
    with pytest.raises(UnknownGroup):
        SuffixDrafter.drop_group(drafter, own)


def test_one_sample_is_no_group(engine: Engine, drafter: Watched) -> None:
    (alone,) = add_samples(engine, PROMPT, PARAMS, seeds=[1])
    engine.run()
    assert alone.group is None and drafter.begun == {(None, None): 1} and not drafter.dropped
    with pytest.raises(InputError, match="there are no seeds"):
        add_samples(engine, PROMPT, PARAMS, seeds=[])


def test_all_or_none(engine: Engine, drafter: Watched) -> None:
    texts = iter([IncrementalDetokenizer(lambda _: "")])
    with pytest.raises(StopIteration):
        three(engine, text=lambda: next(texts))
    with pytest.raises(InputError, match="the prompt is empty"):
        add_samples(engine, [], PARAMS, seeds=[1, 2])
    assert not engine.busy and not len(engine.groups) and not drafter.begun
