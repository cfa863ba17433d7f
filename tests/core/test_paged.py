"""Pages of keys and values, and steps over them, against slow twins."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest

from core.arrays import ints
from core.paged_twin import BLOCK, Memory, Text, chunk_of, path_to, read_as_attend_does
from explore import EXPLORES, tries
from foresay._core import PagedStep, PagedText, PagePool, keep_together
from foresay.errors import InputError

SEEDS = range(tries(12))
HUGE = 2**32 - 1


def rng_of(seed: int) -> random.Random:
    return random.Random(None if EXPLORES else seed)


def tree(rng: random.Random, rows: int) -> list[int]:
    """A chain, or a random tree of the last token and nodes; or of several roots."""
    kind = rng.random()
    if kind < 0.3:
        return list(range(-1, rows - 1))
    least = -1 if kind < 0.5 else 0
    return [rng.randrange(least, row) if row else -1 for row in range(rows)]


def some_path(rng: random.Random, parents: list[int]) -> list[int]:
    """Rows that may be kept: from a root down to some row."""
    return path_to(parents, rng.randrange(-1, len(parents)))


def keep(texts: list[Text], paths: list[list[int]]) -> None:
    """All at once."""
    pages, rows = [text.pages for text in texts], ints(*chain(*paths))
    keep_together(tuple(pages), rows, np.cumsum([0, *map(len, paths)]).astype(np.int32))
    for text, path in zip(texts, paths, strict=True):
        text.keep(path)


def act(memory: Memory, texts: list[Text], rng: random.Random) -> bool:
    """Something happens. False: there was no room for it."""
    what, before = rng.random(), memory.pool.free
    if not texts or what < 0.1:
        texts.append(Text(PagedText(memory.pool)))
    elif what < 0.55:
        some = rng.sample(texts, rng.randint(1, min(4, len(texts))))
        try:
            memory.step(some, [tree(rng, rng.choice([0, 1, 1, 5, 9, 70])) for _ in some])
        except MemoryError:
            return False
        kept = rng.sample(some, rng.randint(0, len(some)))
        paths = [some_path(rng, text.parents) for text in kept]
        if rng.random() < 0.5:
            keep(kept, paths)
        else:
            for text, path in zip(kept, paths, strict=True):
                text.pages.keep(ints(*path))
                text.keep(path)
    elif what < 0.65:
        text = rng.choice(texts)
        text.ids, text.rows = text.ids[: rng.randint(0, len(text.ids))], []
        text.pages.cut(len(text.ids))
    elif what < 0.85:
        text, origin = Text(PagedText(memory.pool)), rng.choice(texts)
        ids = origin.ids[: rng.randint(0, len(origin.ids))]
        try:
            text.pages.copy_from(origin.pages, len(ids))
        except MemoryError:
            assert memory.pool.free == before == 0
            return False
        assert before - memory.pool.free == (len(ids) % BLOCK > 0), "full pages are shared"
        text.ids = ids
        texts.append(text)
    else:
        texts.pop(rng.randrange(len(texts)))
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_every_text_holds_its_tokens(seed: int) -> None:
    """Steps, kept paths, cuts, copies of prefixes, and texts that die, in a pool that is full now
    and then."""
    rng = rng_of(seed)
    memory = Memory([3, 9, 40][seed % 3], rng)
    texts: list[Text] = []
    refused = 0
    for _ in range(250):
        refused += not act(memory, texts, rng)
        if rng.random() < 0.3:
            memory.check(texts)
        elif rng.random() < 0.3:
            memory.copy()
    memory.check(texts)
    texts.clear()
    assert memory.pool.free == memory.pool.pages
    assert refused or memory.pool.pages == 40


def test_a_page_that_was_cut_is_copied_before_it_is_written() -> None:
    memory = Memory(8, random.Random(1))
    first, second = Text(PagedText(memory.pool)), Text(PagedText(memory.pool))
    memory.step([first], [list(range(-1, 99))])
    keep([first], [list(range(100))])
    second.pages.copy_from(first.pages, 64)
    second.ids = first.ids[:64]
    assert memory.pool.free == 6
    for text in (second, first):
        text.pages.cut(50)
        text.ids = text.ids[:50]
    assert memory.pool.free == 7
    memory.step([first], [[-1, 0, 0]])
    keep([first], [[0, 2]])
    assert memory.pool.free == 6
    memory.step([second], [[-1]])
    assert memory.pool.free == 6  # it is its own now
    memory.check([first, second])


def test_a_step_without_room_changes_nothing() -> None:
    memory = Memory(5, random.Random(1))
    texts = [Text(PagedText(memory.pool)) for _ in range(3)]
    memory.step(texts[:2], [list(range(-1, 79))] * 2)
    keep(texts[:2], [list(range(80))] * 2)
    for rows in ([60, 40, 64], [1, 1, 65], [0, 0, 129]):
        assert memory.pool.free == 1
        with pytest.raises(MemoryError):
            memory.step(texts, [[-1] * count for count in rows])
        memory.check(texts)
    with pytest.raises(MemoryError):
        texts[0].pages.begin_step(1 << 29)
    memory.check(texts)
    memory.step(texts, [[-1] * count for count in (48, 48, 64)])
    memory.check(texts)


STORED = (0, 1, 20, 63, 64, 65, 127, 128, 200, 1023, 1030, 2047, 2050, 3100)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_row_sees_its_text_and_its_ancestors(seed: int) -> None:
    """Each once, in the order of positions, in blocks and chunks that only positions decide:
    whatever else is in the step. That makes a row's bits those of a text without drafts."""
    rng = rng_of(seed)
    memory = Memory(400, rng)
    texts = [Text(PagedText(memory.pool)) for _ in range(rng.randint(1, 6))]
    for text in texts:
        stored = rng.choice(STORED[: rng.choice([6, 9, 14])])
        while len(text.ids) < stored:  # in pieces, so that pages of texts are mixed
            count = min(rng.randint(1, 700), stored - len(text.ids))
            memory.step([text], [list(range(-1, count - 1))])
            keep([text], [list(range(count))])
    parents = [tree(rng, rng.choice([1, 2, 9, 33, 80])) for _ in texts]
    size = rng.choice([1, 2, 2, 4, 8, 16])
    least, tile = rng.choice([0, 5, 20, 60, HUGE]), rng.choice([1, 4, 10, 21, 64, HUGE])
    step = memory.step(texts, parents, tile, least, size)
    assert step.rows == sum(map(len, parents))
    rows, items = step.rows + rng.choice([0, 5]), step.items + rng.choice([0, 3])
    buffer = np.full(step.size(rows, items) + 3, -9, np.int32)
    tokens = np.arange(step.rows, dtype=np.int32)
    step.fill(tokens, rows, items, buffer)
    assert (buffer[:-3] != -9).all() and (buffer[-3:] == -9).all()
    fillers = rows - step.rows
    columns = buffer[: 4 * rows].reshape(4, rows)
    assert columns[0, : step.rows].tolist() == tokens.tolist()
    assert columns[2, step.rows :].tolist() == [at % BLOCK for at in range(step.rows, rows)]
    assert columns[3, step.rows :].tolist() == [-1] * fillers
    slots = np.concatenate([text.pages.slots()[len(text.ids) :] for text in texts])
    assert columns[2, : step.rows].tolist() == slots.tolist()
    for window in (0, 1, rng.randint(2, 90), 300):
        seen, written = read_as_attend_does(buffer, rows, items, window)
        assert sorted(place for place, _ in written) == list(range(step.results))
        assert not any(seen.pop(row) for row in range(step.rows, rows))
        row = 0
        for text, own in zip(texts, parents, strict=True):
            place = text.pages.slots().tolist()
            for at in range(len(own)):
                path = [*range(len(text.ids)), *(len(text.ids) + it for it in path_to(own, at))]
                assert columns[1, row] == len(path) - 1
                wanted: dict[int, list[tuple[int, int]]] = {}
                for position in range(max(len(path) - window, 0) if window else 0, len(path)):
                    key = position % BLOCK, place[path[position]]
                    wanted.setdefault(position // BLOCK, []).append(key)
                found = [
                    (block // 16 if step.by_span else chunk_of(block, size), block, keys)
                    for block, keys in wanted.items()
                ]
                assert seen[row] == found, (window, row)
                row += 1


def begun(rows: int = 3, pool: PagePool | None = None) -> PagedText:
    """A text with rows of a step."""
    text = PagedText(pool or PagePool(4))
    text.begin_step(rows)
    text.end_step(rows)
    return text


def stepped(**given: Any) -> PagedStep:
    pool = PagePool(8)
    right: dict[str, Any] = {"offsets": ints(0, 2, 3), "parents": ints(-1, 0, -1), "tile_rows": 4}
    right["texts"] = [begun(0, pool), begun(0, pool)]
    try:
        asked = {**right, **given}
        return PagedStep(**{**asked, "texts": tuple(asked["texts"])})
    except InputError:
        assert pool.free == 8
        raise


def copied(length: int, *, itself: bool = False) -> None:
    pool = PagePool(2)
    text = PagedText(pool)
    text.copy_from(text if itself else begun(0, pool), length)


NONE: Any = None
FLOATS: Any = np.zeros(100)


def fill(tokens: int = 3, rows: int = 3, items: int = 2, numbers: int = 100) -> None:
    out = np.full(numbers, 7, np.int32)
    try:
        stepped().fill(ints(*range(tokens)), rows, items, out)
    except InputError:
        assert (out == 7).all()
        raise


def end_after(change: Callable[[PagedText], object]) -> None:
    """The text was changed since the step began."""
    text = PagedText(PagePool(4))
    step = PagedStep((text,), ints(0, 70), ints(*[-1] * 70), 4)
    change(text)
    step.end()


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no pages": (lambda: PagePool(0), "the pool has 0 pages; expected 1 to 33554431"),
    "too many pages": (lambda: PagePool(1 << 25), "the pool has 33554432 pages"),
    "a row that is not there": (lambda: begun().keep(ints(0, 3)), "row 3 at index 1; expected"),
    "a row below 0": (lambda: begun().keep(ints(-1)), "row -1 at index 0; expected rows of 0 to 2"),
    "a row twice": (lambda: begun().keep(ints(1, 1)), "row 1 at index 1"),
    "rows backwards": (lambda: begun().keep(ints(2, 0)), "row 0 at index 1"),
    "the least row": (lambda: begun().keep(ints(-(2**31))), "row -2147483648"),
    "the greatest row": (lambda: begun().keep(ints(2**31 - 1)), "row 2147483647"),
    "a row behind the greatest": (lambda: begun().keep(ints(2**31 - 1, 0)), "row 2147483647"),
    "rows of no step": (lambda: begun(0).keep(ints(0)), "row 0 at index 0"),
    "a long cut": (lambda: begun().cut(1), "length is 1; expected 0 to 0"),
    "the longest cut": (lambda: begun().cut(HUGE), "length is 4294967295"),
    "a long copy": (lambda: copied(1), "length is 1; expected 0 to 0"),
    "a copy of itself": (lambda: copied(0, itself=True), "another text of the same memory"),
    "another memory": (lambda: begun().copy_from(begun(), 0), "another text of the same memory"),
    "too many rows": (lambda: begun().begin_step(HUGE), "4294967295 tokens; expected at most"),
    "rows that have no room": (lambda: begun().end_step(4), "4 rows .* expected at most 3"),
    "all rows": (lambda: begun(0).end_step(HUGE), "4294967295 rows"),
    "a step of a text that was cut": (lambda: end_after(lambda text: text.cut(0)), "70 rows"),
    "of one that was kept": (lambda: end_after(lambda text: text.keep(ints())), "70 rows"),
    "of one in another step": (lambda: end_after(lambda text: text.begin_step(1)), "70 rows"),
    "paths of other texts": (lambda: keep_together((), ints(0), ints(0)), "the paths"),
    "a text that is none": (
        lambda: keep_together((NONE,), ints(), ints(0, 0)),
        "text 0 is no PagedText",
    ),
    "a text kept twice": (lambda: keep_together((begun(0),) * 2, ints(), ints(0, 0, 0)), "twice"),
    "no texts": (lambda: stepped(texts=[], offsets=ints(0), parents=ints()), "has 0 texts"),
    "no tiles": (lambda: stepped(tile_rows=0), "tiles of 0 rows"),
    "empty chunks": (lambda: stepped(chunk=0), "the first chunks have 0 blocks; expected 1, 2"),
    "odd chunks": (lambda: stepped(chunk=3), "the first chunks have 3 blocks"),
    "few offsets": (lambda: stepped(offsets=ints(0, 3)), "the step"),
    "offsets backwards": (lambda: stepped(offsets=ints(0, 4, 3)), "the step"),
    "offsets beyond": (lambda: stepped(offsets=ints(0, 2, 4)), "the step"),
    "offsets below 0": (lambda: stepped(offsets=ints(-1, 2, 3)), "the step"),
    "a text twice": (lambda: stepped(texts=[begun(0)] * 2), "in the step twice"),
    "no text": (lambda: stepped(texts=[None, begun(0)]), "text 0 is no PagedText"),
    "texts of two": (lambda: stepped(texts=[begun(0), begun(0)]), "text 1 is of another memory"),
    "its own parent": (lambda: stepped(parents=ints(-1, 1, -1)), "parent 1 of row 1 is none"),
    "another's row": (lambda: stepped(parents=ints(-1, 0, 0)), "parent 0 of row 0 is none"),
    "a parent below -1": (lambda: stepped(parents=ints(-1, -2, -1)), "parent -2 of row 1"),
    "the greatest": (lambda: stepped(parents=ints(-1, 0, 2**31 - 1)), "parent 2147483647"),
    "few tokens": (lambda: fill(tokens=2), "and 2 tokens does not fit"),
    "few rows": (lambda: fill(rows=2), "does not fit into 2 rows"),
    "few items": (lambda: fill(items=1), "1 items"),
    "few numbers": (lambda: fill(numbers=49), "and 49 numbers"),
    "the most rows": (lambda: fill(rows=HUGE), "does not fit into 4294967295 rows"),
    "the most items": (lambda: fill(items=HUGE), "4294967295 items"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused(case: str) -> None:
    call, said = WRONG[case]
    with pytest.raises(InputError, match=said):
        call()


def test_what_is_refused_may_be_tried_again() -> None:
    fill(numbers=9 * 3 + 2 * 10 + 3)  # a heap of three
    text = begun()
    with pytest.raises(InputError):
        text.keep(ints(0, 0))
    text.keep(ints(0, 2))
    assert text.length == 2
    with pytest.raises(InputError):
        text.keep(ints(0))  # its rows are gone
    with pytest.raises(InputError):
        text.copy_from(PagedText(PagePool(1)), 0)
    many = [begun(), begun(2)]
    with pytest.raises(InputError, match="row 2 at index 0"):
        keep_together(tuple(many), ints(0, 2), ints(0, 1, 2))
    assert [text.length for text in many] == [0, 0]
    keep_together(tuple(many), ints(0, 1), ints(0, 1, 2))
    assert [text.length for text in many] == [1, 1]


@pytest.mark.parametrize(
    "call",
    [
        *(lambda wrong=wrong: PagePool(wrong) for wrong in (-1, 2**32, 1.5, "1", None)),
        *(lambda wrong=wrong: begun().cut(wrong) for wrong in (-1, 2**32, None)),
        *(lambda wrong=wrong: begun().begin_step(wrong) for wrong in (-1, 2**64)),
        *(lambda wrong=wrong: PagedText(wrong) for wrong in (None, 5, FLOATS)),
        *(lambda wrong=wrong: begun().copy_from(wrong, 0) for wrong in (None, 5, FLOATS)),
        lambda: begun().keep(FLOATS),
        lambda: begun().keep(np.zeros((1, 1), np.int32)),
        lambda: stepped(tile_rows=-1),
        lambda: stepped().fill(ints(1, 2, 3), 3, 2, FLOATS),
        lambda: stepped().fill(ints(1, 2, 3), 3, 2, np.zeros(200, np.int32)[::2]),
        lambda: stepped().fill(ints(1, 2, 3), -1, 2, np.zeros(100, np.int32)),
    ],
)
def test_what_is_of_another_type(call: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        call()
