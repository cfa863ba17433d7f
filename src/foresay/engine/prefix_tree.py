"""Texts by what they begin with: a tree of blocks of 16 tokens.

A text is in every node on its path, so what shares the most with another text is found by walking
down that text's blocks, however many texts there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from foresay.arrays import Int32s

__all__ = ["BLOCK", "PrefixTree"]

BLOCK = 16
_SOME = 4  # of a node's oldest texts, and of its latest, which are compared token by token

Text = TypeVar("Text", bound=Hashable)


@dataclass(slots=True)
class _Node(Generic[Text]):
    children: dict[Hashable, _Node[Text]] = field(default_factory=dict)
    texts: dict[Text, Int32s] = field(default_factory=dict)


class PrefixTree(Generic[Text]):
    """Texts of owners, each with its tokens; texts of one owner are found by it alone."""

    def __init__(self) -> None:
        self._root: _Node[Text] = _Node()

    def __len__(self) -> int:
        return len(self._root.texts)

    def add(self, owner: Hashable, tokens: Int32s, text: Text) -> None:
        """Adding a text twice changes nothing."""
        node = self._root
        node.texts[text] = tokens
        for key in _path(owner, tokens):
            node = node.children.setdefault(key, _Node())
            node.texts[text] = tokens

    def remove(self, owner: Hashable, tokens: Int32s, text: Text) -> None:
        """Nothing happens if it is not there."""
        node, above = self._root, list[tuple[_Node[Text], Hashable]]()
        node.texts.pop(text, None)
        for key in _path(owner, tokens):
            following = node.children.get(key)
            if following is None:
                break
            above.append((node, key))
            node = following
            node.texts.pop(text, None)
        for parent, key in reversed(above):
            if parent.children[key].texts:
                break
            del parent.children[key]

    def sharing(self, owner: Hashable, tokens: Int32s) -> Iterator[tuple[int, Text]]:
        """Texts that begin as these tokens do, each with how many tokens it shares, most first. At
        least one block is shared. Of the texts that share equally many blocks, only the oldest and
        the latest few are compared.
        """
        node, nodes = self._root, list[_Node[Text]]()
        for key in _path(owner, tokens):
            following = node.children.get(key)
            if following is None:
                break
            node = following
            nodes.append(node)
        given = set[Text]()
        for blocks in range(len(nodes) - 1, 0, -1):
            texts, begin = nodes[blocks].texts, blocks * BLOCK
            own, found = tokens[begin : begin + BLOCK], list[tuple[int, Text]]()
            for text in [*islice(texts, _SOME), *islice(reversed(texts), _SOME)]:
                if text not in given:
                    given.add(text)
                    found.append((begin + common(own, texts[text][begin : begin + BLOCK]), text))
            yield from sorted(found, key=lambda one: -one[0])


def common(a: Int32s, b: Int32s) -> int:
    """How many tokens two short texts have in common from their beginnings."""
    size = min(len(a), len(b))
    # As two numbers: what they differ in first is the lowest bit of their difference.
    one, other = (int.from_bytes(text[:size].tobytes(), "little") for text in (a, b))
    differs = one ^ other
    return ((differs & -differs).bit_length() - 1) // 32 if differs else size


def _path(owner: Hashable, tokens: Int32s) -> Iterator[Hashable]:
    yield owner
    for begin in range(0, len(tokens) - BLOCK + 1, BLOCK):
        yield tokens[begin : begin + BLOCK].tobytes()
