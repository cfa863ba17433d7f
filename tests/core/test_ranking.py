"""How many drafted nodes are verified, and which, against loops that one can read; the nodes that
are kept, and the way back from them."""

from __future__ import annotations

import numpy as np
import pytest

from budget.batches import depth_by_hand, trees
from core.arrays import ints
from foresay import _core
from foresay.budget.cost import StepCost
from foresay.budget.load import Load
from foresay.draft import DraftBatch
from foresay.errors import InputError

COST = StepCost.measured([(1, 50, 2e-3), (8, 900, 3e-3), (64, 9000, 9e-3), (1, 4000, 4e-3)])


@pytest.mark.parametrize("seed", range(40))
def test_the_nodes_with_the_most_tokens_per_second_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    drafts = trees(rng, count, 6)
    chances = rng.choice([0.0, 0.25, 0.5], len(drafts.tokens))
    worth = rng.choice([0.5, 1.0], count)
    contexts, left = rng.integers(1, 3000, count), rng.integers(1, 6, count)
    overlaps, besides = bool(rng.random() < 0.5), float(rng.random()) * 1e-3
    rows, reads = int(rng.integers(0, 70)), int(rng.integers(0, 9000))
    load = Load(contexts, left, rows, reads, probed=overlaps)
    found = COST.selection(drafts, chances, worth, load, seconds=besides, bearable=0.25)

    owner = np.arange(count).repeat(np.diff(drafts.offsets))
    place = np.arange(len(owner)) - drafts.offsets[owner]
    depths = np.array([depth for draft in drafts for depth in depth_by_hand(draft)])
    gains = chances * worth[owner]
    within = [i for i in range(len(owner)) if depths[i] < left[owner[i]]]
    order = sorted(within, key=lambda i: (-gains[i], place[i], i))
    assert found.order.tolist() == order

    keys = int(contexts.sum())
    read = keys + reads + np.concatenate([[0], (contexts[owner[order]] + 1).cumsum()])
    took = COST.seconds(count + rows + np.arange(len(order) + 1), read, keys, count)
    seconds = took - (took[0] - COST.of(count, keys, keys, count)) + besides
    seconds[0] -= besides if overlaps else 0.0
    tokens = load.worth + np.concatenate([[0], gains[order].cumsum()])
    assert np.allclose(found.seconds, seconds, rtol=1e-12)
    assert np.allclose(found.tokens, tokens, rtol=1e-12)

    tokens, seconds = found.tokens, found.seconds
    assert found.best == (tokens / seconds).argmax()
    loss = seconds - tokens * (seconds[found.best] / tokens[found.best])
    assert found.most == max(found.best, np.flatnonzero(loss <= 0.25 * seconds[0])[-1])


@pytest.mark.parametrize("seed", range(40))
def test_kept_nodes_are_packed_and_found_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafts = trees(rng, 4, 6, scored=seed % 2 == 0)
    above, keep = drafts.flat_parents, rng.random(len(drafts.tokens)) < 0.7
    for node in range(len(keep)):
        keep[node] &= above[node] < 0 or keep[above[node]]
    tokens, parents, offsets, scores, nodes = _core.packed(
        drafts.tokens, drafts.parents, drafts.offsets, drafts.scores, keep
    )
    paths, numbered, hit = [], [], np.zeros(len(keep), bool)
    for at, draft in enumerate(drafts):
        start = int(drafts.offsets[at])
        own = np.flatnonzero(keep[start : start + len(draft)]).tolist()
        mine = slice(offsets[at], offsets[at + 1])
        assert nodes[mine].tolist() == own
        assert tokens[mine].tolist() == draft.tokens[own].tolist()
        assert [own[n] if n >= 0 else -1 for n in parents[mine]] == draft.parents[own].tolist()
        if draft.scores is not None:
            assert scores[mine].tolist() == draft.scores[own].tolist()
        path = [int(rng.integers(len(own)))] if own else []
        while path and parents[mine][path[0]] >= 0:
            path.insert(0, int(parents[mine][path[0]]))
        paths.append(path)
        numbered += [own[node] for node in path]
        hit[[start + own[node] for node in path]] = True
    flat = ints(*(node for path in paths for node in path))
    bounds = np.cumsum([0, *map(len, paths)]).astype(np.int32)
    given = _core.numbered(flat, bounds, offsets, nodes)
    assert given.tolist() == numbered
    accepted = _core.accepted(given, bounds, drafts.offsets, keep)
    assert accepted.tolist() == hit[keep].tolist()


def test_a_node_is_not_kept_without_its_parent() -> None:
    drafts = DraftBatch(ints(1, 2), ints(-1, 0), ints(0, 2))
    with pytest.raises(InputError, match=r"^node 1 of a proposal is kept without its parent"):
        of = drafts.tokens, drafts.parents, drafts.offsets
        _core.packed(*of, None, np.array([False, True]))


def test_masks_and_paths_that_do_not_fit_are_refused() -> None:
    one, two, path, bounds = ints(0), ints(0, 0), ints(0), ints(0, 1)
    with pytest.raises(InputError, match=r"^keep has 2 values; expected 1$"):
        _core.packed(one, ints(-1), bounds, None, np.ones(2, bool))
    for node in (-1, 1):
        said = rf"^path\[0\] is {node}; expected 0 to 0, the nodes of draft 0$"
        with pytest.raises(InputError, match=said):
            _core.numbered(ints(node), bounds, bounds, one)
        with pytest.raises(InputError, match=said):
            _core.accepted(ints(node), bounds, bounds, np.ones(1, bool))
    with pytest.raises(InputError, match=r"^offsets are from 0 to 1; expected 0 to 2"):
        _core.numbered(path, bounds, bounds, two)
    with pytest.raises(InputError, match=r"^offsets are from 0 to 1; expected 0 to 2"):
        _core.accepted(path, bounds, bounds, np.ones(2, bool))
    with pytest.raises(InputError, match=r"^the offsets of the paths do not rise"):
        _core.numbered(path, ints(0, 2), bounds, one)
