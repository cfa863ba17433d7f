"""How drafts come about in the proof: trees that grow node by node.

A `Propose` names the next token at a place (below a text, beside its earlier siblings) with the
probs it was sampled from, None for the probs if it was chosen; or None, and the tree stays without
this node. All of them here are right: a token's probs are those it was sampled from, given
everything that was known.

A draft leaves room for one token of the target's own, as an engine's does.

Mutates: nothing. Valid until: for ever. Raises: what a `Propose` raises. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from foresay.lossless.chance import Chance
from foresay.lossless.worlds import MAX_NODES, Probs, Text, World, normalised


class Tree(NamedTuple):
    """A draft: tokens, the parent of each (-1: the text so far), what each was sampled from."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    q: tuple[Probs | None, ...]

    @property
    def depths(self) -> list[int]:
        """Of each node; 1 is below the text so far."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return depths


class Place(NamedTuple):
    """Where a token is wanted."""

    world: World
    text: Text
    siblings: Sequence[int]

    @property
    def q(self) -> Probs:
        """The first small model's probs."""
        return self.world.q[0][self.text]


Token: TypeAlias = tuple[int, Probs | None]
Propose: TypeAlias = Callable[[Place, Chance], Token | None]
Drafting: TypeAlias = Callable[[World, Text, Chance], Tree]


def chain_of(propose: Propose) -> Drafting:
    """One node below the other, at most three."""
    return lambda world, text, chance: _grow(world, text, chance, (-1, 0, 1), propose)


def tree_of(propose: Propose, whole: bool = False) -> Drafting:
    """The world's shape; a first part of it if sampled, since outcomes are a power of it."""

    def draft(world: World, text: Text, chance: Chance) -> Tree:
        nodes = MAX_NODES if whole else {2: 6, 3: 4, 4: 3}.get(world.vocabulary, 2)
        return _grow(world, text, chance, world.parents[:nodes], propose)

    return draft


def _grow(world: World, text: Text, chance: Chance, shape: Sequence[int], propose: Propose) -> Tree:
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[Probs | None] = []
    texts, grown = {-1: text}, {-1: -1}  # by node of the shape: its text, its node in the tree
    for node, parent in enumerate(shape):
        if parent not in texts or len(texts[parent]) + 1 >= world.length:
            continue
        siblings = [t for t, p in zip(tokens, parents, strict=True) if p == grown[parent]]
        proposed = propose(Place(world, texts[parent], siblings), chance)
        if proposed is None:
            continue
        texts[node], grown[node] = (*texts[parent], proposed[0]), len(tokens)
        tokens.append(proposed[0])
        parents.append(grown[parent])
        probs.append(proposed[1])
    return Tree(tuple(tokens), tuple(parents), tuple(probs))


def ordered(tree: Tree, key: Callable[[int], Fraction | int]) -> Tree:
    """The same tree with siblings in the order of their keys."""
    depths = tree.depths
    order = sorted(range(len(depths)), key=lambda node: (depths[node], key(node)))
    parents = tuple(-1 if (p := tree.parents[n]) < 0 else order.index(p) for n in order)
    return Tree(tuple(tree.tokens[n] for n in order), parents, tuple(tree.q[n] for n in order))


def sampled(at: Place, chance: Chance) -> tuple[int, Probs]:
    """Independently of its siblings."""
    return chance.pick(at.q), at.q


def chosen(at: Place, chance: Chance) -> Token:
    """By lookup: any token, also one that a sibling has."""
    return at.world.chosen[at.text][len(at.siblings)], None


def distinct(at: Place, chance: Chance) -> tuple[int, Probs] | None:
    """Without replacement: its probs, given the siblings, leave them out."""
    left = [Fraction(0) if token in at.siblings else w for token, w in enumerate(at.q)]
    if not any(left):
        return None
    q = normalised(left)
    return chance.pick(q), q


def likely(at: Place, chance: Chance) -> Token | None:
    """The small model's most likely tokens, one after the other: chosen, whatever their chance."""
    ranked = sorted(range(len(at.q)), key=lambda token: (-at.q[token], token))
    return (ranked[len(at.siblings)], None) if len(at.siblings) < len(ranked) else None


def merged(at: Place, chance: Chance) -> tuple[int, Probs]:
    """From two small models in turn; where both say the same, both say it."""
    q = at.world.q[len(at.siblings) % 2][at.text]
    return chance.pick(q), q


def collapsed(at: Place, chance: Chance) -> Token | None:
    """From two small models, what both say only once, and all of it taken as chosen."""
    token, _ = merged(at, chance)
    return None if token in at.siblings else (token, None)


def mixed(at: Place, chance: Chance) -> Token | None:
    """Some siblings chosen, some sampled, some sampled apart from the others."""
    kinds: tuple[Propose, ...] = (merged, chosen, distinct)
    return kinds[at.world.chosen[at.text][-1 - len(at.siblings)] % 3](at, chance)


def confident(at: Place, chance: Chance) -> Token | None:
    """Only where the probs have a clear favourite: decided before the sampling."""
    first, second = sorted(at.q, reverse=True)[:2]
    return None if first - second < Fraction(1, 4) else sampled(at, chance)


def stopping(at: Place, chance: Chance) -> Token | None:
    """Not below an unlikely token, nor beside a likely one: decided after that one, which stays."""
    half, text = Fraction(1, 2), at.text
    if text and at.world.q[0][text[:-1]][text[-1]] < half:
        return None
    return None if at.siblings and at.q[at.siblings[-1]] > half else sampled(at, chance)


def coupled(at: Place, chance: Chance) -> Token:
    """The small models' choices under the target's noise, in turn. Rule match needs no probs."""
    q = at.world.q[len(at.siblings) % 2][at.text]
    return chance.choose(q, len(at.text)), None


def shuffled(world: World, text: Text, chance: Chance) -> Tree:
    """A merged tree; a coin says whether siblings are tried first to last or last to first."""
    tree = tree_of(merged)(world, text, chance)
    sign = -1 if chance.accept(Fraction(1, 2)) else 1
    return ordered(tree, lambda node: sign * node)
