"""The adaptive policy in a simulated world: a noisy machine, and texts that copy or do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foresay.draft import DraftBatch, VerdictBatch
from foresay.engine.adaptive import Adaptive
from foresay.engine.budget import Fixed, Policy
from foresay.engine.calibration import DepthShares, ScoreCalibration
from foresay.engine.cost import StepCost
from foresay.engine.load import Chosen, Load, StepFacts

Array = NDArray[Any]

BASE = 0.027  # seconds of a step of one row

SHAPES: dict[str, Callable[[Any], Any]] = {
    "flat": lambda rows: 1 + 0.006 * (rows - 1),
    "linear": lambda rows: 1 + (rows - 1) / 8,
    "staircase": lambda rows: 1 + 0.35 * np.ceil(rows / 16 - 1),
}


@dataclass
class Machine:
    """Steps with slow phases (1.5 x for hundreds of steps), single outliers (3 x), and jitter."""

    shape: Callable[[Any], Any]
    rng: np.random.Generator
    slow: bool = False

    def true(self, rows: int, reads: int, keys: int, requests: int) -> float:
        return float(
            BASE * (self.shape(rows) + 2e-6 * reads + 5e-5 * keys + 0.01 * (requests - 1))
        )

    def timed(self, rows: int, reads: int, keys: int, requests: int) -> float:
        if self.rng.random() < 1 / 300:
            self.slow = not self.slow
        noise = np.exp(0.04 * self.rng.standard_normal()) * (1.5 if self.slow else 1.0)
        if self.rng.random() < 0.01:
            noise *= 3
        return self.true(rows, reads, keys, requests) * float(noise)

    def measured(self) -> StepCost:
        kinds = [(r, c) for r in (1, 2, 4, 8, 16, 17, 32, 64, 128) for c in (256, 1024)]
        return StepCost.measured(
            (r, r * c, self.timed(r, r * c, c, 1)) for _ in range(5) for r, c in kinds
        )


@dataclass
class Text:
    """Chains in which each token comes true with a chance given by the phase of the text."""

    copies: Callable[[int], bool]
    told: Callable[[Array], Array] = field(default=lambda chances: chances)
    scored: bool = True

    def draft(
        self, step: int, budgets: list[int], rng: np.random.Generator
    ) -> tuple[DraftBatch, Array]:
        """Chains, and how many of each chain's tokens will come true."""
        sizes = np.array(budgets, np.int32)
        if self.copies(step):
            first = rng.uniform(0.85, 0.97, len(sizes))
            real = first
        else:
            # A lookup always finds something; it is hardly ever right, and half of it knows that.
            sizes = np.where(rng.random(len(sizes)) < 0.3, 0, sizes).astype(np.int32)
            first = rng.uniform(0.02, 0.1, len(sizes))
            real = first
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        place = np.arange(offsets[-1], dtype=np.int32) - np.repeat(offsets[:-1], sizes)
        chances = np.repeat(first, sizes) ** (place + 1)
        scores = np.minimum(1, self.told(chances)).astype(np.float32) if self.scored else None
        lucky = np.floor(np.log(rng.random(len(sizes))) / np.log(real)).astype(int)
        tokens = np.zeros(len(place), np.int32)
        return DraftBatch._trusted(tokens, place - 1, offsets, scores), lucky


def speed(
    policy: Policy,
    text: Text,
    machine: Machine,
    batch: int,
    steps: int,
    *,
    draft_seconds: Callable[[list[int]], float] = lambda budgets: 1e-6 * sum(budgets) ** 0.5,
    context: int = 512,
    last: int = 0,
) -> float:
    """Tokens per second over those of the plain loop, by the machine's true times.

    With `last`, only the last so many steps count.
    """
    rng = np.random.default_rng(7)
    contexts = np.full(batch, context, np.int64)
    room = np.full(batch, 1 << 30, np.int64)
    load = Load(contexts, room)
    keys = batch * context
    tokens, seconds = 0, 0.0
    for step in range(steps):
        budgets = policy.budgets(load)
        chosen = Chosen.nothing(batch)
        drafting = 0.0
        lucky = np.zeros(batch, int)
        if any(budgets):
            drafting = draft_seconds(budgets)
            drafts, lucky = text.draft(step, budgets, rng)
            chosen = policy.choose(drafts, load)
        bounds = chosen.drafts.offsets
        wins = np.minimum(lucky, np.diff(bounds)).astype(np.int32)
        path_offsets = np.concatenate([[0], np.cumsum(wins)]).astype(np.int32)
        path = np.arange(path_offsets[-1], dtype=np.int32) - np.repeat(path_offsets[:-1], wins)
        offsets = path_offsets + np.arange(batch + 1, dtype=np.int32)
        verdicts = VerdictBatch._trusted(
            np.zeros(offsets[-1], np.int32), offsets, path, path_offsets
        )
        rows = batch + int(bounds[-1])
        kind = (rows, rows * context, keys, batch)
        facts = StepFacts.of(load, chosen, verdicts, machine.timed(*kind), drafting)
        policy.observe(facts)
        if step >= steps - (last or steps):
            tokens += facts.committed
            seconds += machine.true(*kind) + drafting
    return tokens / seconds / (batch / machine.true(batch, keys, keys, batch))


TEXTS = {
    "nothing": lambda step: False,
    "everything": lambda step: True,
    "switching": lambda step: step // 150 % 2 == 1,
}
LIES: dict[str, Callable[[Array], Array]] = {
    "honest": lambda p: p,
    "boasting": lambda p: np.minimum(3 * p, 0.999),
    "modest": lambda p: p / 3,
}
