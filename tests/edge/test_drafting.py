"""Drafts of one stream: beyond what is in flight, with true verdicts, and never worth a stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from doubles import Scripted, tokens
from edge.asking import answered
from edge.toy_cloud import VOCABULARY, plain, toy_cloud
from foresay.draft import Draft
from foresay.drafter import SeededParams, Source
from foresay.drafters import MergeDrafter, NgramDrafter, SelfDrafter, SuffixDrafter
from foresay.edge.ahead import DraftThread
from foresay.edge.drafting import (
    EdgeDrafts,
    Proposal,
    check_edge_drafter,
    edge_drafter,
    write_edge_only,
)
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams
from foresay.verdict import Wants

PROMPT = tokens(1, 2, 3, 4, 1, 2)
TREE = Draft(
    tokens(5, 6, 7, 8),
    np.array([-1, -1, 0, 1], np.int32),
    np.array([0.5, 0.4, 0.3, 0.35], np.float32),
)


def proposal(draft: Draft) -> Proposal:
    return Proposal(0, draft, (Source.OWN,) * len(draft), 0.0)


def test_what_is_beyond_the_tokens_in_flight() -> None:
    found = proposal(TREE)
    part = found.beyond([])
    assert part is not None and part.draft.tokens.tolist() == [5, 7]
    part = found.beyond([6])
    assert (
        part is not None and part.draft.tokens.tolist() == [8] and part.above == pytest.approx(0.4)
    )
    assert part.draft.scores is not None and part.draft.scores[0] == pytest.approx(0.35 / 0.4)
    assert found.beyond([9]) is None and found.beyond([5, 8]) is None
    rest = found.beyond([5, 7])
    assert rest is not None and len(rest) == 0


def test_a_tree_below_a_node() -> None:
    found = proposal(TREE)
    whole = found.beyond([], tree=True)
    assert whole is not None and whole.draft.parents.tolist() == [-1, -1, 0, 1]
    below = found.beyond([5], tree=True)
    assert below is not None and below.draft.tokens.tolist() == [7]
    assert len(whole.first(2)) == 2


def test_unlikely_tokens_are_not_drafted_ahead() -> None:
    draft = Draft.chain(tokens(1, 2, 3), np.array([0.5, 0.2, 0.01], np.float32))
    part = proposal(draft).beyond([])
    assert part is not None and part.likely(0.05) == 2
    assert proposal(Draft.chain(tokens(1, 2))).beyond([]).likely(0.9) == 2  # type: ignore[union-attr]


def test_the_drafter_is_told_the_seed_and_true_verdicts() -> None:
    drafter = Scripted({0: TREE, 3: Draft.chain(tokens(4))})
    sampling = SeededParams(SamplingParams(), 3)
    drafts = EdgeDrafts(drafter, PROMPT, sampling)
    assert drafter.sampling == [sampling]
    drafts.propose(8)
    drafts.observe(tokens(6, 8, 9))
    drafts.observe(tokens(4))  # nothing was proposed since
    drafts.observe(tokens())
    drafts.finish()
    drafts.finish()
    assert [v.path.tolist() for v in drafter.verdicts] == [[1, 3], []]
    assert [v.tokens.tolist() for v in drafter.verdicts] == [[6, 8, 9], [4]]
    assert drafts.position == len(PROMPT) + 4
    assert [event.split()[0] for event in drafter.events].count("finish") == 1


def test_a_path_leaves_the_last_token_to_the_target() -> None:
    drafter = Scripted({0: TREE})
    drafts = EdgeDrafts(drafter, PROMPT)
    drafts.propose(8)
    drafts.observe(tokens(5, 7))
    assert drafter.verdicts[0].path.tolist() == [0]


@pytest.mark.parametrize("make", [partial(SuffixDrafter, chain=True), NgramDrafter])
def test_the_drafters_text_is_the_committed_one(make: Callable[[], Any]) -> None:
    drafter = make()
    drafts = EdgeDrafts(drafter, PROMPT)
    for new in ([3], [4, 1], [2, 3, 4]):
        assert drafts.propose(8).position == drafts.position
        drafts.observe(tokens(*new))
    assert drafter.text(drafts._state).tolist() == [*PROMPT.tolist(), 3, 4, 1, 2, 3, 4]
    drafts.finish()


class Failing(Scripted):
    """Raises at the n-th call of a method."""

    def __init__(self, method: str, at: int) -> None:
        super().__init__({n: Draft.chain(tokens(1, 2)) for n in range(100)})
        self.method, self.left = method, at

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ("begin", "propose", "observe", "finish"):
            return found

        def called(*a: Any, **k: Any) -> Any:
            self.left -= name == self.method
            if self.left < 0:
                raise RuntimeError("it broke")
            return found(*a, **k)

        return called


@pytest.mark.parametrize(
    ("method", "at"), [("begin", 0), ("propose", 0), ("propose", 4), ("observe", 0), ("finish", 0)]
)
async def test_a_drafter_that_raises_costs_its_drafts_only(method: str, at: int) -> None:
    drafter = Failing(method, at)
    async with toy_cloud() as cloud:
        asked = SamplingParams(max_tokens=20)
        found = await answered(cloud.url, VOCABULARY, [1, 2, 3], asked, seed=4, drafter=drafter)
    assert list(found.tokens) == plain([1, 2, 3], 20, 1.0, 4)
    if method != "finish":
        assert found.statistics.drafter_error == "RuntimeError: it broke"


class Slow(Scripted):
    """Takes its time, and notes in which thread."""

    def __init__(self) -> None:
        super().__init__({n: Draft.chain(tokens(1, 2)) for n in range(100)})
        self.threads: set[int] = set()

    def propose(self, *a: Any) -> Any:
        self.threads.add(threading.get_ident())
        time.sleep(0.2)
        return super().propose(*a)


async def test_a_slow_drafter_delays_no_commit() -> None:
    drafter = Slow()
    async with toy_cloud(wait="free-run") as cloud:
        asked, began = SamplingParams(max_tokens=40), time.perf_counter()
        found = await answered(cloud.url, VOCABULARY, [1, 2, 3], asked, seed=4, drafter=drafter)
        took = time.perf_counter() - began
    assert list(found.tokens) == plain([1, 2, 3], 40, 1.0, 4)
    assert threading.get_ident() not in drafter.threads
    assert took < 0.2 * 40 / 4  # far less than one draft per token


async def test_a_quick_drafter_works_in_the_event_loop() -> None:
    thread, seen = DraftThread(), []
    for _ in range(3):
        seen.append(await thread.call(threading.get_ident))
    await thread.call(lambda: time.sleep(0.01))
    seen.append(await thread.call(threading.get_ident))
    thread.close()
    here = threading.get_ident()
    assert seen[0] != here and seen[1] == seen[2] == here and seen[3] != here


def test_drafters_that_need_the_target_are_refused() -> None:
    with pytest.raises(InputError, match="Scripted needs to see the target"):
        check_edge_drafter(Scripted(wants=Wants(topk=3)))
    with pytest.raises(InputError, match="SelfDrafter needs to see the target"):
        check_edge_drafter(MergeDrafter(NgramDrafter(), SelfDrafter()))
    with pytest.raises(InputError, match="there is no drafter 'x'"):
        edge_drafter("x")


def test_writing_alone_ends_as_asked() -> None:
    class Model(Scripted):
        def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
            return [Draft.chain(tokens(*range(10, 10 + budgets[0])))]

    sampling = SeededParams(SamplingParams(), 1)
    model: Any = Model()
    found = list(write_edge_only(model, PROMPT, sampling, tokens=10, ends=()))
    assert [len(new) for new, _ in found] == [8, 2] and found[-1][1] == "length"
    found = list(write_edge_only(model, PROMPT, sampling, tokens=10, ends=(12,)))
    assert found == [([10, 11, 12], "stop")]
