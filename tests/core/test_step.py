"""The step, observe and propose in one: the same drafts, whoever computes them."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from core.brute import int32s
from core.texts import Texts
from foresay import Verdict
from foresay._core import lists
from foresay.arrays import Floats
from foresay.drafters import SuffixDrafter
from foresay.errors import InputError, StateError

KINDS: dict[str, dict[str, Any]] = {
    "chain": {"chain": True},
    "chain without history": {"chain": True, "history": False},
    "chain from the history alone": {"chain": True, "own": False},
    "tree": {},
    "sam": {"rule": "sam"},
}


def words(chance: random.Random, length: int) -> list[int]:
    """Something that repeats itself, and what others write."""
    text: list[int] = []
    while len(text) < length:
        start = chance.randrange(40)
        text += range(start, start + chance.randrange(2, 9))
    return text[:length]


def bits(scores: Floats | None) -> bytes | None:
    return None if scores is None else scores.tobytes()


def lives(drafter: SuffixDrafter, at_once: bool, rows: int, steps: int = 20) -> list[Any]:
    """The drafts of many requests that come and go; each step is one call or two."""
    chance = random.Random(5)
    states: list[Any] = []
    found: list[Any] = []
    for step in range(steps):
        while len(states) < rows:
            group = f"g{chance.randrange(8)}" if chance.random() < 0.3 else None
            states.append(drafter.begin(int32s(words(chance, 20)), group=group))
        verdicts = [Verdict([], words(chance, chance.randrange(1, 5))) for _ in states]
        budgets = [chance.randrange(9) for _ in states]
        least = 0.1 * (step % 3)
        if at_once:
            drafts = drafter.step(states, verdicts, budgets, least=least)
        else:
            drafter.observe(states, verdicts)
            drafts = drafter.propose(states, budgets, least=least)
        found += [(d.tokens.tolist(), d.parents.tolist(), bits(d.scores)) for d in drafts]
        found += [drafter.sources(state) for state in states[:5]]
        for _ in range(rows // 20):
            drafter.finish(states.pop(chance.randrange(len(states))))
        chance.shuffle(states)
    drafter.check_integrity()
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 100])
def test_a_step_is_observe_and_propose(kind: str, rows: int) -> None:
    one, two = (SuffixDrafter(threads=1, **KINDS[kind]) for _ in range(2))
    drafts = lives(one, True, rows)
    assert drafts == lives(two, False, rows)
    assert any(type(draft) is tuple and draft[0] for draft in drafts) or rows == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [True, False])
def test_threads_do_not_change_a_draft(kind: str, at_once: bool) -> None:
    alone, four = (SuffixDrafter(threads=count, **KINDS[kind]) for count in (1, 4))
    found = lives(four, at_once, 200, steps=8)
    assert found == lives(alone, at_once, 200, steps=8)
    assert any(type(draft) is tuple and draft[0] for draft in found)


def test_after_a_fork_nobody_is_waited_for() -> None:
    drafter = SuffixDrafter(threads=4, chain=True)
    expected = lives(SuffixDrafter(threads=1, chain=True), True, 200, steps=6)
    states = [drafter.begin(int32s([i, i + 1])) for i in range(200)]
    drafter.propose(states, [4] * 200)  # there are helpers now
    child = os.fork()
    if child == 0:
        again = SuffixDrafter(threads=4, chain=True)
        drafter.step(states, [Verdict([], [7])] * 200, [4] * 200)
        os._exit(0 if lives(again, True, 200, steps=6) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    drafter.step(states, [Verdict([], [7])] * 200, [4] * 200)


@pytest.mark.parametrize(
    ("verdicts", "budgets", "least", "says"),
    [
        ([[3]], [4, 4], 0.0, "2 states came with 1 verdicts"),
        ([[3], [4]], [4], 0.0, "2 states came with 1 budgets"),
        ([[3], [4]], [4, 4097], 0.0, r"budgets\[1\] is 4097"),
        ([[3], [4]], [4, -1], 0.0, r"budgets\[1\] is -1"),
        ([[3], [4]], [4, 4], 1.5, "least is 1.5"),
        ([[3], [4]], [4, 4], float("nan"), "least is"),
        ([[3], [4] * 9], [4, 4], 0.0, "state 1 would have more than 8 tokens"),
    ],
)
def test_a_bad_step_changes_nothing(
    verdicts: list[list[int]], budgets: list[int], least: float, says: str
) -> None:
    drafter = Texts(chain=True, max_tokens=8)
    states = drafter.pair(1, 2, 1, 2)
    before = drafter.propose(states, [4, 4])
    with pytest.raises(InputError, match=says):
        drafter.step(states, [Verdict([], tokens) for tokens in verdicts], budgets, least=least)
    assert [drafter.text(state).tolist() for state in states] == [[1, 2, 1, 2]] * 2
    assert drafter.propose(states, [4, 4]) == before


def test_a_step_with_a_finished_state_or_one_twice() -> None:
    drafter = Texts(chain=True)
    one, two = drafter.pair(1, 2, 1, 2)
    verdicts = [Verdict([], [1])] * 2
    with pytest.raises(InputError, match="state 1 is in the batch twice"):
        drafter.step([one, one], verdicts, [1, 1])
    drafter.finish(two)
    with pytest.raises(StateError, match="finished"):
        drafter.step([one, two], verdicts, [1, 1])
    assert drafter.text(one).tolist() == [1, 2, 1, 2]
    assert len(drafter.step([], [], [])) == 0


def test_a_request_that_is_not_asked_for_long_reads_on_in_the_history() -> None:
    drafter = Texts(chain=True)
    drafter.write([1], range(100, 300))
    late = drafter.start(2)
    drafter.drafted(late, 4)
    for token in range(100, 180):  # nothing is asked meanwhile
        drafter.commit(late, token)
    assert drafter.drafted(late, 4) == [180, 181, 182, 183]
    assert drafter.sources(late) == [("history",)] * 4


def test_lists() -> None:
    assert lists(int32s([1, 2, 3, 500]), int32s([0, 0, 3, 3, 4])) == [[], [1, 2, 3], [], [500]]
    assert lists(int32s([]), int32s([0])) == []
    for offsets in ([], [-1, 2], [0, 5], [0, 3, 2], [5]):
        with pytest.raises(InputError, match="offsets"):
            lists(int32s([1, 2, 3, 4]), np.array(offsets, np.int32))
