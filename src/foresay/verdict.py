"""What was accepted of drafts and committed, and what else a drafter wants to see.

A `VerdictBatch` is many verdicts packed into flat arrays, and is the sequence of those verdicts; a
plain list is accepted wherever a batch is. Values are checked when constructed and then treated as
immutable, as in `draft`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from foresay import arrays
from foresay.arrays import Floats, Int32s, IntsLike
from foresay.errors import InputError, TokenTypeError

__all__ = ["TopK", "Verdict", "VerdictBatch", "Wants"]


@dataclass(frozen=True, slots=True)
class Wants:
    """What a drafter wants to see in each verdict beyond the committed tokens. The target computes
    it only if a drafter wants it.

    Raises: InputError when constructed.
    """

    topk: int = 0
    """How many of the target's likeliest next tokens to report, after the last committed token and
    after every node that was verified, accepted or not (Token Recycling)."""
    hidden: bool = False
    """Whether to report, for each committed token, the target's last hidden state that it was
    predicted from (EAGLE)."""
    hidden_layers: tuple[int, ...] = ()
    """With `hidden`: report what goes into these decoder layers, side by side, in place of the last
    hidden state (EAGLE-3). Not every target can."""

    def __post_init__(self) -> None:
        if type(self.topk) is not int or not 0 <= self.topk <= arrays.MAX_TOKEN:
            raise InputError(f"topk is {self.topk!r}; expected a whole number from 0")
        arrays.check_flag(self.hidden, "hidden")
        layers = self.hidden_layers
        if not isinstance(layers, tuple) or any(type(n) is not int or n < 0 for n in layers):
            raise InputError(f"hidden_layers is {layers!r}; expected a tuple of numbers of layers")
        if layers and not self.hidden:
            raise InputError(f"hidden_layers is {layers}, but hidden is False; expected True")


class TopK:
    """The target's k likeliest next tokens in each of m rows, the likeliest first; of equal ones
    the one with the smaller id.

    tokens    int32[m, k]     -1 in all of a row that was not verified, or that has invalid logits
    logprobs  float32[m, k]   log probabilities under the target's raw distribution, -inf beside -1

    The raw distribution is the softmax of the model's own logits, before bias, penalties,
    temperature and limits. It is the same for every request, so what is learned from one serves
    another, and it ranks tokens where the processed one has only one left (greedy).

    Raises: TokenTypeError, InputError.
    """

    __slots__ = ("logprobs", "tokens")
    __hash__ = None  # type: ignore[assignment]

    tokens: Int32s
    logprobs: Floats

    def __init__(self, tokens: Int32s, logprobs: Floats) -> None:
        arrays.check_table(tokens, "tokens", "int32", "rows", "k")
        arrays.check_table(logprobs, "logprobs", "float32", len(tokens), "k")
        if tokens.shape != logprobs.shape:
            raise InputError(
                f"tokens have shape {tokens.shape} and logprobs {logprobs.shape}; expected the same"
            )
        if tokens.size and tokens.min() < -1:
            raise InputError(f"a token is {tokens.min()}; expected a token id, or -1 for none")
        self.tokens = tokens
        self.logprobs = logprobs

    @classmethod
    def _trusted(cls, tokens: Int32s, logprobs: Floats) -> TopK:
        self = object.__new__(cls)
        self.tokens = tokens
        self.logprobs = logprobs
        return self

    @property
    def k(self) -> int:
        return int(self.tokens.shape[1])

    def take(self, rows: NDArray[np.integer]) -> TopK:
        """These rows, in this order; -1 is a row that was not verified."""
        tokens, logprobs = self.tokens[rows], self.logprobs[rows]
        tokens[rows < 0], logprobs[rows < 0] = -1, -np.inf
        return TopK._trusted(tokens, logprobs)

    def first(self, k: int) -> TopK:
        """The first k of each row."""
        if k >= self.k:
            return self
        return TopK._trusted(self.tokens[:, :k], self.logprobs[:, :k])

    def __getitem__(self, rows: slice) -> TopK:
        return TopK._trusted(self.tokens[rows], self.logprobs[rows])

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopK) and arrays.same(self, other, TopK.__slots__)

    def __repr__(self) -> str:
        return f"TopK({len(self)} rows of {self.k})"


class Verdict:
    """What was accepted of a draft, and what was committed.

    path    int32[a]       the accepted nodes of the draft, root to leaf
    tokens  int32[a + 1]   the committed tokens: the path's, then one more of the target
    topk    TopK of n + 1 rows | None   the target's likeliest tokens after the last committed
                           token (row 0) and after node i (row i + 1) of the drafter's own draft
    hidden  float32[a + 1, width] | None   for each committed token the target's last hidden state
                           that it was predicted from: after the last token, then after each
                           accepted node

    There may be more than one token more than nodes only where another drafter proposed some of
    the accepted nodes (`MergeDrafter`): the tokens are always all that were committed.

    Raises: TokenTypeError, InputError.
    """

    __slots__ = ("hidden", "path", "tokens", "topk")
    __hash__ = None  # type: ignore[assignment]

    path: Int32s
    tokens: Int32s
    topk: TopK | None
    hidden: Floats | None

    def __init__(
        self,
        path: IntsLike,
        tokens: IntsLike,
        topk: TopK | None = None,
        hidden: Floats | None = None,
    ) -> None:
        self.path = arrays.as_ints(path, "path")
        self.tokens = arrays.as_tokens(tokens)
        self.topk = topk
        self.hidden = hidden
        _check_seen(topk, hidden, len(self.tokens))
        arrays.check_path(
            self.path, arrays.offsets_of([len(self.path)]), arrays.offsets_of([len(self.tokens)])
        )

    @classmethod
    def _trusted(
        cls, path: Int32s, tokens: Int32s, topk: TopK | None = None, hidden: Floats | None = None
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
    topk    TopK of M rows | None, with topk_offsets int32[B + 1]
    hidden  float32[T, width] | None

    Valid until: for ever; items share its arrays. Raises: TokenTypeError, InputError when
    constructed.
    """

    __slots__ = ("hidden", "offsets", "path", "path_offsets", "tokens", "topk", "topk_offsets")
    __hash__ = None  # type: ignore[assignment]

    tokens: Int32s
    offsets: Int32s
    path: Int32s
    path_offsets: Int32s
    topk: TopK | None
    topk_offsets: Int32s | None
    hidden: Floats | None

    def __init__(
        self,
        tokens: IntsLike,
        offsets: IntsLike,
        path: IntsLike,
        path_offsets: IntsLike,
        topk: TopK | None = None,
        topk_offsets: IntsLike | None = None,
        hidden: Floats | None = None,
    ) -> None:
        self.tokens = arrays.as_tokens(tokens)
        self.offsets = arrays.as_offsets(offsets, len(self.tokens), "offsets")
        self.path = arrays.as_ints(path, "path")
        self.path_offsets = arrays.as_offsets(
            path_offsets, len(self.path), "path_offsets", self.offsets
        )
        self.topk = topk
        self.hidden = hidden
        self.topk_offsets = _as_topk_offsets(topk, topk_offsets, self.offsets)
        _check_seen(topk, hidden, len(self.tokens))
        arrays.check_path(self.path, self.path_offsets, self.offsets)

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> VerdictBatch:
        """`verdicts` packed: the batch itself if it is one already.

        Raises: InputError if some verdicts have top-k (or hidden states) and others have not.
        """
        if isinstance(verdicts, VerdictBatch):
            return verdicts
        verdicts = arrays.all_of(Verdict, verdicts, "verdicts")
        found = [v.topk for v in verdicts]
        tokens, logprobs = (
            arrays.joined_or_none([None if t is None else getattr(t, name) for t in found], "topk")
            for name in ("tokens", "logprobs")
        )
        topk = None if tokens is None or logprobs is None else TopK(tokens, logprobs)
        return cls._trusted(
            arrays.joined([v.tokens for v in verdicts]),
            arrays.offsets_of([len(v.tokens) for v in verdicts]),
            arrays.joined([v.path for v in verdicts]),
            arrays.offsets_of([len(v.path) for v in verdicts]),
            topk,
            None if topk is None else arrays.offsets_of([len(t) for t in found if t is not None]),
            arrays.joined_or_none([v.hidden for v in verdicts], "hidden"),
        )

    @classmethod
    def _trusted(
        cls,
        tokens: Int32s,
        offsets: Int32s,
        path: Int32s,
        path_offsets: Int32s,
        topk: TopK | None = None,
        topk_offsets: Int32s | None = None,
        hidden: Floats | None = None,
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

    def copy(self) -> VerdictBatch:
        """The same, with arrays of its own."""
        seen = self.topk
        return VerdictBatch._trusted(
            self.tokens.copy(),
            self.offsets.copy(),
            self.path.copy(),
            self.path_offsets.copy(),
            None if seen is None else TopK._trusted(seen.tokens.copy(), seen.logprobs.copy()),
            None if self.topk_offsets is None else self.topk_offsets.copy(),
            None if self.hidden is None else self.hidden.copy(),
        )

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


def _check_seen(topk: object, hidden: object, tokens: int) -> None:
    if topk is not None and not isinstance(topk, TopK):
        raise TokenTypeError(f"topk is a {type(topk).__name__}; expected a TopK, or None")
    if hidden is not None:
        arrays.check_table(hidden, "hidden", "float32", tokens, "width")


def _as_topk_offsets(topk: TopK | None, values: IntsLike | None, first: Int32s) -> Int32s | None:
    if (topk is None) != (values is None):
        raise InputError("topk and topk_offsets are given together or not at all")
    if topk is None or values is None:
        return None
    return arrays.as_offsets(values, len(topk), "topk_offsets", first)
