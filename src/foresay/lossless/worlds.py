"""Small worlds: a target and two small models, whose probs are fractions, for every text up to a
few tokens.

A world is made from (seed, index) and nothing else, so that every case can be made again. Together
the worlds have what breaks rules: zeros, certainty, ties, equal probs, probs without a common
token, drafts the target would never write, small and large denominators.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from random import Random
from typing import TypeAlias

__all__ = ["MAX_NODES", "Probs", "Text", "World", "normalised", "sharper", "world_of"]

Text: TypeAlias = tuple[int, ...]
Probs: TypeAlias = tuple[Fraction, ...]
Table: TypeAlias = Mapping[Text, Probs]

MAX_NODES = 6
# (vocabulary, length), in turn, so that few cases have all. Cost is a power of both, so large ones
# are rare; but some errors (replacement forgotten) cannot be seen with two tokens or no siblings.
_SIZES = (
    *((2, 3), (3, 2), (4, 2), (3, 3), (2, 2), (3, 2), (2, 4), (4, 2)),
    *((2, 3), (3, 3), (5, 2), (3, 2), (2, 3), (4, 2), (4, 3), (3, 2)),
)
_FINENESS = (1, 2, 3, 7, 7, 1000)


@dataclass(frozen=True)
class World:
    """Probs by text, for every text shorter than `length`."""

    name: str
    """The seed and the index it was made from."""
    vocabulary: int
    length: int
    p: Table
    """The target's probs, after the processors: what the text must follow."""
    raw: Table
    """The target's probs before them."""
    allowed: Mapping[Text, tuple[int, ...]]
    """The tokens that a grammar allows after a text: all of them in two worlds of three."""
    unmasked: Table
    """What `p` would be if all tokens were allowed."""
    q: tuple[Table, Table]
    """The probs of two small models."""
    chosen: Mapping[Text, tuple[int, ...]]
    """Tokens that a lookup would propose after a text: arbitrary, with repetitions."""
    parents: tuple[int, ...]
    """The shape of draft trees; any first part of it is a tree as well."""


def world_of(seed: int, index: int) -> World:
    """The same for the same numbers, in every process and on every machine."""
    name = f"{seed}/{index}"
    random = Random(name)
    vocabulary, length = _SIZES[index % len(_SIZES)]
    fineness = random.choice(_FINENESS)
    processor = random.choice((_hotter, _banning, _penalised))
    texts = [t for size in range(length) for t in product(range(vocabulary), repeat=size)]
    raw = {text: _random_probs(random, vocabulary, fineness) for text in texts}
    allowed = _allowed(Random(f"{name}/allowed"), raw, vocabulary)
    unmasked = {text: processor(probs, text) for text, probs in raw.items()}
    p = {text: processor(_masked(probs, allowed[text]), text) for text, probs in raw.items()}
    first, second = ({t: _companion(random, p[t], fineness) for t in texts} for _ in range(2))
    chosen = {t: tuple(random.choices(range(vocabulary), k=MAX_NODES)) for t in texts}
    parents = _shape(random, random.randint(1, MAX_NODES), length - 1)
    return World(
        name, vocabulary, length, p, raw, allowed, unmasked, (first, second), chosen, parents
    )


def normalised(weights: Iterable[Fraction | int]) -> Probs:
    """The probs with these weights, which must not all be 0."""
    exact = [Fraction(w) for w in weights]
    total = sum(exact, start=Fraction(0))
    return tuple(w / total for w in exact)


def sharper(probs: Sequence[Fraction]) -> Probs:
    """The same probs at half the temperature: the one other temperature that stays rational."""
    return normalised(w * w for w in probs)


def _random_probs(random: Random, size: int, fineness: int) -> Probs:
    kind = random.random()
    if kind < 0.1:
        return normalised(
            int(v == random_token) for random_token in [random.randrange(size)] for v in range(size)
        )
    if kind < 0.2:
        return normalised([1] * size)
    weights = [random.randint(0, fineness) for _ in range(size)]
    return normalised(weights) if any(weights) else _random_probs(random, size, fineness)


def _companion(random: Random, p: Probs, fineness: int) -> Probs:
    """A small model's probs beside the target's."""
    kind, free = random.random(), _random_probs(random, len(p), fineness)
    if kind < 0.1:
        return p
    if kind < 0.3:
        inside = kind < 0.15  # otherwise nothing in common with the target
        kept = [w if bool(a) is inside else Fraction(0) for w, a in zip(free, p, strict=True)]
        return normalised(kept) if any(kept) else free
    if kind < 0.5:
        return normalised(a + b for a, b in zip(p, free, strict=True))
    return free


def _allowed(random: Random, raw: Table, size: int) -> dict[Text, tuple[int, ...]]:
    """In every third world some tokens are forbidden after some texts; one that the target may
    write is always allowed."""
    every, masks = tuple(range(size)), random.random() < 1 / 3
    found: dict[Text, tuple[int, ...]] = {}
    for text, probs in raw.items():
        some = tuple(sorted(random.sample(every, random.randint(1, size)))) if masks else every
        found[text] = some if any(probs[v] for v in some) else every
    return found


def _masked(probs: Probs, allowed: Sequence[int]) -> Probs:
    return normalised(w if v in allowed else 0 for v, w in enumerate(probs))


def _shape(random: Random, nodes: int, depth: int) -> tuple[int, ...]:
    """Parents before children. Every third tree is narrow: it grows where it grew last."""
    depths: list[int] = []
    parents: list[int] = []
    narrow = random.random() < 1 / 3
    for node in range(nodes):
        inner = [-1, *(n for n in range(node) if depths[n] < depth)]
        parent = inner[-1] if narrow and random.random() < 0.7 else random.choice(inner)
        parents.append(parent)
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return tuple(parents)


def _hotter(probs: Probs, text: Text) -> Probs:
    return sharper(probs)


def _banning(probs: Probs, text: Text) -> Probs:
    """Bans the least likely token, as top-k and min-p would, unless it is the only one."""
    least = min((w, v) for v, w in enumerate(probs) if w)[1]
    return normalised(w if v != least or w == 1 else 0 for v, w in enumerate(probs))


def _penalised(probs: Probs, text: Text) -> Probs:
    """Tokens that the text has already count half: probs that depend on the whole path."""
    return normalised(w / 2 if v in text else w for v, w in enumerate(probs))
