"""What drafted nodes are worth and in which order they are taken, against loops that one can read;
and that the core refuses what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from budget.batches import trees
from foresay import _core
from foresay.draft import DraftBatch
from foresay.errors import InputError

EDGES = np.linspace(0.1, 0.9, 5)


def scored(seed: int, count: int) -> DraftBatch:
    """Some of the drafts have no nodes."""
    rng = np.random.default_rng(seed)
    while (batch := trees(rng, count, 6)).scores is None:
        pass
    return batch


def calibrated(batch: DraftBatch, gaps: Any) -> Any:
    assert batch.scores is not None
    of = (batch.tokens, batch.parents, batch.offsets, batch.scores)
    return _core.calibrated(*of, EDGES, gaps)


@pytest.mark.parametrize("seed", range(40))
def test_chances_are_products_along_paths(seed: int) -> None:
    batch = scored(seed, 4)
    gaps = np.random.default_rng(seed).normal(0, 0.3, 12)
    wanted = []
    for draft in batch:
        assert draft.scores is not None
        chances: list[float] = []
        for score, parent in zip(draft.scores.tolist(), draft.parents.tolist(), strict=True):
            ratio = score / max(1e-9, draft.scores[parent].item() if parent >= 0 else 1.0)
            kind = sum(edge < ratio for edge in EDGES.tolist()) + (6 if parent >= 0 else 0)
            own = min(1 - 1e-9, max(1e-6, ratio + gaps[kind].item()))
            chances.append(own * (chances[parent] if parent >= 0 else 1.0))
        wanted += chances
    assert np.array_equal(calibrated(batch, gaps), wanted)


@pytest.mark.parametrize("seed", range(40))
def test_the_order_is_by_gain_then_by_place_then_by_draft(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 6, 5)
    offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int32)
    chances = rng.choice([0.0, 0.25, 0.5], int(sizes.sum()))
    worth = rng.choice([0.5, 1.0], 5)
    owner = np.arange(5).repeat(sizes)
    gains, place = chances * worth[owner], np.arange(len(owner)) - offsets[owner]
    all_nodes = sorted(range(len(owner)), key=lambda i: (-gains[i], place[i], i))
    order, found = _core.ranked(chances, offsets, worth, None)
    assert order.tolist() == all_nodes and np.array_equal(found, gains[all_nodes])
    some = np.flatnonzero(rng.random(len(owner)) < 0.5)
    order, _ = _core.ranked(chances, offsets, worth, some)
    assert order.tolist() == [i for i in all_nodes if i in some.tolist()]
    assert not len(_core.ranked(chances, offsets, worth, some[:0])[0])


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def longs(*values: int) -> Any:
    return np.array(values, np.int64)


def numbers(*values: float) -> Any:
    return np.array(values, np.float64)


def test_what_does_not_fit_is_refused() -> None:
    one, score = (ints(7), ints(-1), ints(0, 1)), np.ones(1, np.float32)
    with pytest.raises(InputError, match=r"^gaps has 3 values; expected 12$"):
        _core.calibrated(*one, score, EDGES, np.zeros(3))
    with pytest.raises(InputError, match=r"^there are 1 tokens but 2 scores; expected one each$"):
        _core.calibrated(*one, np.ones(2, np.float32), EDGES, np.zeros(12))
    with pytest.raises(InputError, match=r"^parents\[0\] is 0; expected -1 to -1 for node 0"):
        _core.calibrated(ints(7), ints(0), ints(0, 1), score, EDGES, np.zeros(12))
    for offsets, said in (
        (ints(), "offsets is empty; expected one entry more than there are drafts"),
        (ints(0), "offsets are from 0 to 0; expected 0 to 1, the number of nodes"),
        (ints(0, 2), "offsets are from 0 to 2; expected 0 to 1, the number of nodes"),
        (ints(1, 1), "offsets are from 1 to 1; expected 0 to 1, the number of nodes"),
        (ints(0, 3, 1), "offsets[2] is 1 after 3; expected offsets that never fall"),
    ):
        with pytest.raises(InputError) as caught:
            _core.check_drafts(ints(7), ints(-1), offsets, None)
        assert str(caught.value) == said
        with pytest.raises(InputError) as caught:
            _core.ranked(numbers(0.5), offsets, numbers(1), None)
        assert str(caught.value) == said
    for wrong in (np.nan, -0.1, np.inf):
        with pytest.raises(InputError, match=r"^chances\[0\] is .*; expected a finite number"):
            _core.ranked(numbers(wrong), ints(0, 1), numbers(1), None)
        with pytest.raises(InputError, match=r"^worth\[0\] is .*; expected a finite number"):
            _core.ranked(numbers(0.5), ints(0, 1), numbers(wrong), None)
    for token in (-1, 2**31 - 1):
        with pytest.raises(InputError, match=rf"^tokens\[0\] is {token}; expected a token id"):
            _core.check_drafts(ints(token), ints(-1), ints(0, 1), None)
    with pytest.raises(InputError, match=r"^worth has 2 values; expected 1$"):
        _core.ranked(numbers(0.5), ints(0, 1), numbers(1, 1), None)
    for node in (-1, 1):
        with pytest.raises(InputError, match=rf"^node {node} is not there; expected 0 to 0$"):
            _core.ranked(numbers(0.5), ints(0, 1), numbers(1), longs(node))
        with pytest.raises(InputError, match=rf"^node {node} is not there; expected 0 to 0$"):
            expected(longs(node))
    with pytest.raises(InputError, match=r"^gains has 1 values; expected 0$"):
        expected(longs())
    with pytest.raises(InputError, match=r"^offsets has 2 values; expected 3$"):
        expected(longs(0), contexts=longs(5, 5))
    with pytest.raises(InputError, match=r"^shape has 1 values; expected 2$"):
        expected(longs(0), shape=numbers(1))
    with pytest.raises(InputError, match=r"^knots is empty; expected at least 1 number of rows$"):
        expected(longs(0), knots=numbers(), shape=numbers())
    for offsets in (ints(1, 2), ints(0, -1), ints(2, 1)):
        with pytest.raises(InputError, match=r"^offsets are from"):
            expected(longs(0), offsets=offsets)


def expected(
    order: Any, *, contexts: Any = None, shape: Any = None, knots: Any = None, offsets: Any = None
) -> Any:
    return _core.expected(
        order,
        numbers(0.5),
        ints(0, 1) if offsets is None else offsets,
        longs(5) if contexts is None else contexts,
        knots=numbers(1, 9) if knots is None else knots,
        shape=numbers(1, 2) if shape is None else shape,
        extras=(0.0, 0.0, 0.0),
        level=1.0,
        other_rows=0,
        other_reads=0,
        tokens=1.0,
        seconds=0.0,
    )
