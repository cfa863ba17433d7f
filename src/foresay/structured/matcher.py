"""A grammar over the tokens of a model, and the grammar at one place of one answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError
from foresay.structured.lead import Lead

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammar", "GrammarMatcher", "Words", "bytes_of"]

Words: TypeAlias = NDArray[np.int32]
"""A mask of tokens: bit t % 32 of word t // 32 is set where token t is allowed."""


class Grammar:
    """One form of answers over the tokens of one model. It can be shared by threads.

    begin       makes the library's matcher at the beginning of an answer
    vocabulary  columns of the model's logits
    words       of a mask: one bit for each of them
    known       token ids of the tokenizer
    ends        those that end answers of the model
    """

    def __init__(
        self,
        tokenizer: LLTokenizer,
        begin: Callable[[], LLMatcher],
        vocabulary: int,
        ends: tuple[int, ...],
        lead: Lead | None,
    ) -> None:
        self._tokenizer, self._begin, self._start = tokenizer, begin, begin()
        self.vocabulary, self.words = vocabulary, -(-vocabulary // 32)
        self.known, self.ends = tokenizer.vocab_size, ends
        self.lead = lead
        self._barred: dict[bytes, list[int]] = {}

    def matcher(self, stops: Sequence[int] = ()) -> GrammarMatcher:
        """At the beginning of an answer that these token ids end; each answer has its own."""
        return GrammarMatcher(self, self.beginning(), stops)

    def beginning(self) -> LLMatcher:
        """The library's matcher at the beginning of an answer."""
        return self._start.deep_copy()

    def renew(self) -> LLMatcher:
        """The library's matcher at the beginning of an answer, which shares nothing with others.

        The states of a lexer are kept for later answers with its grammar, which are faster for it.
        They are limited, so in the end they have to be forgotten.
        """
        self._start = self._begin()
        return self.beginning()

    def bytes_of(self, token: int) -> bytes:
        """What a token writes."""
        return bytes_of(self._tokenizer, token)

    def pieces(self, text: bytes) -> list[int]:
        """Some tokens that write these bytes: for a grammar it does not matter which."""
        return self._tokenizer.tokenize_bytes(text)

    def barred(self, tail: bytes, matcher: GrammarMatcher) -> list[int]:
        """Before the form: the tokens that would end what comes before it, and go on as it cannot
        begin. `matcher` has not begun the form."""
        known = self._barred.get(tail)
        if known is None:
            assert self.lead is not None
            known = []
            for token in self.lead.ending(tail):
                rest = self.lead.after(tail, self.bytes_of(token))[1]
                if rest and not matcher.allows_rest(self.pieces(rest)):
                    known.append(token)
            self._barred[tail] = known
        return known


class GrammarMatcher:
    """Follows one answer through its grammar, token by token. `Grammar.matcher` makes one.

    stops  the token ids that end the answer: allowed exactly where the grammar accepts. The ends of
           the tokenizer that are none of them are never allowed

    The end of an answer is no token of the grammar: it is not told to the matcher.

    Raises: InputError where the grammar takes more work at this place
    than its limits allow; it stays at that place, and can be rolled back.
    """

    def __init__(self, grammar: Grammar, inner: LLMatcher, stops: Sequence[int]) -> None:
        self.grammar = grammar
        self.stops = frozenset(stops)
        self._inner = inner
        # The library remembers its last mask, and takes it for that of another place with as many
        # rows before it, where a rollback has brought others. Behind such a rollback masks are
        # made by a copy of this one, which is never rolled back.
        self._kept, self._kept_at = inner.deep_copy(), 0  # so many of the told tokens
        self._masked_at, self._stale = 0, False
        self.renewed = False
        """Whether the library's matcher had to be begun anew: then drafts are left out, which take
        work that the plain loop does not take."""
        # What it remembers of the text before the form; None once that has begun.
        self._tail: bytes | None = None if grammar.lead is None else b""
        # Of each token: the tail before it, and the tokens that the library was given for it.
        self._told: list[tuple[bytes | None, list[int]]] = []
        self._no_ends = ~_bits(grammar.ends, grammar.words)
        self._stops = _bits(stops, grammar.words)

    def __len__(self) -> int:
        """Tokens that it was told and that were not rolled back."""
        return len(self._told)

    @property
    def free(self) -> bool:
        """Whether the form has not begun: `StructuredOutputs.after` is still to come."""
        return self._tail is not None

    @property
    def accepts(self) -> bool:
        """Whether the answer may end here."""
        return not self.free and self._inner.is_accepting()

    @property
    def complete(self) -> bool:
        """Whether the answer has to end here: no token can be added to it."""
        return not self.free and self._inner.is_stopped() and self._inner.is_accepting()

    def advance(self, token: int) -> bool:
        """Go behind a token; whether the grammar allows its text. Where not, nothing has changed.
        The mask may still forbid the token: where one text has to come, only the tokenizer's own
        tokens for it are allowed.
        """
        known = 0 <= token < self.grammar.known
        if self._tail is None:
            if not known or token in self.grammar.ends or not self._take([token]):
                return False
            self._told.append((None, [token]))
            return True
        lead = self.grammar.lead
        assert lead is not None
        # Before the form a model may give tokens that the tokenizer has not: they write nothing.
        tail, rest = lead.after(self._tail, self.grammar.bytes_of(token) if known else b"")
        pieces = self.grammar.pieces(rest) if rest else []
        if not self._take(pieces):
            return False
        self._told.append((self._tail, pieces))
        self._tail = tail if rest is None else None
        return True

    def follow(self, tokens: list[int]) -> bool:
        """`advance` over all of these tokens or none; sooner than one by one."""
        known, ends = self.grammar.known, self.grammar.ends
        plain = all(0 <= token < known and token not in ends for token in tokens)
        if plain and self._tail is None:
            if not self._take(tokens):
                return False
            self._told += [(None, [token]) for token in tokens]
            return True
        begin = len(self)
        try:
            if all(map(self.advance, tokens)):
                return True
        except InputError:
            self.rollback(len(self) - begin)
            raise
        self.rollback(len(self) - begin)
        return False

    def rollback(self, tokens: int) -> None:
        """Go back to where it was before the last `tokens`.

        Raises: InputError for more than it was told.
        """
        if not 0 <= tokens <= len(self._told):
            raise InputError(f"tokens is {tokens}; expected 0 to {len(self._told)}")
        if tokens:
            undone = self._told[-tokens:]
            del self._told[-tokens:]
            self._tail = undone[0][0]
            self._inner.rollback(sum(len(told) for _, told in undone))
            if self._inner.is_error():
                self._renew()
            self._stale |= len(self._told) < self._masked_at
            if len(self._told) < self._kept_at:
                self._kept, self._kept_at = self.grammar.beginning(), 0

    def settle(self) -> None:
        """What it was told so far will not be rolled back: later masks are made sooner."""
        if not self._stale:  # as without drafts: no mask will need it
            return
        kept, told = self._kept.deep_copy(), self._pieces(self._kept_at)
        if kept.try_consume_tokens(told) == len(told):
            self._kept, self._kept_at = kept, len(self._told)

    def fill_mask(self, row: Words) -> None:
        """Write into a caller's row, int32[words], which tokens may come next. Where the answer is
        complete these are its ends alone, and none where it has none.
        """
        if self._tail is not None:
            row[:] = -1
            barred = self.grammar.barred(self._tail, self)
            if len(barred):
                row &= ~_bits(barred, len(row))
            return
        if self._stale:
            self._unroll()
        mask = self._inner.compute_bitmask()
        self._masked_at = len(self._told)
        if self._inner.is_error():
            self._renew()
            mask = self._inner.compute_bitmask()
            if self._inner.is_error():
                raise self._error()
        given = np.frombuffer(mask, np.int32)
        known = min(len(given), len(row))  # a model may have more columns than tokens, or fewer
        row[known:] = 0
        np.bitwise_and(given[:known], self._no_ends[:known], out=row[:known])
        if self._inner.is_accepting():
            row |= self._stops

    def forced(self) -> list[int]:
        """The tokens of the text that has to come next, if the grammar leaves one text to write, as
        the tokenizer would write it. Those at its end that another text behind it could change are
        not among them."""
        if self._tail is not None or self._inner.is_stopped():
            return []
        return self._inner.compute_ff_tokens()

    def allows_rest(self, pieces: list[int]) -> bool:
        """Whether a form could begin with these tokens; only before it has begun."""
        return self._inner.validate_tokens(pieces) == len(pieces)

    def _take(self, tokens: list[int]) -> bool:
        """Tell the library all of these tokens or none."""
        if not tokens:
            return True
        taken = self._inner.try_consume_tokens(tokens)
        if taken < len(tokens):
            self._inner.rollback(taken)
            self._inner.compute_bitmask()  # here the library says whether it is a limit that ends
            self._masked_at = len(self._told)
            if self._inner.is_error():
                self._renew()
                taken = self._consume_with_masks(tokens)
                self._masked_at = len(self._told) + len(tokens)  # at the most
                if self._inner.is_error():
                    error = self._error()
                    self._renew()  # the place before these tokens is as good as it was
                    raise error
                if taken < len(tokens):
                    self._inner.rollback(taken)
                    self._stale = True
        return taken == len(tokens)

    def _pieces(self, begin: int = 0) -> list[int]:
        """What the library was told, from this token on."""
        return [piece for _, pieces in self._told[begin:] for piece in pieces]

    def _unroll(self) -> None:
        """The same place in a copy that was not rolled back."""
        inner, told = self._kept.deep_copy(), self._pieces(self._kept_at)
        if inner.try_consume_tokens(told) < len(told):
            self._renew()
            return
        self._inner, self._stale = inner, False

    def _renew(self) -> None:
        """Follow the answer anew with a lexer of its own: the one that all answers with this
        grammar share has used up its limits.

        Raises: InputError where that takes too much work as well.
        """
        self.renewed = True
        told = self._pieces()
        self._inner = self.grammar.renew()
        if self._consume_with_masks(told) < len(told):
            raise self._error()
        self._kept, self._kept_at = self._inner.deep_copy(), len(self._told)
        self._masked_at, self._stale = len(self._told), False

    def _consume_with_masks(self, tokens: list[int]) -> int:
        """Tell the library tokens as the plain loop does, with a mask before each: the work of a
        step is counted from mask to mask. Returns how many it took; where it ends in an error, that
        is seen by `is_error`."""
        for count, token in enumerate(tokens):
            self._inner.compute_bitmask()
            if self._inner.is_error():
                return count
            if not self._inner.try_consume_tokens([token]):
                self._inner.compute_bitmask()
                return count
        return len(tokens)

    def _error(self) -> InputError:
        said = (self._inner.get_error() or "it does not take its own text").strip().split("\n")[0]
        return InputError(f"the grammar of the answer cannot be followed further: {said}")


def bytes_of(tokenizer: LLTokenizer, token: int) -> bytes:
    # The library marks a special token with a byte that no text has.
    return tokenizer.decode_bytes([token]).lstrip(b"\xff")


def _bits(tokens: Sequence[int], words: int) -> Words:
    """The mask of these tokens; those beyond it are left out."""
    mask = np.zeros(words * 32, np.uint8)
    mask[[token for token in tokens if token < len(mask)]] = 1
    packed: Words = np.packbits(mask, bitorder="little").view(np.int32)
    return packed
