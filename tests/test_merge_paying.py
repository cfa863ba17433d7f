"""Slow drafters of a merge are asked where that pays: simulated texts, drafters and seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from doubles import tokens
from foresay import Draft, Verdict, Wants
from foresay.budget.adaptive import Adaptive
from foresay.budget.asking import Asking
from foresay.budget.cost import StepCost
from foresay.budget.load import Load, StepFacts
from foresay.budget.policy import Fixed, Pricing
from foresay.draft import DraftBatch
from foresay.drafter import SeededParams
from foresay.drafters import MergeDrafter
from foresay.drafters import _paying as paying
from foresay.drafters._paying import Paying
from foresay.verdict import VerdictBatch

STEP = 0.02  # seconds of a step of one row
WRONG = 5000  # a token that no text has


@dataclass
class Clock:
    now: float = 0.0

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

    def share_asked(self, first: int = 0, last: int | None = None) -> float:
        """Of the proposals."""
        steps = self.asked[first:last]
        return sum(map(bool, steps)) / len(steps)

    def places(self, first: int = 0) -> list[int]:
        """What it was asked for."""
        return [place for step in self.asked[first:] for place, _ in step]


@dataclass
class Waited(Knowing):
    """The same in a process of its own: `ask` says what will be collected."""

    told: list[list[int]] = field(default_factory=list)

    def ask(self, states: Sequence[list[int]], budgets: Sequence[int], /) -> None:
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
    length: int = 2000,
    after: int = 0,
    batch: int = 1,
    policy: Any = None,
) -> float:
    """Tokens per second, over those without drafts, until texts are so long, from `after` on.

    Every text comes out as it is: what was drafted wrong is never accepted.
    """
    policy = policy_of() if policy is None else policy
    states = [drafter.begin(tokens(at)) for at in range(batch)]
    places = [0] * batch
    counted, since = 0, 0.0
    while min(places) < length:
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
        verdicts = VerdictBatch.of(
            [verdict(chosen.drafts[at], at, places[at]) for at in range(batch)]
        )
        for at, one in enumerate(verdicts):
            places[at] += len(one.tokens)
        drafter.observe(states, chosen.original_paths(verdicts))
        policy.observe(StepFacts.of(load, chosen, verdicts, seconds, drafting))
        counted += len(verdicts.tokens)
    return counted / (clock.now - since) * step_seconds(batch) / batch


def verdict(draft: Draft, request: int, place: int) -> Verdict:
    """The path of the true text, and the token behind it."""
    path: list[int] = []
    above = -1
    for node, (token, parent) in enumerate(
        zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True)
    ):
        if parent == above and token == token_at(request, place + len(path)):
            path.append(node)
            above = node
    return Verdict(path, [token_at(request, place + at) for at in range(len(path) + 1)])


def copies(place: int) -> float:
    """A text of which every other hundred of tokens is copied."""
    return 0.97 if place // 100 % 2 else 0.0


def always(chance: float) -> Callable[[int], float]:
    return lambda place: chance


def slowly(steps: float) -> Callable[[int], float]:
    return lambda at: steps * STEP


def pair(**slow: Any) -> tuple[Clock, Knowing, Knowing, MergeDrafter]:
    clock = Clock()
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    other = Knowing(clock, **slow)
    return clock, quick, other, MergeDrafter(quick, other, clock=clock)


def alone(knows: Callable[[int], float], depth: int, per_pass: Callable[[int], float]) -> float:
    clock = Clock()
    return speed(Knowing(clock, knows, depth, per_pass), clock)


SLOW: dict[str, tuple[float, float]] = {  # chance of a token, and steps that a level takes
    "useless": (0.0001, 0.1),
    "poor": (0.1, 0.1),
    "useful": (0.7, 0.1),
    "good": (0.85, 0.04),
    "as slow as the target": (0.9, 1.0),
    "doubtful": (0.5, 0.3),
}


@pytest.mark.parametrize("kind", SLOW)
def test_never_much_slower_than_the_best_of_them(kind: str) -> None:
    chance, steps = SLOW[kind]
    clock, _, _, both = pair(knows=always(chance), per_pass=slowly(steps))
    best = max(alone(copies, 12, slowly(0.0005)), alone(always(chance), 6, slowly(steps)))
    assert speed(both, clock) > 0.98 * best


def test_a_slow_drafter_that_is_of_no_use_is_soon_asked_rarely() -> None:
    clock, quick, slow, both = pair(knows=always(0.01), per_pass=slowly(0.1))
    speed(both, clock)
    assert slow.share_asked(200) < 0.1
    assert quick.share_asked() == 1.0
    assert {nodes for step in quick.asked[10:] for _, nodes in step} == {68}  # as without the other


def test_a_slow_drafter_is_asked_where_the_quick_one_is_unsure() -> None:
    clock, _, slow, both = pair(knows=always(0.7), per_pass=slowly(0.1))
    speed(both, clock)
    places = slow.places(50)
    unsure = [place for place in places if not copies(place)]
    assert slow.share_asked(50) > 0.6
    assert len(unsure) > 0.95 * len(places)


def test_together_they_are_faster_than_each() -> None:
    clock, _, _, both = pair(knows=always(0.7), per_pass=slowly(0.1))
    best = max(alone(copies, 12, slowly(0.0005)), alone(always(0.7), 6, slowly(0.1)))
    assert speed(both, clock) > 1.4 * best


def test_a_chain_is_asked_for_as_long_as_it_pays() -> None:
    clock, _, slow, both = pair(knows=always(0.5), per_pass=slowly(0.15))
    speed(both, clock)
    short = [nodes for step in slow.asked[50:] for _, nodes in step if nodes <= 2]
    assert len(short) > 0.8 * len(slow.places(50))


def test_a_drafter_that_becomes_useful_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(place: int) -> float:
        return 0.8 if place > 1000 else 0.01

    def share() -> float:
        clock, _, slow, both = pair(knows=late, per_pass=slowly(0.1))
        speed(both, clock, length=4000)
        return slow.share_asked(-200)

    assert share() > 0.6
    monkeypatch.setattr("foresay.drafters._members._SHARE", 0.0)  # the wrong variant: no trials
    assert share() == 0.0


@pytest.mark.parametrize("before", [0.0001, 0.04])
def test_a_drafter_that_becomes_slow_is_dropped(before: float) -> None:
    clock, _, slow, both = pair(
        knows=always(0.8), per_pass=lambda at: STEP * (before if at < 300 else 2.0)
    )
    speed(both, clock, length=4000)
    assert slow.share_asked(50, 300) > 0.6
    assert slow.share_asked(350) < 0.05


@pytest.mark.parametrize("steps", [0.02, 0.1, 0.5])
def test_trials_lose_less_than_one_percent(steps: float) -> None:
    clock, _, _, both = pair(knows=always(0.01), per_pass=slowly(steps))
    quick = Clock()
    best = speed(Knowing(quick, copies, 12, slowly(0.0005)), quick, length=6000, after=2000)
    assert speed(both, clock, length=6000, after=2000) > 0.99 * best


def test_of_several_requests_those_that_gain_by_it() -> None:
    clock, _, slow, both = pair(knows=always(0.7), per_pass=slowly(0.2))
    found = speed(both, clock, batch=4, length=1000)
    places = slow.places(50)
    assert sum(not copies(place) for place in places) > 0.95 * len(places)
    assert any(1 <= len(step) <= 3 for step in slow.asked[50:])
    one = Clock()
    quick = Knowing(one, copies, 12, slowly(0.0005))
    assert found > 1.1 * speed(quick, one, batch=4, length=1000)


def test_the_first_that_has_a_draft() -> None:
    def both_of(chance: float) -> tuple[float, Knowing]:
        clock = Clock()
        slow = Knowing(clock, always(chance), per_pass=slowly(0.1))
        quick = Knowing(clock, copies, 12, slowly(0.0005))
        return speed(MergeDrafter(quick, slow, rule="first", clock=clock), clock), slow

    best = alone(copies, 12, slowly(0.0005))
    useful, slow = both_of(0.7)
    assert useful > 1.4 * best
    assert all(not copies(place) for place in slow.places())
    useless, slow = both_of(0.01)
    assert useless > 0.98 * best
    assert slow.share_asked(200) < 0.1


@pytest.mark.parametrize(("chance", "often"), [(0.01, False), (0.7, True)])
def test_one_in_a_process_of_its_own(chance: float, often: bool) -> None:
    clock = Clock()
    slow = Waited(clock, always(chance), per_pass=slowly(0.1))
    quick = Knowing(clock, copies, 12, slowly(0.0005))
    speed(MergeDrafter(slow, quick, clock=clock), clock)
    assert [[n for _, n in step] for step in slow.asked] == [
        [n for n in told if n] for told in slow.told
    ]
    assert (slow.share_asked(200) > 0.5) == often


def test_of_two_that_know_the_same_one_is_asked() -> None:
    clock = Clock()
    one = Knowing(clock, always(0.7), per_pass=slowly(0.05))
    other = Knowing(clock, always(0.7), per_pass=slowly(0.1))
    speed(MergeDrafter(other, one, clock=clock), clock)
    assert one.share_asked(100) > 0.8
    assert other.share_asked(100) < 0.2


def test_without_a_price_all_are_asked() -> None:
    clock, quick, slow, both = pair(knows=always(0.01), per_pass=slowly(1.0))
    speed(both, clock, policy=Fixed(k=8), length=200)
    for drafter in (quick, slow):
        assert {nodes for step in drafter.asked for _, nodes in step} == {20}
        assert drafter.share_asked() == 1.0


def test_a_price_holds_for_one_step() -> None:
    _, _, slow, both = pair(knows=always(0.01), per_pass=slowly(1.0))
    state = both.begin(tokens(0))
    for _ in range(20):
        both.price(STEP, 0.0)
        both.propose([state], [8])
        both.observe([state], [Verdict([], [token_at(0, state.states[1][1])])])
    assert not slow.asked[-1]
    assert both.weighed_seconds() == 0.0
    both.propose([state], [8])
    assert slow.asked[-1]


def test_the_same_proposal_twice() -> None:
    _, _, slow, both = pair(knows=always(0.3), per_pass=slowly(0.1))
    states = [both.begin(tokens(at)) for at in range(3)]
    counts = set()
    for _ in range(150):
        both.price(0.6 * STEP, 0.02 * STEP)
        drafts = [both.propose(states, [8, 8, 0]) for _ in range(2)]
        assert list(drafts[0]) == list(drafts[1])
        assert slow.asked[-1] == slow.asked[-2]
        counts.add(len(slow.asked[-1]))
        verdicts = [verdict(drafts[0][at], at, states[at].states[1][1]) for at in range(3)]
        both.observe(states, verdicts)
    assert counts > {0, 1}


# The wrong variants fail, so that the tests above mean something.


def test_without_gains_a_useful_one_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    none = [0] * (paying.ALL + 1)
    learn = Paying.observe
    monkeypatch.setattr(
        Paying, "observe", lambda self, group, level, *found: learn(self, group, level, none, none)
    )
    clock, _, slow, both = pair(knows=always(0.7), per_pass=slowly(0.1))
    speed(both, clock)
    assert slow.share_asked(50) < 0.2


def test_if_always_asked_a_useless_one_would_cost_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paying, "timed", False)
    clock, _, _, both = pair(knows=always(0.01), per_pass=slowly(0.1))
    assert speed(both, clock) < 0.9 * alone(copies, 12, slowly(0.0005))


def test_if_the_whole_is_weighed_a_slow_one_would_silence_the_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chance, steps = SLOW["doubtful"]
    levels = property(lambda self: False, lambda self, whole: None)
    monkeypatch.setattr(Asking, "whole", levels, raising=False)
    clock, _, _, both = pair(knows=always(chance), per_pass=slowly(steps))
    assert speed(both, clock) < 0.96 * alone(copies, 12, slowly(0.0005))
