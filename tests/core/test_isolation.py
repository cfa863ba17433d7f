"""What requests share, and what they never do: each test fails if one wall is taken down."""

from __future__ import annotations

import gc
import random
import threading

import pytest

from core.brute import int32s
from core.texts import Texts
from foresay import VerdictBatch
from foresay.errors import InputError


def live(drafter: Texts, tenant: str | None, seed: int, requests: int = 30) -> list[object]:
    """Some traffic of one tenant; returns every draft it was given."""
    rng = random.Random(seed)
    seen: list[object] = []
    for _ in range(requests):
        words = [[rng.randrange(40) for _ in range(4)] for _ in range(6)]
        state = drafter.start(*(t for word in rng.choices(words, k=6) for t in word), tenant=tenant)
        for _ in range(8):
            draft = drafter.propose([state], [8])[0]
            assert draft.scores is not None
            seen.append((draft.tokens.tolist(), draft.parents.tolist(), draft.scores.tolist()))
            drafter.commit(state, *rng.choice(words))
        drafter.finish(state)
    return seen


@pytest.mark.parametrize("history", [True, False])
def test_a_tenant_sees_nothing_of_another_not_even_in_its_scores(history: bool) -> None:
    alone = live(Texts(history=history), "b", 1)
    shared = Texts(history=history)
    live(shared, "a", 2)
    assert live(shared, "b", 1) == alone
    assert live(Texts(history=history), "c", 1) == alone


def test_no_tenant_is_not_the_tenant_without_a_name() -> None:
    drafter = Texts()
    drafter.write([1, 2], [50, 51, 52])
    assert not drafter.knows("", 50)
    drafter.drop_tenant("")
    assert drafter.knows(None, 50)


def test_of_a_prompt_only_the_last_tokens_enter_the_history() -> None:
    drafter = Texts(own=False)
    drafter.write([7, 8, 9, 900, 901, *range(100, 140)], [50])
    assert not {900, 901} & set(drafter.drafted(drafter.start(7, 8, 9)))
    assert drafter.drafted(drafter.start(137, 138, 139), 1) == [50]


def test_the_place_in_the_history_moves_with_the_text() -> None:
    drafter = Texts(own=False)
    output = [(i * 37) % 101 + 10 for i in range(60)]
    drafter.write([1, 2, 3], output)
    follower = drafter.start(1, 2, 3)
    for at in range(0, 50, 2):
        assert drafter.drafted(follower, 3)[0] == output[at]
        drafter.commit(follower, *output[at : at + 2])
    drafter.write([4], [9, *output[40:52], 8])  # splits states that its place may stand in
    assert output[50] in drafter.drafted(follower, 3)


@pytest.mark.parametrize("extra", [0, 4])
def test_asking_once_more_changes_nothing(extra: int) -> None:
    def run(ask_again: bool) -> list[list[float]]:
        drafter = Texts()
        first = drafter.start(1, 2, 3)
        drafter.commit(first, *[4, 5, 6, 7] * 6)
        state = drafter.start(1, 2, 3, 4, 5, 6, 7, 4, 5)
        if ask_again:
            drafter.propose([state], [extra])
        drafter.finish(first)
        scores = []
        for at in range(12):
            draft = drafter.propose([state], [4])[0]
            assert draft.scores is not None
            scores.append(draft.scores.tolist())
            if ask_again:
                drafter.propose([state], [extra])
            drafter.commit(state, (6, 7, 4, 5)[at % 4])
        return scores

    assert run(True) == run(False)


def test_right_drafts_raise_the_score_and_wrong_ones_lower_it() -> None:
    def last_score(right: bool) -> float:
        drafter = Texts(history=False)
        for request in range(40):
            base = 100 + 10 * request
            state = drafter.start(*range(base, base + 4), base, base + 1)
            draft = drafter.propose([state], [1])[0]
            drafter.commit(state, base + 2 if right else 99)
            drafter.finish(state)
        assert draft.scores is not None
        return float(draft.scores[0])

    fresh = Texts(history=False)
    draft = fresh.propose([fresh.start(1, 2, 3, 4, 1, 2)], [1])[0]
    assert draft.scores is not None
    assert last_score(False) < 0.5 * draft.scores[0] < draft.scores[0] < last_score(True)


def test_a_list_of_states_that_changes_meanwhile() -> None:
    drafter = Texts(threads=1)
    states = [drafter.start(*list(range(50)) * 4) for _ in range(4)]

    class Budgets(list[int]):
        def __iter__(self) -> object:  # type: ignore[override]
            states.clear()
            gc.collect()
            return iter([8] * 4)

    assert len(drafter.propose(states, Budgets([8] * 4))) == 4  # of the states that it was given


def test_arrays_that_change_meanwhile() -> None:
    drafter = Texts()
    states = [drafter.start(1, 2, 3) for _ in range(8)]
    tokens = int32s([5] * 16)
    offsets = int32s(list(range(0, 17, 2)))
    verdicts = VerdictBatch(tokens, offsets, int32s([]), int32s([0] * 9))
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            offsets[1:-1] = 1 << 30
            tokens[:] = -5
            offsets[:] = range(0, 17, 2)
            tokens[:] = 5

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        for _ in range(400):
            try:
                drafter.observe(states, verdicts)
            except InputError:
                continue
    finally:
        stop.set()
        writer.join()
    drafter.check_integrity()
    assert all((drafter.text(state) >= 0).all() for state in states)
