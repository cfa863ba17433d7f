"""Rollouts of our own engine, timed and recorded, for `simulate.py` to predict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from foresay.bench.plans import Plan, Setup
from foresay.bench.simulate import Simulation, simulate
from foresay.bench.step_costs import StepTable
from foresay.drafter import Drafter
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.models.target import Target
from foresay.sampling.params import SamplingParams
from foresay.traces import Trace


@dataclass(frozen=True)
class Config:
    """One rollout: a plan and how many requests run at once; `fitted`: it is not held out."""

    plan: str
    running: int
    k: int | None = None
    fitted: bool = False

    @property
    def name(self) -> str:
        return f"{self.plan}, {self.running} at once" + ("" if self.k is None else f", k {self.k}")

    def made(self) -> Plan:
        return Plan.parse(self.plan, k=self.k)


CONFIGS = (
    Config("none", 1, fitted=True),
    Config("none", 16, fitted=True),
    Config("fixed:all:stagger", 4, k=6, fitted=True),
    Config("none", 4),
    Config("none", 8),
    Config("fixed:all:stagger", 1, k=4),
    Config("fixed:all:stagger", 8, k=3),
    Config("threshold:none:file", 16),
    Config("dynamic-k:all:stagger", 8),
    Config("adaptive:all:stagger", 1),
    Config("adaptive:all:stagger", 8),
    Config("adaptive:all:stagger", 16),
)


@dataclass(frozen=True)
class Timed:
    """What a rollout took, and what it wrote."""

    seconds: float
    steps: int
    traces: list[Trace]


def rollout(
    target: Target,
    prompts: Sequence[Any],
    params: SamplingParams,
    stops: Sequence[int],
    config: Config,
    samples: int,
) -> Timed:
    """All samples of all prompts, in the order of the plan.

    Not by `foresay.rl.Rollouts`, whose samples always share with their group: a plan may say that
    they do not, and the engine must do what is simulated.
    """
    plan = config.made()
    drafter: Drafter[Any] | None = plan.drafter([])
    if drafter is not None and plan.policy != "threshold":
        drafter = SuffixDrafter(history=plan.share == "all")
    policy = plan.policy if plan.policy == "adaptive" else plan.policy_with(None)
    engine = Engine(target, drafter, policy=policy, max_running=config.running)
    keys = [(at, sample) for at in range(len(prompts)) for sample in range(samples)]
    if plan.order == "stagger":
        keys.sort(key=lambda key: (key[1], key[0]))
    asked: dict[tuple[int, int], Request] = {}
    for at in range(len(prompts)):
        engine.groups.open(None, f"{at}")
    for at, sample in keys:
        asked[at, sample] = engine.add(
            prompts[at],
            params,
            seed=1 + at * samples + sample,
            stops=stops,
            group=None if plan.share == "none" else f"{at}",
            together=True,
        )
    begin, steps = time.perf_counter(), 0
    while engine.busy:
        engine.step()
        steps += 1
    seconds = time.perf_counter() - begin
    traces = [
        Trace(
            f"{at}.{sample}",
            f"{at}",
            np.array(prompts[at], np.int32),
            np.array(request.token_ids, np.int32),
        )
        for (at, sample), request in sorted(asked.items())
    ]
    return Timed(seconds, steps, traces)


def predicted(table: StepTable, timed: Timed, config: Config, max_tokens: int) -> Simulation:
    """The same rollout, simulated from what it wrote."""
    setup = Setup(
        table,
        running=config.running,
        max_tokens=max_tokens,
        draft_seconds=table.draft_seconds or 0.0,
    )
    return simulate(timed.traces, config.made(), setup)


def validated(
    target: Target,
    table: StepTable,
    prompts: Sequence[Any],
    stops: Sequence[int],
    *,
    samples: int,
    max_tokens: int,
    rounds: int,
) -> dict[str, Any]:
    """Measured and predicted seconds of every configuration, taking turns for `rounds`.

    One constant is fitted: how much longer steps take in rollouts than in the table, on average
    over the fitted configurations. `error` is with it, `raw_error` without it.
    """
    params = SamplingParams(temperature=0.8, max_tokens=max_tokens, logprobs=0)
    runs: dict[Config, list[Timed]] = {config: [] for config in CONFIGS}
    for _ in range(rounds):
        for config in CONFIGS:
            runs[config].append(rollout(target, prompts, params, stops, config, samples))
    rows = []
    texts = [trace.output.tolist() for trace in runs[CONFIGS[0]][0].traces]
    for config, timed in runs.items():
        found = predicted(table, timed[0], config, max_tokens)
        rows.append(
            {
                "config": config.name,
                "held_out": not config.fitted,
                "seconds": median(run.seconds for run in timed),
                "spread": max(run.seconds for run in timed) / min(run.seconds for run in timed),
                "steps": median(run.steps for run in timed),
                "predicted_steps": len(found.steps),
                "predicted": found.seconds,
                "identical": all(
                    [trace.output.tolist() for trace in run.traces] == texts for run in timed
                ),
            }
        )
    factor = median(row["seconds"] / row["predicted"] for row in rows if not row["held_out"])
    for row in rows:
        row["raw_error"] = row["predicted"] / row["seconds"] - 1
        row["error"] = factor * row["predicted"] / row["seconds"] - 1
    errors = [abs(row["error"]) for row in rows if row["held_out"]]
    return {
        "factor": factor,
        "mean_error": sum(errors) / len(errors),
        "largest_error": max(errors),
        "rows": rows,
    }
