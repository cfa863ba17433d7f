"""Pages against a plain dictionary, under any sequence of calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.engine.pages import PAGE, Pages, pages_of
from foresay.errors import InputError

HOLDERS = ["a", 7, ("group", 1), None]


@pytest.mark.parametrize("total", [0, -3, 1.5, "4"])
def test_a_number_of_pages_that_makes_no_sense_is_refused(total: object) -> None:
    with pytest.raises(InputError, match="number of pages is"):
        Pages(total)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokens", "pages"), [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (10 * PAGE, 10)]
)
def test_pages_of(tokens: int, pages: int) -> None:
    assert pages_of(tokens) == pages


@given(
    st.integers(1, 9),
    st.lists(
        st.tuples(st.sampled_from(HOLDERS), st.one_of(st.none(), st.integers(0, 6 * PAGE))),
        max_size=40,
    ),
)
def test_hold_and_release(
    total: int, calls: list[tuple[str | int | tuple[str, int] | None, int | None]]
) -> None:
    pages = Pages(total)
    held: dict[object, int] = {}
    for holder, tokens in calls:
        if tokens is None:
            pages.release(holder)
            held.pop(holder, None)
        else:
            wanted = -(-tokens // PAGE)
            fits = sum(held.values()) - held.get(holder, 0) + wanted <= total
            assert pages.hold(holder, tokens) is fits
            if fits:
                held[holder] = wanted
        assert pages.in_use == sum(held.values())
        assert pages.in_use + pages.free == total
        pages.check_integrity({holder: held[holder] * PAGE for holder in held})
        pages.check_integrity(dict.fromkeys(held, 0))


def test_the_check_names_who_breaks_a_promise() -> None:
    pages = Pages(4)
    pages.hold("a", PAGE)
    with pytest.raises(RuntimeError, match="'a' has 65 tokens in 1 pages"):
        pages.check_integrity({"a": PAGE + 1})
    with pytest.raises(RuntimeError, match="'b' holds no pages"):
        pages.check_integrity({"a": 1, "b": 1})
    with pytest.raises(RuntimeError, match="'a' holds pages and is not known"):
        pages.check_integrity({})
    pages._counted = 0
    with pytest.raises(RuntimeError, match="0 pages are counted"):
        pages.check_integrity({"a": 1})


def test_a_refusal_changes_nothing() -> None:
    pages = Pages(3)
    assert pages.hold("a", 2 * PAGE)
    assert not pages.hold("a", 4 * PAGE)
    assert not pages.hold("b", 2 * PAGE)
    pages.check_integrity({"a": 2 * PAGE})
    assert pages.free == 1
