"""Recorded answers that are made up: groups whose members repeat themselves and each other."""

from __future__ import annotations

import numpy as np

from foresay.bench.step_costs import CostPoint, StepTable
from foresay.traces import Trace


def groups(count: int = 4, members: int = 3, longest: int = 80, seed: int = 0) -> list[Trace]:
    """Answers of very different lengths, made of a few phrases for each group."""
    random = np.random.default_rng(seed)
    traces = []
    for group in range(count):
        phrases = random.integers(5, 60, size=(4, 5)).astype(np.int32)
        prompt = random.integers(5, 60, size=20).astype(np.int32)
        for member in range(members):
            size = max(1, int(longest * random.random() ** 3))
            words = phrases[random.integers(4, size=size // 5 + 1)].reshape(-1)[:size]
            noise = random.random(size) < 0.1
            output = np.where(noise, random.integers(5, 60, size=size), words).astype(np.int32)
            traces.append(Trace(f"{group}.{member}", f"g{group}", prompt, output))
    return traces


def table() -> StepTable:
    """Few rows cost little more than one; texts cost a little."""
    points = tuple(
        CostPoint(b, b * n, c, 0.01 + 0.0001 * b * n + 1e-7 * b * c * (1 + n / 8))
        for b in (1, 4, 16)
        for n in (1, 4, 16)
        for c in (32, 256)
    )
    return StepTable("made up", "a machine that is not there", "made up for a test", points)
