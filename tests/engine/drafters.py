"""Drafters that no user would want: they make every path of the engine happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from foresay import Draft, Verdict, Wants
from foresay.arrays import Floats, Int32s
from foresay.drafter import SeededParams
from foresay.sampling import law
from foresay.sampling.ask import Ask
from foresay.sampling.noise import gumbel


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
        self,
        prompt: Int32s,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
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


Near = Callable[[Sequence[int], int], Floats]
"""The row of logits after a text whose first so many tokens are the prompt, as a drafter knows it:
near the target's own."""


def near(next_logits: Callable[[Int32s, int], torch.Tensor], error: float) -> Near:
    """The target's logits, each off by a normal error of this size that depends on the text."""

    def rows(text: Sequence[int], prompt: int) -> Floats:
        row = next_logits(np.array(text, np.int32), prompt).float().numpy()
        noise = np.random.default_rng(list(text)).standard_normal(len(row))
        return (row + error * noise).astype(np.float32)

    return rows


class Writing(State):
    """A request whose parameters and seed are known."""

    def __init__(self, prompt: Int32s, sampling: SeededParams | None) -> None:
        super().__init__(prompt)
        assert sampling is not None, "the engine says by what tokens are chosen"
        self.sampling = sampling

    def ask(self) -> Ask:
        return Ask(self.sampling.params, self.sampling.seed, self.prompt, self.observed)


class Coupled:
    """Chooses as the target will, from a law that is a little wrong, with the request's own noise.

    foreign  added to the seed: another noise
    """

    wants = Wants()

    def __init__(self, rows: Near, foreign: int = 0) -> None:
        self.rows = rows
        self.foreign = foreign

    def begin(
        self,
        prompt: Int32s,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> Writing:
        return Writing(prompt, sampling)

    def propose(self, states: Sequence[Writing], budgets: Sequence[int], /) -> list[Draft]:
        return [self._chain(s, budget) for s, budget in zip(states, budgets, strict=True)]

    def _chain(self, state: Writing, budget: int) -> Draft:
        ask, path = state.ask(), list[int]()
        for _ in range(min(budget, ask.room - 1)):
            row = self.rows([*state.prompt, *state.observed, *path], len(state.prompt))
            scores = law.scores(row, ask, path).astype(np.float64)
            if not ask.params.greedy:
                at = ask.position + len(path)
                scores += gumbel(ask.seed + self.foreign, at, range(len(scores)))
            path.append(int(scores.argmax()))
        return Draft.chain(path)

    def observe(self, states: Sequence[Writing], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            state.observed += verdict.tokens.tolist()

    def finish(self, state: Writing, /) -> None:
        state.finished = True
