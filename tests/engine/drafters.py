"""Drafters that no user would want: they make every path of the engine happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from foresay import Draft, Verdict, Wants
from foresay.arrays import Int32s


class State:
    def __init__(self, prompt: Int32s) -> None:
        self.prompt: list[int] = prompt.tolist()
        self.observed: list[int] = []
        self.finished = False


class Scripted:
    """Knows the right answers by their prompts, and mixes wrong guesses among the right ones.

    wrong  the chance that a node of the right path is spoiled, and of a wrong sibling beside it
    """

    wants = Wants()

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        wrong: float = 0.3,
        vocabulary: int = 128,
        seed: int = 0,
    ) -> None:
        self.answers = answers
        self.wrong = wrong
        self.vocabulary = vocabulary
        self.random = np.random.default_rng(seed)
        self.states: list[State] = []

    def begin(
        self, prompt: Int32s, /, *, group: str | None = None, tenant: str | None = None
    ) -> State:
        self.states.append(State(prompt))
        return self.states[-1]

    def propose(self, states: Sequence[State], budgets: Sequence[int], /) -> list[Draft]:
        return [self._draft(state, budget) for state, budget in zip(states, budgets, strict=True)]

    def _draft(self, state: State, budget: int) -> Draft:
        answer = self.answers.get(tuple(state.prompt), ())
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for token in answer[len(state.observed) :]:
            if self.random.random() < self.wrong:  # a wrong sibling, before the right node
                tokens.append(int(self.random.integers(self.vocabulary)))
                parents.append(parent)
            tokens.append(int(token))
            parents.append(parent)
            parent = len(tokens) - 1
            if self.random.random() < self.wrong / 4:
                tokens[-1] = int(self.random.integers(self.vocabulary))
        return Draft(tokens[:budget], parents[:budget])

    def observe(self, states: Sequence[State], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            assert not state.finished
            state.observed += verdict.tokens.tolist()

    def finish(self, state: State, /) -> None:
        assert not state.finished
        state.finished = True
