"""Prompt lookup: copy what followed the last few tokens the last (or first) time they occurred.

The known baseline, kept simple. It uses the request's own text only, so groups and tenants change
nothing, and it knows neither the core nor any other drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from foresay.arrays import Int32s, IntsLike
from foresay.draft import Draft, DraftBatch
from foresay.drafter import SeededParams, Source, as_asked, as_commits, as_prompt, as_states
from foresay.errors import InputError
from foresay.verdict import Verdict, Wants

__all__ = ["NgramDrafter", "NgramState"]


class NgramState:
    """One request's text, in a buffer that doubles.

    Mutates: only its drafter writes to it. Valid until: `finish`.
    """

    __slots__ = ("buffer", "drafted", "finished", "length", "owner")

    def __init__(self, owner: NgramDrafter, prompt: Int32s) -> None:
        self.owner = owner
        self.length = len(prompt)
        self.buffer = np.empty(max(64, 2 * self.length), np.int32)
        self.buffer[: self.length] = prompt
        self.drafted = 0  # nodes of the last proposal
        self.finished = False


class NgramDrafter:
    """Drafts a chain: what followed the longest repeated n-gram of `min_n` to `max_n` tokens.

    `occurrence` says which earlier place to copy from, "latest" or "first". With "first" the
    drafts are those of prompt lookup in transformers.

    Raises: InputError for sizes out of range.
    """

    wants = Wants()
    looks_up = True

    def __init__(
        self, min_n: int = 1, max_n: int = 3, occurrence: Literal["latest", "first"] = "latest"
    ) -> None:
        whole = type(min_n) is int and type(max_n) is int
        if not whole or not 1 <= min_n <= max_n:
            raise InputError(
                f"min_n is {min_n!r} and max_n is {max_n!r}; expected whole numbers with "
                "1 <= min_n <= max_n"
            )
        if not isinstance(occurrence, str) or occurrence not in ("latest", "first"):
            raise InputError(f"occurrence is {occurrence!r}; expected 'latest' or 'first'")
        self._min_n = min_n
        self._max_n = max_n
        self._pick = -1 if occurrence == "latest" else 0
        self._bytes = 0
        self._tokens = 0

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> NgramState:
        """Start a request. Group, tenant and sampling are accepted and change nothing.

        Valid until: `finish`. Raises: TokenTypeError, InputError for an empty prompt or a token out
        of range.
        """
        state = NgramState(self, as_prompt(prompt))
        self._bytes += state.buffer.nbytes
        self._tokens += state.length
        return state

    def propose(self, states: Sequence[NgramState], budgets: Sequence[int], /) -> DraftBatch:
        """A chain of at most the budget per state, in O(text) with a small constant.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ.
        """
        drafts = []
        for state, budget in as_asked(states, budgets, NgramState, self):
            drafts.append(self._chain(state, budget))
            state.drafted = len(drafts[-1])
        return DraftBatch.of(drafts)

    def observe(self, states: Sequence[NgramState], verdicts: Sequence[Verdict], /) -> None:
        """Append what was committed.

        Valid until: `finish`. Raises: StateError, InputError for a state that is there twice or
        lengths that differ; nothing has changed then.
        """
        for state, tokens in as_commits(states, verdicts, NgramState, self):
            self._append(state, tokens)

    def finish(self, state: NgramState, /) -> None:
        """End a request.

        Mutates: the state, which is dead afterwards. Raises: StateError if it was finished before
        or is no state of this drafter.
        """
        as_states([state], NgramState, self)
        self._bytes -= state.buffer.nbytes
        self._tokens -= state.length
        state.finished = True
        state.buffer = np.empty(0, np.int32)
        state.length = 0

    def sources(self, state: NgramState, /) -> list[tuple[Source, ...]]:
        """Own text, for each node of the state's last draft.

        Raises: StateError.
        """
        as_states([state], NgramState, self)
        return [(Source.OWN,)] * state.drafted

    def text(self, state: NgramState, /) -> Int32s:
        """Prompt and observed tokens, as the drafter holds them.

        Valid until: for ever, it is a copy. Raises: StateError.
        """
        as_states([state], NgramState, self)
        text: Int32s = state.buffer[: state.length].copy()
        return text

    def bytes_used(self) -> int:
        """Bytes held for all live requests."""
        return self._bytes

    def tokens_held(self) -> int:
        """Tokens held for all live requests."""
        return self._tokens

    def _chain(self, state: NgramState, budget: int) -> Draft:
        text = state.buffer[: state.length]
        last = state.length - 1
        # Earlier places of the last token; then those of them after the token before it, and so on:
        # each round is one comparison over the places that are left.
        places = (text[:last] == text[last]).nonzero()[0]
        matched = 1 if places.size else 0
        while 0 < matched < self._max_n:
            longer = places[places >= matched]
            longer = longer[text[longer - matched] == text[last - matched]]
            if not longer.size:
                break
            places = longer
            matched += 1
        if budget == 0 or matched < self._min_n:
            return Draft.empty()
        start = int(places[self._pick]) + 1
        tokens = text[start : start + budget].copy()
        return Draft._trusted(tokens, np.arange(-1, len(tokens) - 1, dtype=np.int32))

    def _append(self, state: NgramState, tokens: Int32s) -> None:
        length = state.length + len(tokens)
        if length > len(state.buffer):
            grown = np.empty(2 * length, np.int32)
            grown[: state.length] = state.buffer[: state.length]
            self._bytes += grown.nbytes - state.buffer.nbytes
            state.buffer = grown
        state.buffer[state.length : length] = tokens
        self._tokens += len(tokens)
        state.length = length
        state.drafted = 0
