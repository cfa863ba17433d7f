"""The values that cross the boundary between a drafter and whatever verifies its guesses.

A `Draft` is a tree of guessed tokens, a `Verdict` says what became of it; a `DraftBatch` and a
`VerdictBatch` are many of them packed into flat arrays, and are sequences of their items. A plain
list of items is accepted wherever a batch is (`DraftBatch.of` is the identity on a batch).

Values are checked when constructed and then treated as immutable: arrays are kept without a copy
where possible, so do not write into them. `_trusted` skips the checks, for arrays made right by
construction. All of it holds the GIL, and knows nothing of drafters, models or engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np

from foresay import arrays
from foresay.arrays import Floats, FloatsLike, Int32s, IntsLike

__all__ = ["Draft", "DraftBatch", "Verdict", "VerdictBatch", "Wants"]

_NOTHING: Int32s = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Wants:
    """What a drafter asks to see in each verdict beyond the committed tokens.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """

    topk: int = 0
    """How many of the target's likeliest next tokens to report per node (Token Recycling)."""
    hidden: bool = False
    """Whether to report the target's last hidden state per committed token (EAGLE)."""


class Draft:
    """A tree of guesses hanging from the last committed token; a chain is a tree.

    tokens   int32[n]            the guessed token of each node
    parents  int32[n]            index of the parent node, -1 for the last committed token;
                                 parents come before children
    scores   float32[n] | None   estimated chance that the node will be committed, never larger
                                 than its parent's
    probs    float32[n, vocab] | None   the law each token was *drawn* from, given its parent and
                                 its earlier siblings; None: the tokens were *chosen* (looked up,
                                 top-k, pruned by score)

    Mutates: nothing. Valid until: for ever. Raises: TokenTypeError, InputError. GIL: held.
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
        arrays.check_tree(self.parents, np.zeros(len(self.tokens), np.int64), self.scores, probs)

    @classmethod
    def chain(
        cls,
        tokens: IntsLike,
        scores: FloatsLike | None = None,
        probs: Floats | None = None,
    ) -> Draft:
        """A draft without branches: each token hangs from the one before it.

        Mutates: nothing. Valid until: for ever. Raises: as the constructor. GIL: held.
        """
        return cls(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32), scores, probs)

    @classmethod
    def empty(cls) -> Draft:
        """The draft without a guess. Mutates: nothing. Valid until: for ever. Raises: nothing."""
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

    Mutates: nothing. Valid until: for ever; items share its arrays. Raises: TokenTypeError,
    InputError when constructed. GIL: held.
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
        starts = np.repeat(self.offsets[:-1].astype(np.int64), np.diff(self.offsets))
        arrays.check_tree(self.parents, starts, self.scores, probs)

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> DraftBatch:
        """`drafts` packed: the batch itself if it is one already.

        Mutates: nothing. Valid until: for ever. Raises: InputError if some drafts have scores (or
        probs) and others have not. GIL: held.
        """
        if isinstance(drafts, DraftBatch):
            return drafts
        drafts = arrays.all_of(Draft, drafts, "drafts")
        # An empty draft has neither scores nor a lack of them.
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


class Verdict:
    """What became of a draft.

    path    int32[a]       the accepted nodes of the draft, root to leaf
    tokens  int32[a + 1]   what was committed: the path's tokens, then one of the target's own
    topk    int32[n + 1, k] | None   the target's k likeliest tokens after the last committed token
                           (row 0) and after node i (row i + 1); -1 where a node was not verified
    hidden  [a + 1, d] | None        the target's hidden state at each committed token

    The tokens may outnumber the path by more than one only where a drafter hears of nodes that
    others proposed (`MergeDrafter`): the tokens are always all that was committed.

    Mutates: nothing. Valid until: for ever. Raises: TokenTypeError, InputError. GIL: held.
    """

    __slots__ = ("hidden", "path", "tokens", "topk")
    __hash__ = None  # type: ignore[assignment]

    path: Int32s
    tokens: Int32s
    topk: Int32s | None
    hidden: Any

    def __init__(
        self,
        path: IntsLike,
        tokens: IntsLike,
        topk: Int32s | None = None,
        hidden: Any = None,
    ) -> None:
        self.path = arrays.as_ints(path, "path")
        self.tokens = arrays.as_tokens(tokens)
        self.topk = topk
        self.hidden = hidden
        if topk is not None:
            arrays.check_table(topk, "topk", "int32", "nodes + 1", "k")
        arrays.check_path(
            self.path, arrays.offsets_of([len(self.path)]), arrays.offsets_of([len(self.tokens)])
        )

    @classmethod
    def _trusted(
        cls, path: Int32s, tokens: Int32s, topk: Int32s | None = None, hidden: Any = None
    ) -> Verdict:
        self = object.__new__(cls)
        self.path = path
        self.tokens = tokens
        self.topk = topk
        self.hidden = hidden
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Verdict) and arrays.same(self, other, Verdict.__slots__)

    def __repr__(self) -> str:
        return f"Verdict(path={arrays.short(self.path)}, tokens={arrays.short(self.tokens)})"


class VerdictBatch(Sequence[Verdict]):
    """B verdicts packed flat; the sequence of those verdicts.

    tokens  int32[T]   offsets int32[B + 1]: verdict i is tokens[offsets[i]:offsets[i + 1]]
    path    int32[A]   path_offsets int32[B + 1]: likewise; nodes count within each draft
    topk    int32[M, k] | None  with topk_offsets int32[B + 1]        hidden [T, d] | None

    Mutates: nothing. Valid until: for ever; items share its arrays. Raises: TokenTypeError,
    InputError when constructed. GIL: held.
    """

    __slots__ = ("hidden", "offsets", "path", "path_offsets", "tokens", "topk", "topk_offsets")
    __hash__ = None  # type: ignore[assignment]

    tokens: Int32s
    offsets: Int32s
    path: Int32s
    path_offsets: Int32s
    topk: Int32s | None
    topk_offsets: Int32s | None
    hidden: Any

    def __init__(
        self,
        tokens: IntsLike,
        offsets: IntsLike,
        path: IntsLike,
        path_offsets: IntsLike,
        topk: Int32s | None = None,
        topk_offsets: IntsLike | None = None,
        hidden: Any = None,
    ) -> None:
        self.tokens = arrays.as_tokens(tokens)
        self.offsets = arrays.as_offsets(offsets, len(self.tokens), "offsets")
        self.path = arrays.as_ints(path, "path")
        self.path_offsets = arrays.as_offsets(
            path_offsets, len(self.path), "path_offsets", self.offsets
        )
        self.topk = topk
        self.hidden = hidden
        self.topk_offsets = arrays.as_topk_offsets(topk, topk_offsets, self.offsets)
        arrays.check_path(self.path, self.path_offsets, self.offsets)

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> VerdictBatch:
        """`verdicts` packed: the batch itself if it is one already.

        Mutates: nothing. Valid until: for ever. Raises: InputError if some verdicts have top-k (or
        hidden states) and others have not. GIL: held.
        """
        if isinstance(verdicts, VerdictBatch):
            return verdicts
        verdicts = arrays.all_of(Verdict, verdicts, "verdicts")
        topk = arrays.joined_or_none([v.topk for v in verdicts], "topk")
        return cls._trusted(
            arrays.joined([v.tokens for v in verdicts]),
            arrays.offsets_of([len(v.tokens) for v in verdicts]),
            arrays.joined([v.path for v in verdicts]),
            arrays.offsets_of([len(v.path) for v in verdicts]),
            topk,
            None if topk is None else arrays.offsets_of([len(v.topk) for v in verdicts]),  # type: ignore[arg-type]
            arrays.joined_or_none([v.hidden for v in verdicts], "hidden"),
        )

    @classmethod
    def _trusted(
        cls,
        tokens: Int32s,
        offsets: Int32s,
        path: Int32s,
        path_offsets: Int32s,
        topk: Int32s | None = None,
        topk_offsets: Int32s | None = None,
        hidden: Any = None,
    ) -> VerdictBatch:
        self = object.__new__(cls)
        self.tokens = tokens
        self.offsets = offsets
        self.path = path
        self.path_offsets = path_offsets
        self.topk = topk
        self.topk_offsets = topk_offsets
        self.hidden = hidden
        return self

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Verdict: ...
    @overload
    def __getitem__(self, index: slice) -> VerdictBatch: ...
    def __getitem__(self, index: int | slice) -> Verdict | VerdictBatch:
        if isinstance(index, slice):
            return VerdictBatch.of([self[i] for i in range(len(self))[index]])
        i = arrays.item_index(index, len(self), "verdicts")
        own = slice(self.offsets[i], self.offsets[i + 1])
        topk = None
        if self.topk is not None and self.topk_offsets is not None:
            topk = self.topk[self.topk_offsets[i] : self.topk_offsets[i + 1]]
        return Verdict._trusted(
            self.path[self.path_offsets[i] : self.path_offsets[i + 1]],
            self.tokens[own],
            topk,
            None if self.hidden is None else self.hidden[own],
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerdictBatch) and arrays.same(self, other, VerdictBatch.__slots__)

    def __repr__(self) -> str:
        return f"VerdictBatch({len(self)} verdicts, {len(self.tokens)} tokens)"
