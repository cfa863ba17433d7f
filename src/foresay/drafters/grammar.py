"""No drafts but those that every drafter's get: the text that the form of an answer forces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foresay.arrays import Int32s, IntsLike
from foresay.draft import Draft, DraftBatch
from foresay.drafter import SeededParams, Source, as_asked, as_commits, as_prompt, as_states
from foresay.verdict import Verdict, Wants

__all__ = ["GrammarDrafter"]


class GrammarDrafter:
    """Drafts nothing by itself. The engine completes every drafter's drafts by what the form of an
    answer forces (`SamplingParams.structured_outputs`): with this one, that is all there is.
    """

    wants = Wants()
    looks_up = True

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> _Text:
        """Keep the text, to be able to show it. Raises: as the protocol."""
        return _Text(self, [as_prompt(prompt).copy()])

    def propose(self, states: Sequence[_Text], budgets: Sequence[int], /) -> DraftBatch:
        """Empty drafts. Raises: as the protocol."""
        return DraftBatch.of([Draft.empty() for _ in as_asked(states, budgets, _Text, self)])

    def observe(self, states: Sequence[_Text], verdicts: Sequence[Verdict], /) -> None:
        """Raises: as the protocol."""
        for state, tokens in as_commits(states, verdicts, _Text, self):
            state.parts.append(tokens.copy())

    def finish(self, state: _Text, /) -> None:
        """Raises: as the protocol."""
        as_states([state], _Text, self)
        state.finished = True

    def sources(self, state: _Text, /) -> list[tuple[Source, ...]]:
        """Of no node. Raises: StateError."""
        as_states([state], _Text, self)
        return []

    def text(self, state: _Text, /) -> Int32s:
        """Raises: StateError."""
        as_states([state], _Text, self)
        return np.concatenate(state.parts)


@dataclass(slots=True, eq=False)
class _Text:
    owner: GrammarDrafter
    parts: list[Int32s]
    finished: bool = False
