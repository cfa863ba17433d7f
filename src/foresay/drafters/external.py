"""ExternalDrafter: drafts that come from outside, such as from edge clients.

    MergeDrafter(own, ExternalDrafter())    # beside a drafter, in one tree
    ExternalDrafter()                       # nothing else is drafted

The nodes of a draft are kept by place: the position, and the hash of the prefix there. So drafts
that continue earlier drafts join them, drafts for a text that did not come are never found, and one
that arrives late is used as far as its path agrees with what was committed meanwhile. A hash that
fits by chance makes a wrong draft, which costs time and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft
from foresay.drafter import (
    ExternalDraft,
    SeededParams,
    Source,
    as_asked,
    as_commits,
    as_prompt,
    as_states,
)
from foresay.verdict import Verdict, Wants

__all__ = ["MAX_EXTERNAL", "ExternalDrafter", "ExternalState", "hash_after"]

MAX_EXTERNAL = 1024
"""Nodes that are kept for one request; more are ignored."""

Place: TypeAlias = tuple[int, int]
"""A position, and the hash of the prefix there."""


def hash_after(tokens: IntsLike, before: int = 0) -> int:
    """CRC-32 of these tokens as little-endian int32, after a prefix whose hash is `before` (0: the
    empty one).

    Raises: TokenTypeError, InputError.
    """
    ids: Int32s = as_tokens(tokens)
    return zlib.crc32(ids.astype("<i4", copy=False).tobytes(), before)


def _after(place: Place, token: int) -> Place:
    return place[0] + 1, zlib.crc32(token.to_bytes(4, "little"), place[1])


class ExternalState:
    """One request: the nodes that may still come true. Only its drafter writes to it."""

    __slots__ = ("children", "drafted", "finished", "here", "owner", "size")

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.here: Place | None = None  # the end of the text; None before the first draft
        self.children: dict[Place, list[int]] = {}  # the tokens drafted at each place
        self.size = 0
        self.drafted = 0  # nodes of the last proposal
        self.finished = False

    def add(self, draft: ExternalDraft) -> int:
        """Keep the nodes that can still come true. Returns how many are new."""
        before, places = self.size, list[Place]()
        here = self.here
        assert here is not None
        for token, parent in zip(
            draft.draft.tokens.tolist(), draft.draft.parents.tolist(), strict=True
        ):
            place = (draft.base, draft.prefix) if parent < 0 else places[parent]
            places.append(_after(place, token))
            if place[0] < here[0] or (place[0] == here[0] and place != here):
                continue
            tokens = self.children.get(place, [])
            if token not in tokens and self.size < MAX_EXTERNAL:
                self.children[place] = [*tokens, token]
                self.size += 1
        return self.size - before

    def advance(self, tokens: Int32s) -> None:
        """The text grew; what it passed is forgotten."""
        here = self.here
        assert here is not None
        for token in tokens.tolist():
            self.size -= len(self.children.pop(here, []))
            here = _after(here, token)
        self.here = here
        for place in list(self.children):
            if place[0] < here[0] or (place[0] == here[0] and place != here):
                self._forget(place)

    def _forget(self, place: Place) -> None:
        """Drop the nodes at a place that did not come, and all that continue them: they would
        take the room of later drafts."""
        gone = [place]
        while gone:
            at = gone.pop()
            tokens = self.children.pop(at, [])
            self.size -= len(tokens)
            gone += [_after(at, token) for token in tokens]

    def tree(self, most: int) -> Draft:
        """The nodes that continue the text, level by level, at most `most`."""
        tokens, parents = list[int](), list[int]()
        level = [] if self.here is None else [(-1, self.here)]
        while level and len(tokens) < most:
            below = []
            for parent, place in level:
                for token in self.children.get(place, ())[: most - len(tokens)]:
                    below.append((len(tokens), _after(place, token)))
                    tokens.append(token)
                    parents.append(parent)
            level = below
        if not tokens:
            return Draft.empty()
        return Draft._trusted(np.array(tokens, np.int32), np.array(parents, np.int32))


class ExternalDrafter:
    """Proposes what came from outside (`add_external_draft`), without scores. It takes next to no
    time, and nothing where nothing came."""

    wants = Wants()
    external_drafts: Literal["only"] = "only"

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> ExternalState:
        """Start a request. Raises: TokenTypeError, InputError."""
        as_prompt(prompt)
        return ExternalState(self)

    def add_external_draft(
        self, state: ExternalState, text: IntsLike, draft: ExternalDraft, /
    ) -> int:
        """Keep a draft for this text, or for a later one. Returns how many nodes are new.

        Mutates: the state. Raises: StateError; with the first draft of a request also
        TokenTypeError, InputError for what is no text.
        """
        as_states([state], ExternalState, self)
        if state.here is None:
            state.here = len(text), hash_after(text)
        return state.add(draft)

    def has_external_draft(self, state: ExternalState, /) -> bool:
        """Whether a node continues the text. Raises: StateError."""
        as_states([state], ExternalState, self)
        return state.here in state.children

    def propose(self, states: Sequence[ExternalState], budgets: Sequence[int], /) -> list[Draft]:
        """The nodes that continue each text, level by level.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ.
        """
        drafts = []
        for state, budget in as_asked(states, budgets, ExternalState, self):
            drafts.append(state.tree(budget))
            state.drafted = len(drafts[-1])
        return drafts

    def observe(self, states: Sequence[ExternalState], verdicts: Sequence[Verdict], /) -> None:
        """Forget what did not come.

        Raises: StateError, InputError for a state that is there twice or lengths that differ;
        nothing has changed then.
        """
        for state, tokens in as_commits(states, verdicts, ExternalState, self):
            state.drafted = 0
            if state.here is not None:
                state.advance(tokens)

    def finish(self, state: ExternalState, /) -> None:
        """End a request. Raises: StateError."""
        as_states([state], ExternalState, self)
        state.finished, state.children = True, {}

    def sources(self, state: ExternalState, /) -> list[tuple[Source, ...]]:
        """`Source.EDGE` for each node of the last proposal. Raises: StateError."""
        as_states([state], ExternalState, self)
        return [(Source.EDGE,)] * state.drafted
