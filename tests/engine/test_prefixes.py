"""The tree of prefixes: what shares the most is found, whoever else is there."""

from __future__ import annotations

import random
from itertools import takewhile

import numpy as np
import pytest

from core.arrays import ints
from foresay.arrays import Int32s
from foresay.engine.prefix_tree import BLOCK, PrefixTree


def text(draw: random.Random, *, blocks: int = 6) -> Int32s:
    """Of few tokens and few blocks, so that many begin alike."""
    size = draw.randrange(blocks * BLOCK)
    return ints(*(draw.randrange(2) if at % 7 == 0 else 1 for at in range(size)))


def shared(a: Int32s, b: Int32s) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_prefix_is_found(seed: int) -> None:
    """To the token where few texts share the same blocks, else to the block."""
    draw, tree = random.Random(seed), PrefixTree[int]()
    held: dict[int, tuple[str, Int32s]] = {}
    for number in range(120):
        if held and draw.random() < 0.3:
            gone = draw.choice(sorted(held))
            tree.remove(*held.pop(gone), gone)
        owner, tokens = draw.choice("ab"), text(draw)
        found = list(tree.sharing(owner, tokens))
        assert len({its for _, its in found}) == len(found)
        for many, its in found:
            assert held[its][0] == owner and many == shared(tokens, held[its][1]) >= BLOCK
        every = [shared(tokens, its) for whose, its in held.values() if whose == owner]
        longest = max((many for many in every if many >= BLOCK), default=0)
        best = found[0][0] if found else 0
        assert best // BLOCK == longest // BLOCK
        if sum(many // BLOCK == longest // BLOCK for many in every) <= 8:
            assert best == longest
        assert len(found) <= 8 * 6
        tree.add(owner, tokens, number)
        held[number] = owner, tokens
    for number, (owner, tokens) in held.items():
        tree.remove(owner, tokens, number)
    assert not tree and not tree._root.children


def test_owners_share_nothing() -> None:
    tree, tokens = PrefixTree[int](), np.arange(40, dtype=np.int32)
    tree.add("one", tokens, 1)
    assert not list(tree.sharing("other", tokens)) and not list(tree.sharing(None, tokens))
    assert list(tree.sharing("one", tokens)) == [(40, 1)]
    tree.remove("other", tokens, 1)  # it is not there
    assert list(tree.sharing("one", tokens)) == [(40, 1)]


def test_the_work_does_not_grow_with_the_number_of_texts() -> None:
    """Chats with one system prompt: a thousand are compared with as few as ten are."""
    tree, template = PrefixTree[int](), np.arange(3 * BLOCK, dtype=np.int32)
    for number in range(1000):
        tree.add(None, np.append(template, np.full(BLOCK, number, np.int32)), number)
    asked = np.append(template, np.full(BLOCK, 500, np.int32))
    found = list(tree.sharing(None, asked))
    assert found[0] == (4 * BLOCK, 500) and len(found) <= 4 * 8
