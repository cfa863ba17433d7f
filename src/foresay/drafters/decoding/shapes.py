"""The shapes of drafts that a model grows, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import TypeAlias

from foresay.arrays import check_whole
from foresay.drafter import MAX_BUDGET
from foresay.errors import InputError

__all__ = ["Dynamic", "Shape", "ShapeLike", "as_shape"]

_MOST = 64  # levels, and children of a node


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A tree by confidence, as EAGLE-2 grows it: in each level the `width` likeliest nodes get
    `width` children each, `depth` levels in all; then the likeliest of all nodes are proposed.

    Raises: InputError when constructed.
    """

    width: int = 4
    depth: int = 5

    def __post_init__(self) -> None:
        check_whole(self.width, "width", 1, _MOST)
        check_whole(self.depth, "depth", 1, _MOST)


ShapeLike: TypeAlias = "int | Sequence[int] | Dynamic"
"""The length of a chain; the children of each node of each level, (3, 2) for ⟨3, 2⟩; a Dynamic."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a draft grows.

    branches  the children of a node, for each level
    width     how many nodes of a level get children, the likeliest; None: all
    """

    branches: tuple[int, ...]
    width: int | None = None

    @property
    def sampled(self) -> tuple[int, ...]:
        """The branches where tokens are sampled: whether a node is there must not depend on its
        token, so a tree by confidence is a chain then."""
        return self.branches if self.width is None else (1,) * len(self.branches)

    @property
    def nodes(self) -> int:
        """Of a tree that no budget limits, Σ_j Π_{i≤j} k_i; of a dynamic one all that are tried."""
        if self.width is None:
            return sum(accumulate(self.branches, mul))
        return self.width + (len(self.branches) - 1) * self.width**2


def as_shape(shape: ShapeLike) -> Shape:
    """Raises: InputError for what is no shape, or one with more nodes than a draft may have."""
    if isinstance(shape, Dynamic):
        return Shape((shape.width,) * shape.depth, shape.width)
    if isinstance(shape, Sequence) and not isinstance(shape, (str, bytes)) and len(shape):
        for at, children in enumerate(shape):
            check_whole(children, f"shape[{at}]", 1, _MOST)
        made = Shape(tuple(shape))
    elif type(shape) is int:
        check_whole(shape, "shape", 1, _MOST)
        made = Shape((1,) * shape)
    else:
        raise InputError(
            f"shape is {shape!r}; expected the length of a chain, the children of each level such "
            "as (3, 2, 1), or a Dynamic"
        )
    if made.nodes > MAX_BUDGET or len(made.branches) > _MOST:
        raise InputError(
            f"shape {shape!r} has {made.nodes} nodes in {len(made.branches)} levels; expected at "
            f"most {MAX_BUDGET} in {_MOST}"
        )
    return made
