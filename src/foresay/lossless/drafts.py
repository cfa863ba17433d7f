"""How drafts come about in the proof: trees that grow node by node from a source of tokens.

A *source* is asked for the next token at a place: below a text, beside its earlier siblings. It
answers with a token and the law it was drawn from, None for the law if it was chosen; or with
None, and the tree stays without this node. All sources here are right: what they say of a token's
law is its law, given everything they knew.

A draft leaves room for one token of the target's own, as an engine's does.

Mutates: nothing. Valid until: for ever. Raises: what a source raises. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from foresay.lossless.chance import Chance
from foresay.lossless.worlds import MAX_NODES, Law, Text, World, normal

__all__ = ["Drafting", "Place", "Source", "Token", "Tree", "chain_of", "ordered", "tree_of"]


class Tree(NamedTuple):
    """A draft: tokens, the parent of each (-1: the text so far), the law each was drawn from."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    q: tuple[Law | None, ...]


class Place(NamedTuple):
    """Where a token is wanted."""

    world: World
    text: Text
    siblings: Sequence[int]

    @property
    def q(self) -> Law:
        """The first small model's law."""
        return self.world.q[0][self.text]


Token: TypeAlias = tuple[int, Law | None]
Source: TypeAlias = Callable[[Place, Chance], Token | None]
Drafting: TypeAlias = Callable[[World, Text, Chance], Tree]


def chain_of(source: Source) -> Drafting:
    """One node below the other, at most three."""
    return lambda world, text, chance: _grow(world, text, chance, (-1, 0, 1), source)


def tree_of(source: Source, whole: bool = False) -> Drafting:
    """The world's shape; a first part of it if drawn, as the number of draws is a power of it."""

    def draft(world: World, text: Text, chance: Chance) -> Tree:
        nodes = MAX_NODES if whole else {2: 6, 3: 4, 4: 3}.get(world.vocabulary, 2)
        return _grow(world, text, chance, world.parents[:nodes], source)

    return draft


def _grow(world: World, text: Text, chance: Chance, shape: Sequence[int], source: Source) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Law | None] = []
    texts, grown = {-1: text}, {-1: -1}  # by node of the shape: its text, its node in the tree
    for node, parent in enumerate(shape):
        if parent not in texts or len(texts[parent]) + 1 >= world.length:
            continue
        siblings = [t for t, p in zip(tokens, parents, strict=True) if p == grown[parent]]
        found = source(Place(world, texts[parent], siblings), chance)
        if found is None:
            continue
        texts[node], grown[node] = (*texts[parent], found[0]), len(tokens)
        tokens.append(found[0])
        parents.append(grown[parent])
        laws.append(found[1])
    return Tree(tuple(tokens), tuple(parents), tuple(laws))


def ordered(tree: Tree, key: Callable[[int], Fraction | int]) -> Tree:
    """The same tree with siblings in the order of their keys."""
    depths: list[int] = []
    for parent in tree.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    order = sorted(range(len(depths)), key=lambda node: (depths[node], key(node)))
    parents = tuple(-1 if (p := tree.parents[n]) < 0 else order.index(p) for n in order)
    return Tree(tuple(tree.tokens[n] for n in order), parents, tuple(tree.q[n] for n in order))


def drawn(at: Place, chance: Chance) -> tuple[int, Law]:
    """Independently of its siblings."""
    return chance.pick(at.q), at.q


def chosen(at: Place, chance: Chance) -> Token:
    """By lookup: any token, also one that a sibling has."""
    return at.world.chosen[at.text][len(at.siblings)], None


def distinct(at: Place, chance: Chance) -> tuple[int, Law] | None:
    """Without replacement: its law, given the siblings, leaves them out."""
    left = [Fraction(0) if token in at.siblings else w for token, w in enumerate(at.q)]
    if not any(left):
        return None
    q = normal(left)
    return chance.pick(q), q


def likely(at: Place, chance: Chance) -> Token | None:
    """The small model's most likely tokens, one after the other: chosen, whatever their chance."""
    ranked = sorted(range(len(at.q)), key=lambda token: (-at.q[token], token))
    return (ranked[len(at.siblings)], None) if len(at.siblings) < len(ranked) else None


def merged(at: Place, chance: Chance) -> tuple[int, Law]:
    """From two small models in turn; where both say the same, both say it."""
    q = at.world.q[len(at.siblings) % 2][at.text]
    return chance.pick(q), q


def collapsed(at: Place, chance: Chance) -> Token | None:
    """From two small models, what both say only once, and all of it taken as chosen."""
    token, _ = merged(at, chance)
    return None if token in at.siblings else (token, None)


def mixed(at: Place, chance: Chance) -> Token | None:
    """Some siblings chosen, some drawn, some drawn apart from the others."""
    sources: tuple[Source, ...] = (merged, chosen, distinct)
    return sources[at.world.chosen[at.text][-1 - len(at.siblings)] % 3](at, chance)


def confident(at: Place, chance: Chance) -> Token | None:
    """Only where the law has a clear favourite: decided before the draw."""
    first, second = sorted(at.q, reverse=True)[:2]
    return None if first - second < Fraction(1, 4) else drawn(at, chance)


def stopping(at: Place, chance: Chance) -> Token | None:
    """Not below an unlikely token, nor beside a likely one: decided after that one, which stays."""
    half, text = Fraction(1, 2), at.text
    if text and at.world.q[0][text[:-1]][text[-1]] < half:
        return None
    return None if at.siblings and at.q[at.siblings[-1]] > half else drawn(at, chance)


def coupled(at: Place, chance: Chance) -> Token:
    """The small models' own choices under the target's noise, in turn. Rule match needs no law."""
    q = at.world.q[len(at.siblings) % 2][at.text]
    return chance.choose(q, len(at.text)), None


def shuffled(world: World, text: Text, chance: Chance) -> Tree:
    """A merged tree; a coin says whether siblings are tried first to last or last to first."""
    tree = tree_of(merged)(world, text, chance)
    sign = -1 if chance.accept(Fraction(1, 2)) else 1
    return ordered(tree, lambda node: sign * node)
