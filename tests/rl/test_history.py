"""Answers by prompt and version: what is kept, what is dropped, what a group drafts from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import tokens
from foresay import Verdict
from foresay.drafters import MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.errors import InputError, TokenTypeError
from foresay.rl import PromptHistory
from foresay.rl.history import _OVERHEAD

LARGE = 1 << 20


def test_answers_are_found_by_their_prompt_alone() -> None:
    history = PromptHistory(1, LARGE)
    history.add([1, 2], [[5, 6], [7]])
    history.add([1, 3], [[8]])
    assert [a.tolist() for a in history.of([1, 2])] == [[5, 6], [7]]
    assert [a.tolist() for a in history.of([1, 3])] == [[8]]
    assert history.of([1]) == [] and len(history) == 2


@pytest.mark.parametrize("versions", [0, 1, 2, 5])
def test_only_the_last_versions_stay(versions: int) -> None:
    history = PromptHistory(versions, LARGE)
    for version in range(8):
        history.add([1], [[version]])
        history.new_version()
        kept = [answer.item() for answer in history.of([1])]
        assert kept == list(range(max(0, version + 1 - versions), version + 1))
    for _ in range(versions):
        history.new_version()
    assert not history.of([1]) and not len(history) and history.bytes_used == 0


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.tuples(st.integers(0, 5), st.lists(st.integers(0, 40), max_size=4)),
        ),
        max_size=40,
    ),
    st.integers(1, 4000),
)
def test_the_limit_holds_and_the_oldest_goes_first(
    events: list[tuple[int, list[int]] | None], limit: int
) -> None:
    history, all_of_it = PromptHistory(2, limit), PromptHistory(2, LARGE)
    for event in events:
        for each in (history, all_of_it):
            if event is None:
                each.new_version()
            else:
                prompt, sizes = event
                if each is all_of_it and _OVERHEAD + 4 + 4 * sum(sizes) > limit:
                    continue  # too large to be kept at all
                each.add([prompt], [np.arange(size, dtype=np.int32) for size in sizes])
        assert history.bytes_used <= limit
        for prompt in range(6):
            kept = [a.tolist() for a in history.of([prompt])]
            every = [a.tolist() for a in all_of_it.of([prompt])]
            assert kept == every[len(every) - len(kept) :] or not kept
    if all_of_it.bytes_used <= limit:
        assert history.bytes_used <= all_of_it.bytes_used


def test_the_latest_answers_within_a_number_of_tokens() -> None:
    history = PromptHistory(3, LARGE)
    for version in range(3):
        history.add([1], [[version] * 4, [10 + version] * 4])
        history.new_version()
    for most, kept in ((0, []), (3, []), (4, [12]), (11, [2, 12]), (24, [0, 10, 1, 11, 2, 12])):
        assert [answer[0] for answer in history.latest([1], most)] == kept


def test_what_is_kept_is_a_copy() -> None:
    history, answer = PromptHistory(1, LARGE), np.array([1, 2, 3], np.int32)
    history.add([9], [answer])
    answer[:] = 7
    assert history.of([9])[0].tolist() == [1, 2, 3]


def test_bad_values_are_refused() -> None:
    with pytest.raises(InputError, match="versions is -1"):
        PromptHistory(-1, 10)
    with pytest.raises(InputError, match="limit is 0"):
        PromptHistory(1, 0)
    history = PromptHistory(1, LARGE)
    with pytest.raises(InputError, match="-3"):
        history.add([1], [[-3]])
    with pytest.raises(TokenTypeError):
        history.add([1], [np.array([0.5])])
    assert history.bytes_used == 0


# ---- the drafter's side --------------------------------------------------------------------------


def drafted(drafter: SuffixDrafter, group: str | None) -> list[int]:
    state = drafter.begin(tokens(1, 2, 3), group=group)
    found: list[int] = drafter.propose([state], [4])[0].tokens.tolist()
    drafter.finish(state)
    return found


def test_a_group_drafts_from_an_earlier_answer() -> None:
    drafter = SuffixDrafter(history=False)
    drafter.add_to_group("g", [1, 2, 3], [70, 71, 72, 73])
    assert 70 in drafted(drafter, "g")
    assert 70 not in drafted(drafter, "h") and 70 not in drafted(drafter, None)
    drafter.check_integrity()
    drafter.drop_group("g")
    assert 70 not in drafted(drafter, "g")


def test_groups_of_tenants_stay_apart() -> None:
    drafter = SuffixDrafter(history=False)
    drafter.add_to_group("g", [1, 2, 3], [70, 71], tenant="a")
    assert 70 not in drafted(drafter, "g")


def test_an_answer_that_is_refused_changes_nothing() -> None:
    drafter = SuffixDrafter(max_tokens=8)
    before = drafter.bytes_used()
    for prompt, answer in (([], [1]), ([1], [-1]), ([1], list(range(9)))):
        with pytest.raises(InputError):
            drafter.add_to_group("g", prompt, answer)
    with pytest.raises(InputError, match="group is None"):
        drafter.add_to_group(None, [1], [1])  # type: ignore[arg-type]
    assert drafter.bytes_used() == before


def finished(drafter: SuffixDrafter, answer: int, tenant: str | None = None) -> None:
    """One finished request: 1 2 3 and then its answer."""
    state = drafter.begin(tokens(1, 2, 3), tenant=tenant)
    drafter.observe([state], [Verdict([], [answer])])
    drafter.finish(state)


def known(drafter: SuffixDrafter, tenant: str | None = None) -> set[int]:
    state = drafter.begin(tokens(1, 2, 3), tenant=tenant)
    found = set(drafter.propose([state], [16])[0].tokens.tolist())
    del state
    return found & set(range(50, 90))


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_a_history_forgets_old_versions(keep: int) -> None:
    drafter = SuffixDrafter()
    for version in range(6):
        finished(drafter, 50 + version)
        drafter.new_version(keep)
        assert known(drafter) == set(range(max(50, 51 + version - keep), 51 + version))
        drafter.check_integrity()


def test_versions_are_each_tenants_own() -> None:
    drafter = SuffixDrafter()
    finished(drafter, 60, "a")
    finished(drafter, 61, "b")
    drafter.new_version(0, tenant="a")
    assert known(drafter, "a") == set() and known(drafter, "b") == {61}
    for keep in (-1, True, 1.0, "1"):
        with pytest.raises(InputError, match="keep is"):
            drafter.new_version(keep)  # type: ignore[arg-type]


def test_a_running_request_survives_a_new_version() -> None:
    drafter = SuffixDrafter()
    finished(drafter, 60)
    state = drafter.begin(tokens(1, 2, 3))
    assert 60 in drafter.propose([state], [16])[0].tokens
    drafter.new_version(0)
    assert 60 not in drafter.propose([state], [16])[0].tokens
    drafter.observe([state], [Verdict([], [4])])
    drafter.finish(state)
    assert 4 in drafted(drafter, None)


def test_merged_drafters_are_all_told() -> None:
    inner = SuffixDrafter()
    merged = MergeDrafter(inner, NgramDrafter())
    merged.add_to_group("g", [1, 2, 3], [70, 71])
    assert 70 in drafted(inner, "g")
    finished(inner, 60)
    merged.new_version(0)
    assert known(inner) == set()
