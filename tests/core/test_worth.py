"""What stated chances are worth, against tables that one can read: the core's are the same, bit by
bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from budget.batches import scored
from core.arrays import doubles, ints, longs
from foresay import _core
from foresay.arrays import Floats, Int32s
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError

EDGES = np.linspace(0.1, 0.9, 5)
CLASSES = 12


@dataclass
class Table:
    """What a tenant's nodes taught, by class: first of those without a parent."""

    seen: list[float] = field(default_factory=lambda: [0.0] * CLASSES)
    beyond: list[float] = field(default_factory=lambda: [0.0] * CLASSES)

    def chance(self, ratio: float, kind: int) -> float:
        gap = self.beyond[kind] / (self.seen[kind] + 4.0)
        return min(1 - 1e-9, max(1e-6, ratio + gap))

    def learn(self, tested: Sequence[tuple[int, float, bool]]) -> None:
        for kind in range(CLASSES):
            own = [(ratio, won) for of, ratio, won in tested if of == kind]
            kept = (1 - 1 / 128) ** len(own)
            more = 0.0
            for ratio, won in own:
                more += won - ratio
            self.seen[kind] = self.seen[kind] * kept + len(own)
            self.beyond[kind] = self.beyond[kind] * kept + more


def classed(draft: Draft, node: int) -> tuple[float, int]:
    """A node's score over its parent's, and its class."""
    assert draft.scores is not None
    parent = int(draft.parents[node])
    ratio = draft.scores[node].item() / max(1e-9, draft.scores[parent].item() if parent >= 0 else 1)
    return ratio, sum(edge < ratio for edge in EDGES.tolist()) + (6 if parent >= 0 else 0)


def chances(draft: Draft, table: Table) -> list[float]:
    found: list[float] = []
    for node, parent in enumerate(draft.parents.tolist()):
        found.append(table.chance(*classed(draft, node)) * (found[parent] if parent >= 0 else 1))
    return found


class Factors:
    """What requests were worth; the one seen least recently is forgotten."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.of: dict[int, tuple[float, float]] = {}

    def factor(self, request: int) -> float:
        expected, accepted = self.of.get(request, (0.0, 0.0))
        return min(1.0, (accepted + 2) / (expected + 2))

    def learn(self, request: int, expected: float, accepted: int) -> None:
        before = self.of.pop(request, (0.0, 0.0))
        kept = 1 - 1 / 20
        self.of[request] = before[0] * kept + min(1.0, expected), before[1] * kept + accepted


def arrays(batch: DraftBatch) -> tuple[Int32s, Int32s, Int32s, Floats]:
    assert batch.scores is not None
    return batch.tokens, batch.parents, batch.offsets, batch.scores


@pytest.mark.parametrize("seed", range(20))
def test_the_core_learns_what_the_readable_tables_do(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables, factors = [Table(), Table()], Factors(most=9)
    fast = [_core.ClassTable(EDGES, 4.0, 128.0) for _ in tables]
    fast_factors = _core.RequestFactors(2.0, 20.0, 9)
    for _ in range(30):
        batch = scored(int(rng.integers(1 << 30)), 4)
        rows = rng.integers(0, 2, 4).astype(np.int32)
        ids = rng.choice(12, 4, replace=False)
        wanted = [chances(draft, tables[row]) for draft, row in zip(batch, rows, strict=True)]
        found = _core.calibrated(*arrays(batch), fast, rows)
        assert found.tolist() == [chance for one in wanted for chance in one]
        accepted = rng.random(len(batch.tokens)) < 0.5
        tested: list[list[tuple[int, float, bool]]] = [[], []]
        for at, draft in enumerate(batch):
            own = accepted[batch.offsets[at] : batch.offsets[at + 1]].tolist()
            expected, roots, right = 0.0, 0, 0
            for node, parent in enumerate(draft.parents.tolist()):
                ratio, kind = classed(draft, node)
                if parent < 0:
                    expected, roots = expected + wanted[at][node], roots + 1
                    right += own[node]
                if parent < 0 or own[parent]:
                    tested[rows[at]].append((kind, ratio, own[node]))
            if roots:
                factors.learn(int(ids[at]), expected, right)
        while len(factors.of) > factors.most:
            del factors.of[next(iter(factors.of))]
        for table, own_tests in zip(tables, tested, strict=True):
            table.learn(own_tests)
        _core.learn(*arrays(batch), accepted, fast, rows, fast_factors, ids)
        known = np.arange(12)
        assert fast_factors.of(known).tolist() == [factors.factor(n) for n in known.tolist()]


@pytest.mark.parametrize("seed", range(20))
def test_means_by_place_follow_what_is_seen(seed: int) -> None:
    rng = np.random.default_rng(seed)
    means, wanted = np.zeros((2, 8)), np.zeros((2, 8))
    for _ in range(10):
        nodes = rng.integers(0, 9, int(rng.integers(0, 20))).astype(np.int32)
        accepted = rng.random(len(nodes)) < 0.5
        asked, requests, rate = int(rng.integers(0, 9)), int(rng.integers(1, 5)), rng.random()
        for mean, places in zip(wanted, (nodes, nodes[accepted]), strict=True):
            count = np.bincount(places, minlength=8)[:asked]
            mean[:asked] += (count / requests - mean[:asked]) * rate
        _core.follow_places(means, nodes, accepted, asked, requests, rate)
        assert np.array_equal(means, wanted)


def test_means_refuse_what_does_not_fit() -> None:
    means, right = np.zeros((2, 3)), np.ones(1, bool)
    for said, wrong in (
        ("^means has 1 rows; expected 2", (means[:1], ints(0), right, 2, 1, 0.5)),
        ("^asked is 4; expected at most 3", (means, ints(0), right, 4, 1, 0.5)),
        ("^requests is 0; expected at least 1$", (means, ints(0), right, 2, 0, 0.5)),
        ("^accepted has 1 values; expected 2$", (means, ints(0, 1), right, 2, 1, 0.5)),
        (r"^nodes\[0\] is -1; expected a place from 0$", (means, ints(-1), right, 2, 1, 0.5)),
        (r"^rate is 1\.1\d*; expected 0 to 1$", (means, ints(0), right, 2, 1, 1.1)),
        (r"^rate is -?nan; expected 0 to 1$", (means, ints(0), right, 2, 1, float("nan"))),
    ):
        with pytest.raises(InputError, match=said):
            _core.follow_places(*wrong)
    assert not means.any()


def test_tables_and_factors_refuse_what_they_cannot_be_made_of() -> None:
    for edges in (doubles(0.5, 0.5), doubles(0.0, 0.5), doubles(0.5, float("nan"))):
        with pytest.raises(InputError, match=r"^edges\[[01]\] is .*; expected edges that rise"):
            _core.ClassTable(edges, 4.0, 128.0)
    for prior in (0.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match=r"^prior is .*; expected a number above 0"):
            _core.ClassTable(EDGES, prior, 128.0)
    for memory in (0.5, float("nan")):
        with pytest.raises(InputError, match=r"^memory is .*; expected a number from 1"):
            _core.RequestFactors(2.0, memory, 9)
    with pytest.raises(InputError, match=r"^most is 0; expected at least 1"):
        _core.RequestFactors(2.0, 20.0, 0)


def test_nothing_is_learned_from_what_is_refused() -> None:
    table, factors = _core.ClassTable(EDGES, 4.0, 128.0), _core.RequestFactors(2.0, 20.0, 9)
    batch = DraftBatch.of([Draft.chain([1, 2], [0.5, 0.25])])
    none, rows = np.zeros(2, bool), ints(0)
    before = _core.calibrated(*arrays(batch), [table], rows)
    for wrong, said in (
        ((none[:1], [table], rows, factors, longs(3)), "^accepted has 1 values; expected 2$"),
        ((none, [table], rows, factors, longs(3, 4)), "^ids has 2 values; expected 1$"),
        ((none, [table], rows, factors, None), "^ids has 0 values; expected 1$"),
        ((none, [table], ints(0, 0), factors, longs(3)), "^rows has 2 values; expected 1$"),
        ((none, [table], ints(1), factors, longs(3)), "^table 1 is not there; expected 0 to 0$"),
        ((none, [], rows, factors, longs(3)), "^table 0 is not there; expected 0 to -1$"),
        ((none, [table, 7], rows, factors, longs(3)), "^table 1 is 7; expected a ClassTable$"),
        (
            (none, [_core.ClassTable.__new__(_core.ClassTable)], rows, factors, longs(3)),
            "^table 0 is .*; expected a ClassTable$",
        ),
    ):
        with pytest.raises(InputError, match=said):
            _core.learn(*arrays(batch), *wrong)
    assert np.array_equal(_core.calibrated(*arrays(batch), [table], rows), before)
    assert factors.of(longs(3)) == [1]
