"""Where a device computes a step meanwhile, the drafter is told what the step before has committed:
as late as that, and never later than it is asked for anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from foresay import SamplingParams
from foresay.drafters import SuffixDrafter
from foresay.engine.compute import forward_and_verify
from foresay.engine.engine import Engine
from foresay.engine.measure import _known
from foresay.engine.step import Outcome, Step, Timings
from foresay.models.target import Target
from foresay.verdict import VerdictBatch, Wants
from models.targets import zoo_target

PROMPT = np.tile(np.arange(3, 12), 4).astype(np.int32)


class Watched(SuffixDrafter):
    """It notes what it is told and asked, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []
        self.texts: dict[int, list[int]] = {}

    def propose(self, *given: Any, **more: Any) -> Any:
        self.said.append("propose")
        return super().propose(*given, **more)

    def observe(self, states: Sequence[Any], verdicts: Any) -> None:
        self.said.append("observe")
        for state, verdict in zip(states, VerdictBatch.of(verdicts), strict=True):
            self.texts.setdefault(id(state), []).extend(verdict.tokens.tolist())
        super().observe(states, verdicts)

    def finish(self, state: Any) -> None:
        self.said.append("finish")
        super().finish(state)


def engine_of(drafter: Watched | None, policy: str, said: list[str]) -> Engine:
    target: Target = zoo_target("llama")
    compute = forward_and_verify(target)

    def overlapping(step: Step, wants: Wants, laps: Timings) -> Outcome:
        said.append("forward")
        step.meanwhile()
        return replace(compute(step, wants, laps), overlaps=True)

    return Engine(target, drafter, policy=policy, memory=1 << 24, compute=overlapping)


def answers(drafter: Watched | None, policy: str) -> list[list[int]]:
    engine = engine_of(drafter, policy, [] if drafter is None else drafter.said)
    asked = [SamplingParams(max_tokens=n, temperature=t, seed=n) for n, t in ((9, 0), (14, 0.8))]
    requests = [engine.add(PROMPT, params) for params in asked]
    engine.run()
    engine.check_integrity()
    return [request.token_ids for request in requests]


@pytest.mark.parametrize("policy", ["none", "fixed"])
def test_all_is_told_once_in_time(policy: str) -> None:
    drafter = Watched()
    texts = answers(drafter, policy)
    assert texts == answers(None, "none")
    assert sorted(drafter.texts.values()) == sorted(texts)
    letters = {"forward": "f", "observe": "o", "propose": "p", "finish": "."}
    steps = "".join(letters[said] for said in drafter.said)
    if policy == "none":  # it is told while the next step is computed, at the end at once
        assert "fofof" in steps and "p" not in steps and "fof.o" not in steps
    else:  # before it is asked
        assert "opf" in steps and "fp" not in steps


def test_steps_are_timed_on_both_sides_of_their_sizes() -> None:
    class Filling:
        row_sizes = (16, 64, 96, 512)

    filling: Any = Filling()
    edges = {kind.rows for kind in _known(filling, 1 << 20)}
    assert {16, 17, 64, 65, 96, 97} <= edges and 512 not in edges
    assert max(kind.requests for kind in _known(filling, 1 << 20)) == 256
    assert max(kind.takes for kind in _known(filling, 2000)) <= 2000
    assert {97, 256}.isdisjoint(kind.rows for kind in _known(zoo_target("llama"), 1 << 20))
