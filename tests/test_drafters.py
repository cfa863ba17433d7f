"""Every drafter keeps the contract: the table of scenarios, and the table of bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from conformance import DRAFTERS, SCENARIOS, Readable, Scenario, drive
from foresay import Drafter, Verdict, VerdictBatch
from foresay.drafter import MAX_BUDGET
from foresay.drafters import NgramDrafter, SuffixDrafter
from foresay.errors import InputError, StateError, TokenTypeError, UnknownGroup

Make = Callable[[], Readable]
every_drafter = pytest.mark.parametrize("make", DRAFTERS.values(), ids=list(DRAFTERS))


@every_drafter
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_alone(make: Make, scenario: Scenario) -> None:
    drive(make(), [scenario])


@every_drafter
@pytest.mark.parametrize("as_lists", [False, True], ids=["packed", "lists"])
def test_together(make: Make, as_lists: bool) -> None:
    accepted = drive(make(), SCENARIOS, as_lists)
    assert accepted > 50


@every_drafter
def test_one_drafter_serves_many_rounds(make: Make) -> None:
    drafter = make()
    for _ in range(3):
        drive(drafter, SCENARIOS)


@every_drafter
def test_is_a_drafter(make: Make) -> None:
    assert isinstance(make(), Drafter)


@pytest.mark.parametrize("name", ["ngram", "ngram first", "merge of ngrams", "suffix by sam"])
def test_first_draft_only_after_a_repeat(name: str) -> None:
    drafter = DRAFTERS[name]()
    state = drafter.begin(np.array([1, 2, 3, 4, 5, 6, 7], np.int32))
    assert len(drafter.propose([state], [8])[0]) == 0
    drafter.observe([state], [Verdict([], [1, 2, 3, 4, 5])])
    draft = drafter.propose([state], [2])[0]
    assert draft.tokens.tolist() == [6, 7]
    assert draft.parents.tolist() == [-1, 0]


@every_drafter
def test_an_empty_batch_is_fine(make: Make) -> None:
    drafter = make()
    assert len(drafter.propose([], [])) == 0
    drafter.observe([], [])


@every_drafter
@pytest.mark.parametrize(
    ("prompt", "error", "sentence"),
    [
        (np.array([1.5]), TokenTypeError, "float64"),
        (np.array([1, 2]), TokenTypeError, "int64"),
        (np.array([[1]], np.int32), TokenTypeError, "dimension"),
        (np.array([-1], np.int32), InputError, "-1.*0 to 2147483646"),
        (np.array([3, 2**31 - 1], np.int32), InputError, "2147483647.*0 to 2147483646"),
        (np.array([], np.int32), InputError, "empty"),
        ([1.5], TokenTypeError, "1.5"),
        (["a"], TokenTypeError, "'a'"),
        ([True], TokenTypeError, "True"),
        ("12", TokenTypeError, "is a str"),
        (None, TokenTypeError, "object"),
    ],
    ids=lambda value: str(value) if isinstance(value, (list, str)) else None,
)
def test_bad_prompts(make: Make, prompt: Any, error: type[Exception], sentence: str) -> None:
    drafter: Any = make()
    before = drafter.bytes_used(), drafter.tokens_held()
    with pytest.raises(error, match=sentence):
        drafter.begin(prompt, group="g", tenant="t")
    assert (drafter.bytes_used(), drafter.tokens_held()) == before


@every_drafter
def test_bad_batches_change_nothing(make: Make) -> None:
    drafter = make()
    prompt = np.array([1, 2, 3, 1, 2], np.int32)
    state = drafter.begin(prompt)
    before = list(drafter.propose([state], [4]))
    one = Verdict([], [5])
    with pytest.raises(InputError, match="-1"):
        drafter.propose([state], [-1])
    with pytest.raises(InputError, match=r"1.*2"):
        drafter.propose([state], [1, 2])
    with pytest.raises(InputError, match=r"1.*2"):
        drafter.observe([state], [one, one])
    with pytest.raises(InputError, match=r"1.*2"):
        drafter.observe([state], VerdictBatch.of([one, one]))
    assert list(drafter.propose([state], [4])) == before
    assert drafter.text(state).tolist() == prompt.tolist()


@every_drafter
@pytest.mark.parametrize("budget", [0, 1, MAX_BUDGET, np.int64(3), np.int32(3), np.uint8(3)])
def test_good_budgets(make: Make, budget: Any) -> None:
    drafter = make()
    state = drafter.begin(np.array([1, 2, 3, 1, 2], np.int32))
    assert len(drafter.propose([state], [budget])[0]) <= budget


@every_drafter
@pytest.mark.parametrize(
    "budget",
    [-1, 4097, 2**31, 2**40, -(2**70), True, np.True_, 1.5, 3.0, np.float64(3), "3", b"3", None],
)
def test_bad_budgets(make: Make, budget: Any) -> None:
    drafter = make()
    states = [drafter.begin(np.array([1, 2, 3, 1, 2], np.int32)) for _ in range(2)]
    with pytest.raises(InputError, match=r"budgets\[1\].*0 to 4096") as caught:
        drafter.propose(states, [4, budget])
    assert str(budget) in str(caught.value)


@every_drafter
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_budgets_in_arrays(make: Make, dtype: Any) -> None:
    drafter = make()
    states = [drafter.begin(np.array([1, 2, 3, 1, 2], np.int32)) for _ in range(3)]
    expected = list(drafter.propose(states, [4, 0, 2]))
    budgets: Any = np.array([4, 0, 2], dtype)
    assert list(drafter.propose(states, budgets)) == expected
    assert list(drafter.propose(tuple(states), (4, 0, 2))) == expected
    for bad in (np.array([4.0, 0.0, 2.0]), np.array([[4], [0], [2]], dtype)):
        with pytest.raises(InputError, match="budgets"):
            drafter.propose(states, bad)  # type: ignore[arg-type]


@every_drafter
@pytest.mark.parametrize(
    "foreign",
    [lambda _: None, lambda _: "state", lambda _: 7, lambda make: make().begin([1, 2]),
     lambda _: NgramDrafter().begin([1]), lambda _: SuffixDrafter().begin([1])],
    ids=["None", "str", "int", "the same kind's", "ngram's", "suffix's"],
)  # fmt: skip
def test_what_is_no_state_of_the_drafter(make: Make, foreign: Callable[[Make], Any]) -> None:
    drafter = make()
    state, wrong = drafter.begin(np.array([1, 2, 1], np.int32)), foreign(make)
    one = Verdict([], [5])
    with pytest.raises(StateError, match=r"drafter|begin"):
        drafter.propose([state, wrong], [2, 2])
    with pytest.raises(StateError, match=r"drafter|begin"):
        drafter.observe([state, wrong], [one, one])
    with pytest.raises(StateError, match=r"drafter|begin"):
        drafter.finish(wrong)
    with pytest.raises(StateError, match=r"drafter|begin"):
        drafter.text(wrong)
    assert drafter.text(state).tolist() == [1, 2, 1]


@every_drafter
def test_a_state_is_in_a_batch_once(make: Make) -> None:
    drafter = make()
    a, b = (drafter.begin(np.array([1, 2, 1], np.int32)) for _ in range(2))
    sentence = "state 2 is in the batch twice; expected each state once"
    one = Verdict([], [5])
    with pytest.raises(InputError, match=sentence):
        drafter.propose([a, b, a], [2, 2, 2])
    with pytest.raises(InputError, match=sentence):
        drafter.observe([a, b, a], [one, one, one])
    assert drafter.text(a).tolist() == drafter.text(b).tolist() == [1, 2, 1]


@every_drafter
def test_a_finished_state_is_dead(make: Make) -> None:
    drafter = make()
    alive, dead = (drafter.begin(np.array([1, 2, 1], np.int32)) for _ in range(2))
    before = drafter.propose([alive], [1])[0]
    drafter.finish(dead)
    verdict = Verdict([], [2])
    for call in (drafter.finish, drafter.text):
        with pytest.raises(StateError, match="finished"):
            call(dead)
    with pytest.raises(StateError, match="finished"):
        drafter.propose([alive, dead], [2, 2])
    with pytest.raises(StateError, match="finished"):
        drafter.observe([alive, dead], [verdict, verdict])
    # The refused calls left the living state as it was.
    assert drafter.propose([alive], [1])[0] == before
    drafter.observe([alive], [verdict])
    drafter.finish(alive)


def test_unknown_group() -> None:
    with pytest.raises(UnknownGroup, match="nobody"):
        SuffixDrafter().drop_group("nobody")


def refuses_what_is_wrong(make: Make) -> None:
    """The tests of bad input above, for a drafter that is not in the table."""
    test_is_a_drafter(make)
    test_an_empty_batch_is_fine(make)
    test_bad_batches_change_nothing(make)
    test_a_state_is_in_a_batch_once(make)
    test_a_finished_state_is_dead(make)
    for budget in (-1, 4097, True, 1.5, "3", None):
        test_bad_budgets(make, budget)
    for foreign in (None, "state", SuffixDrafter().begin([1])):
        test_what_is_no_state_of_the_drafter(make, lambda _, wrong=foreign: wrong)
