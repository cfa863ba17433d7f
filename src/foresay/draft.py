"""What a drafter proposes: draft trees. What was accepted of them is in `verdict`.

A `DraftBatch` is many drafts packed into flat arrays, and is the sequence of those drafts. A plain
list of items is accepted wherever a batch is (`DraftBatch.of` is the identity on a batch).

Values are checked when constructed and then treated as immutable: arrays are kept without a copy
where possible, so do not write into them. `_trusted` skips the checks, for arrays that are valid by
construction. This module knows nothing of drafters, models or engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from foresay import _core, arrays
from foresay.arrays import Floats, FloatsLike, Int32s, IntsLike

__all__ = ["Draft", "DraftBatch"]

N = TypeVar("N", bound=NDArray[Any])
_NOTHING: Int32s = np.empty(0, np.int32)


class Draft:
    """A draft tree below the last committed token; a chain is a tree.

    tokens   int32[n]            the drafted token of each node
    parents  int32[n]            index of the parent node, -1 for the last committed token;
                                 parents come before children
    scores   float32[n] | None   estimated probability that the node will be committed, never
                                 larger than its parent's
    probs    float32[n, vocab] | None   the distribution each token was *sampled* from, given its
                                 parent and its earlier siblings; None: the tokens were *chosen*
                                 (looked up, top-k, pruned by score). Rule `rejection` needs it

    Where tokens are sampled, the presence of a node may depend on tokens sampled before it, never
    on its own token. A drafter that stops because of a token it sampled must not sample with the
    same noise when it drafts that position again, because the next budget may depend on that token.

    Raises: TokenTypeError, InputError.
    """

    __slots__ = ("parents", "probs", "scores", "tokens")
    __hash__ = None  # type: ignore[assignment]

    tokens: Int32s
    parents: Int32s
    scores: Floats | None
    probs: Floats | None

    def __init__(
        self,
        tokens: IntsLike,
        parents: IntsLike,
        scores: FloatsLike | None = None,
        probs: Floats | None = None,
    ) -> None:
        self.tokens = arrays.as_tokens(tokens)
        self.parents = arrays.as_ints(parents, "parents")
        self.scores = None if scores is None else arrays.as_floats(scores, "scores")
        self.probs = probs
        _check(self.tokens, self.parents, arrays.offsets_of([len(self.tokens)]), self.scores, probs)

    @classmethod
    def chain(
        cls,
        tokens: IntsLike,
        scores: FloatsLike | None = None,
        probs: Floats | None = None,
    ) -> Draft:
        """A draft without branches: the parent of each token is the one before it.

        Raises: as the constructor.
        """
        return cls(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), scores, probs)

    @classmethod
    def empty(cls) -> Draft:
        """The draft without a token."""
        return cls._trusted(_NOTHING, _NOTHING)

    @classmethod
    def _trusted(
        cls,
        tokens: Int32s,
        parents: Int32s,
        scores: Floats | None = None,
        probs: Floats | None = None,
    ) -> Draft:
        self = object.__new__(cls)
        self.tokens = tokens
        self.parents = parents
        self.scores = scores
        self.probs = probs
        return self

    @property
    def depths(self) -> list[int]:
        """How deep each node hangs; a child of the last committed token has depth 1."""
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return depths

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Draft) and arrays.same(self, other, Draft.__slots__)

    def __repr__(self) -> str:
        return f"Draft(tokens={arrays.short(self.tokens)}, parents={arrays.short(self.parents)})"


class DraftBatch(Sequence[Draft]):
    """B drafts packed flat; the sequence of those drafts.

    tokens   int32[N]     offsets int32[B + 1]: draft i is tokens[offsets[i]:offsets[i + 1]]
    parents  int32[N]     counted within each draft, so that an item is a slice
    scores   float32[N] | None          probs float32[N, vocab] | None

    Valid until: for ever; items share its arrays. Raises: TokenTypeError, InputError when
    constructed.
    """

    __slots__ = ("offsets", "parents", "probs", "scores", "tokens")
    __hash__ = None  # type: ignore[assignment]

    tokens: Int32s
    parents: Int32s
    offsets: Int32s
    scores: Floats | None
    probs: Floats | None

    def __init__(
        self,
        tokens: IntsLike,
        parents: IntsLike,
        offsets: IntsLike,
        scores: FloatsLike | None = None,
        probs: Floats | None = None,
    ) -> None:
        self.tokens = arrays.as_tokens(tokens)
        self.parents = arrays.as_ints(parents, "parents")
        self.offsets = arrays.as_offsets(offsets, len(self.tokens), "offsets")
        self.scores = None if scores is None else arrays.as_floats(scores, "scores")
        self.probs = probs
        self.check()

    def check(self) -> None:
        """Refuse arrays that are no drafts any more: who made the batch may have written into them.

        Raises: InputError, TypeError for what is no array of its type.
        """
        _check(self.tokens, self.parents, self.offsets, self.scores, self.probs)

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> DraftBatch:
        """`drafts` packed: the batch itself if it is one already.

        Raises: InputError if some drafts have scores (or probs) and others have not.
        """
        if isinstance(drafts, DraftBatch):
            return drafts
        drafts = arrays.all_of(Draft, drafts, "drafts")
        # An empty draft fits drafts with scores and drafts without.
        full = [d for d in drafts if len(d)]
        return cls._trusted(
            arrays.joined([d.tokens for d in full]),
            arrays.joined([d.parents for d in full]),
            arrays.offsets_of([len(d) for d in drafts]),
            arrays.joined_or_none([d.scores for d in full], "scores"),
            arrays.joined_or_none([d.probs for d in full], "probs"),
        )

    @classmethod
    def _trusted(
        cls,
        tokens: Int32s,
        parents: Int32s,
        offsets: Int32s,
        scores: Floats | None = None,
        probs: Floats | None = None,
    ) -> DraftBatch:
        self = object.__new__(cls)
        self.tokens = tokens
        self.parents = parents
        self.offsets = offsets
        self.scores = scores
        self.probs = probs
        return self

    def without_probs(self) -> DraftBatch:
        """A copy without the probs: its tokens count as chosen."""
        return DraftBatch._trusted(
            self.tokens.copy(),
            self.parents.copy(),
            self.offsets.copy(),
            None if self.scores is None else self.scores.copy(),
        )

    @property
    def flat_parents(self) -> NDArray[np.int64]:
        """The flat index of each node's parent, int64[N + 1]; -1 for a root, and in the last place.

        So an array [N + 1] indexed by it has in its last place what stands above all roots.
        """
        n = len(self.tokens)
        parents = np.empty(n + 1, np.int64)
        parents[:n] = self.parents
        parents[n] = -1
        if len(self) > 1:
            parents[:n] += self.offsets[:-1].repeat(arrays.sizes_of(self.offsets))
            parents[:n][self.parents < 0] = -1
        return parents

    @property
    def depths(self) -> NDArray[np.int64]:
        """How deep each node hangs, int64[N]; a child of the last committed token has depth 1."""
        one = np.ones(len(self.tokens) + 1, np.int64)
        one[-1] = 0
        return self.along_paths(one, np.add)[:-1]

    @property
    def largest(self) -> int:
        """The nodes of the largest draft; no path is longer."""
        if len(self) == 1:
            return len(self.tokens)
        return max(arrays.sizes_of(self.offsets).tolist(), default=0)

    def along_paths(
        self, values: N, combine: np.ufunc, parents: NDArray[np.int64] | None = None
    ) -> N:
        """`values` [N + 1] combined over each node and its ancestors; the last one stands above all
        roots and must change nothing it is combined with.

        parents  `flat_parents`, where they are known already
        """
        if parents is None:
            parents = self.flat_parents
        # Every node looks at its ancestor twice as far up in each round.
        for left in range((self.largest - 1).bit_length() if self.largest else 0, 0, -1):
            values = combine(values, values[parents])
            if left > 1:
                parents = parents[parents]
        return values

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Draft: ...
    @overload
    def __getitem__(self, index: slice) -> DraftBatch: ...
    def __getitem__(self, index: int | slice) -> Draft | DraftBatch:
        if isinstance(index, slice):
            return DraftBatch.of([self[i] for i in range(len(self))[index]])
        i = arrays.item_index(index, len(self), "drafts")
        return self._between(int(self.offsets[i]), int(self.offsets[i + 1]))

    def __iter__(self) -> Iterator[Draft]:
        bounds = self.offsets.tolist()
        for start, end in pairwise(bounds):
            yield self._between(start, end)

    def _between(self, start: int, end: int) -> Draft:
        return Draft._trusted(
            self.tokens[start:end],
            self.parents[start:end],
            None if self.scores is None else self.scores[start:end],
            None if self.probs is None else self.probs[start:end],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DraftBatch) and arrays.same(self, other, DraftBatch.__slots__)

    def __repr__(self) -> str:
        return f"DraftBatch({len(self)} drafts, {len(self.tokens)} nodes)"


def _check(
    tokens: Int32s, parents: Int32s, offsets: Int32s, scores: Floats | None, probs: Floats | None
) -> None:
    _core.check_drafts(tokens, parents, offsets, scores)
    if probs is not None:
        arrays.check_table(probs, "probs", "float32", len(tokens), "vocabulary")
