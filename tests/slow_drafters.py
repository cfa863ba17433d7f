"""Drafters that take simulated seconds, and the loop of a policy around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from doubles import tokens
from foresay import Draft, Verdict, Wants
from foresay.bench.replay import walk
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load, StepFacts
from foresay.budget.policy import Pricing
from foresay.draft import DraftBatch
from foresay.drafter import SeededParams
from foresay.drafters import MergeDrafter
from foresay.verdict import VerdictBatch

STEP = 0.02  # seconds of a step of one row
WRONG = 5000  # a token that no text has


@dataclass
class Clock:
    now: float = 0.0
    steps: int = 0  # that `speed` has begun

    def __call__(self) -> float:
        return self.now


def token_at(request: int, place: int) -> int:
    return (7 * place + 13 * request) % 1000


@dataclass
class Knowing:
    """Drafts chains of the true text, with a chance of `knows(place)` for each token; the texts of
    a batch are a hundred tokens ahead of each other.

    per_pass  seconds of each level of a draft; `at` is the number of the proposal
    """

    clock: Clock
    knows: Callable[[int], float]
    depth: int = 6
    per_pass: Callable[[int], float] = lambda at: 0.0
    wants: Wants = field(default_factory=Wants)
    asked: list[list[tuple[int, int]]] = field(default_factory=list)  # each step: place, nodes

    def begin(
        self,
        prompt: Any,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> list[int]:
        return [int(prompt[0]), 0]

    def propose(self, states: Sequence[list[int]], budgets: Sequence[int], /) -> list[Draft]:
        levels = min(self.depth, max(budgets, default=0))
        self.clock.now += levels * self.per_pass(len(self.asked))
        asked = [(100 * s[0] + s[1], n) for s, n in zip(states, budgets, strict=True) if n]
        self._pad(self.clock.steps - 1)
        self.asked.append(asked)
        return [
            self._draft(request, place, min(n, self.depth))
            for (request, place), n in zip(states, budgets, strict=True)
        ]

    def _draft(self, request: int, place: int, nodes: int) -> Draft:
        chance = self.knows(100 * request + place)
        if not nodes or not chance:
            return Draft.empty()
        luck = np.random.default_rng([request, place, self.depth]).random(nodes) < chance
        drafted = [token_at(request, place + i) if luck[i] else WRONG for i in range(nodes)]
        return Draft.chain(drafted, [chance ** (i + 1) for i in range(nodes)])

    def observe(self, states: Sequence[list[int]], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            state[1] += len(verdict.tokens)

    def finish(self, state: list[int], /) -> None: ...

    def _pad(self, steps: int) -> None:
        """In the others of so many steps it was not asked."""
        self.asked += [[]] * (steps - len(self.asked))

    def share_asked(self, first: int = 0, last: int | None = None) -> float:
        """Of the proposals."""
        self._pad(self.clock.steps)
        steps = self.asked[first:last]
        return sum(map(bool, steps)) / len(steps)

    def places(self, first: int = 0) -> list[int]:
        """What it was asked for."""
        return [place for step in self.asked[first:] for place, _ in step]


@dataclass
class Waited(Knowing):
    """The same in a process of its own: `start` says what will be collected."""

    told: list[list[int]] = field(default_factory=list)

    def start(self, states: Sequence[list[int]], budgets: Sequence[int], /) -> None:
        self.told.append(list(budgets))


def step_seconds(rows: float) -> float:
    return STEP * (1 + 0.03 * (rows - 1))


def policy_of() -> Adaptive:
    kinds = [(r, c) for r in (1, 2, 4, 8, 16, 32, 64) for c in (16, 32)]
    return Adaptive(StepCost.measured((r, r * c, step_seconds(r)) for r, c in kinds))


def speed(
    drafter: Any,
    clock: Clock,
    *,
    length: int = 1000,
    after: int = 0,
    batch: int = 1,
    policy: Any = None,
    showing: float = 0.0,
) -> float:
    """Tokens per second, over those without drafts, until texts are so long, from `after` on.

    showing  seconds of finding what the drafter wants to see, where it wants anything

    Every text comes out as it is: what was drafted wrong is never accepted.
    """
    policy = policy_of() if policy is None else policy
    states = [drafter.begin(tokens(at)) for at in range(batch)]
    places = [0] * batch
    counted, since = 0, 0.0
    while min(places) < length:
        clock.steps += 1
        if min(places) < after:
            counted, since = 0, clock.now
        load = Load(np.full(batch, 16), np.full(batch, 1 << 30), ids=np.arange(batch))
        began = clock.now
        budgets = policy.budgets(load)
        drafts = DraftBatch.of([Draft.empty()] * batch)
        if any(budgets):
            weighs = isinstance(policy, Pricing) and hasattr(drafter, "price")
            if weighs:
                drafter.price(*policy.price(load))
            drafts = DraftBatch.of(drafter.propose(states, budgets))
            if weighs:
                policy.spent(drafter.weighed_seconds())
        chosen = policy.choose(drafts, load)
        drafting = clock.now - began
        seconds = step_seconds(batch + len(chosen.drafts.tokens))
        clock.now += seconds
        if showing and drafter.wants_now() != Wants():
            clock.now += showing
            drafter.shown(showing)
        verdicts = VerdictBatch.of(
            [verdict(chosen.drafts[at], at, places[at]) for at in range(batch)]
        )
        for at, one in enumerate(verdicts):
            places[at] += len(one.tokens)
        verdicts = chosen.numbered(verdicts)
        drafter.observe(states, verdicts.copy())
        policy.observe(StepFacts.of(load, chosen, verdicts, seconds, drafting))
        counted += len(verdicts.tokens)
    return counted / (clock.now - since) * step_seconds(batch) / batch


def verdict(draft: Draft, request: int, place: int) -> Verdict:
    """The path of the true text, and the token behind it."""
    truth = [token_at(request, place + at) for at in range(len(draft) + 1)]
    path = walk(draft, truth)
    return Verdict(path, truth[: len(path) + 1])


def copies(place: int) -> float:
    """A text of which every other hundred of tokens is copied."""
    return 0.97 if place // 100 % 2 else 0.0


@cache
def always(chance: float) -> Callable[[int], float]:
    return lambda place: chance


@cache
def slowly(steps: float) -> Callable[[int], float]:
    return lambda at: steps * STEP


def pair(**slow: Any) -> tuple[Clock, Knowing, Knowing, MergeDrafter]:
    clock = Clock()
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    other = Knowing(clock, **slow)
    return clock, quick, other, MergeDrafter(quick, other, clock=clock)


@cache
def beside(chance: float, steps: float) -> tuple[float, Knowing, Knowing]:
    """The speed of a quick drafter and one that knows each token with that chance, and both of them
    afterwards."""
    clock, quick, other, both = pair(knows=always(chance), per_pass=slowly(steps))
    return speed(both, clock), quick, other


@cache
def alone(
    knows: Callable[[int], float], depth: int, per_pass: Callable[[int], float], **how: int
) -> float:
    """The speed of one drafter; it is the same in every test."""
    clock = Clock()
    return speed(Knowing(clock, knows, depth, per_pass), clock, **how)


SLOW: dict[str, tuple[float, float]] = {  # chance of a token, and steps that a level takes
    "useless": (0.0001, 0.1),
    "poor": (0.1, 0.1),
    "useful": (0.7, 0.1),
    "good": (0.85, 0.04),
    "as slow as the target": (0.9, 1.0),
    "doubtful": (0.5, 0.3),
}
