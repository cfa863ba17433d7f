"""Drafters that no user would want: they make every path of the engine happen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from foresay import Draft, Verdict, Wants
from foresay.arrays import Floats, Int32s
from foresay.drafter import SeededParams
from foresay.sampling import processors
from foresay.sampling.noise import Stream, gumbel
from foresay.sampling.verification import VerificationInput


class State:
    def __init__(self, prompt: Int32s) -> None:
        self.prompt: list[int] = prompt.tolist()
        self.observed: list[int] = []
        self.finished = False


class Scripted:
    """Knows the right answers by their prompts, and mixes wrong tokens among the right ones.

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

    def begin(self, prompt: Int32s, /, **about: object) -> State:
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

    def ask(self) -> VerificationInput:
        return VerificationInput(
            self.sampling.params, self.sampling.seed, self.prompt, self.observed
        )


class Coupled:
    """Chooses as the target will, from slightly wrong logits, with the request's own noise.

    foreign  added to the seed: another noise
    """

    wants = Wants()

    def __init__(self, rows: Near, foreign: int = 0) -> None:
        self.rows = rows
        self.foreign = foreign

    def begin(
        self, prompt: Int32s, /, *, sampling: SeededParams | None = None, **about: object
    ) -> Writing:
        return Writing(prompt, sampling)

    def propose(self, states: Sequence[Writing], budgets: Sequence[int], /) -> list[Draft]:
        return [self._chain(s, budget) for s, budget in zip(states, budgets, strict=True)]

    def _chain(self, state: Writing, budget: int) -> Draft:
        ask, path = state.ask(), list[int]()
        for _ in range(min(budget, ask.room - 1)):
            row = self.rows([*state.prompt, *state.observed, *path], len(state.prompt))
            scores = processors.scores(row, ask, path).astype(np.float64)
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


class Recycling:
    """A tiny Token Recycling: drafts trees from the likeliest tokens after each token, as it saw
    them last, after whichever token they were verified; and notes all that it was told."""

    wants = Wants(topk=3)

    def __init__(self) -> None:
        self.after: dict[int, list[int]] = {}
        self.told: list[tuple[State, Draft, Verdict]] = []
        self.last: dict[int, Draft] = {}

    def begin(self, prompt: Int32s, /, **about: object) -> State:
        return State(prompt)

    def propose(self, states: Sequence[State], budgets: Sequence[int], /) -> list[Draft]:
        self.last = {
            id(s): self._tree(s, budget) for s, budget in zip(states, budgets, strict=True)
        }
        return [self.last[id(state)] for state in states]

    def _tree(self, state: State, budget: int) -> Draft:
        """Breadth first."""
        tokens, parents = list[int](), list[int]()
        for node in range(-1, budget):
            if node == len(tokens):
                break
            last = tokens[node] if node >= 0 else [*state.prompt, *state.observed][-1]
            for token in self.after.get(last, [])[: budget - len(tokens)]:
                tokens.append(token)
                parents.append(node)
        return Draft(tokens, parents)

    def observe(self, states: Sequence[State], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            draft = self.last.pop(id(state), Draft.empty())
            assert verdict.topk is not None and len(verdict.topk) == len(draft) + 1
            before = [[*state.prompt, *state.observed][-1], *draft.tokens.tolist()]
            for token, row in zip(before, verdict.topk.tokens.tolist(), strict=True):
                if row[0] >= 0:  # verified
                    self.after[token] = row
            past = State(np.array([*state.prompt, *state.observed], np.int32))
            self.told.append((past, draft, verdict))
            state.observed += verdict.tokens.tolist()

    def finish(self, state: State, /) -> None:
        state.finished = True


class Watching(Scripted):
    """Notes the hidden states of each request's committed tokens."""

    wants = Wants(hidden=True)

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], wrong: float) -> None:
        super().__init__(answers, wrong)
        self.hidden: dict[tuple[int, ...], list[Floats]] = {}

    def observe(self, states: Sequence[State], verdicts: Sequence[Verdict], /) -> None:
        super().observe(states, verdicts)
        for state, verdict in zip(states, verdicts, strict=True):
            assert verdict.hidden is not None and verdict.topk is None
            assert len(verdict.hidden) == len(verdict.tokens)
            self.hidden.setdefault(tuple(state.prompt), []).append(verdict.hidden)


class Drawing(Coupled):
    """Samples for rule rejection, with noise of its own, and gives `probs`: two tokens after
    the text, and another after the first of them, if that was likely. Scores are their chances.
    For rule match it is coupled.

    says  whether it gives `probs`; if not, its tokens count as not sampled
    """

    def __init__(self, rows: Near, says: bool = True) -> None:
        super().__init__(rows)
        self.says = says

    def _chain(self, state: Writing, budget: int) -> Draft:
        if state.sampling.params.rule == "match":
            chain = super()._chain(state, budget)
            return Draft.chain(chain.tokens, np.ones(len(chain), np.float32))
        ask = state.ask()
        tokens, parents, probs = list[int](), list[int](), list[Floats]()
        for sibling, parent in ((0, -1), (1, -1), (0, 0)):
            path = [tokens[0]] if parent == 0 else []
            if len(tokens) == budget or (path and probs[0][tokens[0]] < 0.3):
                break
            row = self.rows([*state.prompt, *state.observed, *path], len(state.prompt))
            q = processors.probabilities(processors.scores(row, ask, path), ask.params.greedy)
            with np.errstate(divide="ignore"):
                at, stream = ask.position + len(path), Stream.DRAFT + sibling
                tokens.append(
                    int((np.log(q) + gumbel(ask.seed, at, range(len(q)), stream)).argmax())
                )
            parents.append(parent)
            probs.append(q.astype(np.float32))
        scores = [float(q[token]) for q, token in zip(probs, tokens, strict=True)]
        scores = [s * (scores[p] if p >= 0 else 1) for s, p in zip(scores, parents, strict=True)]
        return Draft(tokens, parents, scores, np.stack(probs) if probs and self.says else None)
