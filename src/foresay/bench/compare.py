"""Simulated plans compared with no drafts: speed-ups with intervals, and what they rest on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, NamedTuple

import numpy as np

from foresay.bench.plans import Plan, Setup
from foresay.bench.simulate import Simulation, simulate
from foresay.errors import InputError
from foresay.rl.steplog import FEW
from foresay.traces import Trace

__all__ = ["Input", "Interval", "PlanResult", "compare", "inputs_of"]


class Interval(NamedTuple):
    """95 % of the resampled values; None where there are fewer than 2 resamples.

    The rollout is simulated again with as many groups, drawn with replacement. A group that is
    drawn twice shares nothing with its copy: no rollout has the same answers twice. The interval is
    1.96 standard deviations of the logarithm to both sides.
    """

    low: float
    high: float

    @classmethod
    def around(cls, value: float, resampled: Sequence[float]) -> Interval | None:
        if len(resampled) < 2:
            return None
        spread = 1.96 * float(np.std([log(found) for found in resampled], ddof=1))
        return cls(value * exp(-spread), value * exp(spread))


@dataclass(frozen=True, slots=True, eq=False)
class PlanResult:
    """A plan beside no drafts.

    simulation     of all traces
    speedup        time without drafts by its time
    tail_seconds   in which at most `few` requests were left, mean over the replicas
    tail_share     of the replicas' time
    tail_speedup   time of the tail without drafts by that with them; None: there was no tail
    """

    simulation: Simulation
    speedup: float
    speedup_interval: Interval | None
    tail_seconds: float
    tail_share: float
    tail_speedup: float | None
    tail_interval: Interval | None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        run = self.simulation
        return {
            "plan": run.plan.name,
            "seconds": run.seconds,
            "speedup": self.speedup,
            "speedup_interval": self.speedup_interval and [*self.speedup_interval],
            "tail_share": self.tail_share,
            "tail_seconds": self.tail_seconds,
            "tail_speedup": self.tail_speedup,
            "tail_speedup_interval": self.tail_interval and [*self.tail_interval],
            "tokens_per_step": run.tokens_per_step,
            "drafted_per_step": run.drafted_per_step,
            "tokens": run.tokens,
            "requests": len(run.requests),
            "engine_steps": len(run.steps),
            "preemptions": sum(request.preemptions for request in run.requests),
            "replica_seconds": run.replicas,
        }


class Input(NamedTuple):
    """What a simulation rests on: "recorded", "measured", "assumed", "given" or "left out"."""

    what: str
    kind: str
    about: str


def compare(
    traces: Sequence[Trace],
    plans: Sequence[Plan],
    setup: Setup,
    *,
    few: int = FEW,
    resamples: int = 8,
    seed: int = 0,
    history: Sequence[Trace] = (),
    progress: Callable[[int], None] | None = None,
) -> list[PlanResult]:
    """Each plan beside no drafts in file order, which comes first in the result.

    few        the tail is when at most this number of requests are left
    resamples  rollouts of redrawn groups, for the intervals
    progress   called for new tokens, of (1 + resamples) * plans rollouts

    Raises: InputError, as `simulate`.
    """
    if resamples < 0:
        raise InputError(f"resamples is {resamples}; expected 0 or more")
    if setup.max_tokens is None:  # the same for all
        setup = replace(setup, max_tokens=max((len(t.output) for t in traces), default=1) or 1)
    wanted = list(dict.fromkeys([Plan("none"), *plans]))  # each once, no drafts first
    if type(seed) is not int or seed < 0:
        raise InputError(f"seed is {seed!r}; expected a whole number from 0")
    random = np.random.default_rng(seed)
    drawn = [_redrawn(traces, random) for _ in range(resamples)]
    times: list[list[tuple[float, float]]] = []  # by rollout and plan: seconds, of the tail
    kept: list[Simulation] = []
    for own, tenants in [(list(traces), dict[str, str]()), *drawn]:
        row = []
        for plan in wanted:
            run = simulate(own, plan, setup, tenants=tenants, history=history, progress=progress)
            tails = run.tails(few)
            row.append((run.seconds, sum(tail.tail_seconds for tail in tails) / len(tails)))
            if len(kept) < len(wanted):
                kept.append(run)
        times.append(row)
    return [_result(at, run, times, few) for at, run in enumerate(kept)]


def _redrawn(
    traces: Sequence[Trace], random: np.random.Generator
) -> tuple[list[Trace], dict[str, str]]:
    """As many groups, drawn with replacement, and the tenants that separate copies."""
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.group, []).append(trace)
    names = list(groups)
    drawn: list[Trace] = []
    tenants: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for at in random.integers(len(names), size=len(names)).tolist():
        own = f"{names[at]} {seen[names[at]]}"
        if copy := seen[names[at]]:
            tenants[own] = f"copy {copy}"
        seen[names[at]] += 1
        drawn += [replace(trace, group=own) for trace in groups[names[at]]]
    return drawn, tenants


def _result(
    at: int, run: Simulation, times: Sequence[Sequence[tuple[float, float]]], few: int
) -> PlanResult:
    speedups = [row[0][0] / row[at][0] for row in times]
    tails = [row[0][1] / row[at][1] for row in times if row[0][1] > 0 and row[at][1] > 0]
    own = run.tails(few)
    share = sum(tail.tail_seconds for tail in own) / sum(tail.seconds for tail in own)
    tailed = times[0][0][1] > 0 and times[0][at][1] > 0
    first = at == 0  # no drafts beside itself: there is nothing to be uncertain of
    return PlanResult(
        run,
        speedups[0],
        None if first else Interval.around(speedups[0], speedups[1:]),
        times[0][at][1],
        share,
        tails[0] if tailed else None,
        Interval.around(tails[0], tails[1:]) if tailed and not first else None,
    )


def inputs_of(
    traces: Sequence[Trace],
    setup: Setup,
    *,
    stretch: float = 1.0,
    drafting: str = "assumed",
    left_out: int = 0,
) -> list[Input]:
    """What a simulation rests on, for its readers.

    stretch   by which contexts were multiplied
    drafting  "measured", "assumed" or "given": where the time of drafting is from
    left_out  recorded requests without output
    """
    table = setup.table
    tokens = sum(len(trace.output) for trace in traces)
    longest = max(len(trace.output) for trace in traces)
    known = sum(point.measured for point in table.points)
    groups = len({trace.group for trace in traces})
    kind = "measured" if table.measured else "assumed"
    limit = "assumed" if setup.max_tokens is None else "given"
    found = [
        Input(
            "answers",
            "recorded",
            f"{len(traces)} requests of {groups} groups, {tokens} tokens, the longest {longest}, "
            f"{longest * len(traces) / tokens:.1f} times the mean; {left_out} without output are "
            "left out",
        ),
        Input(
            "step costs",
            kind,
            f"{table.about}; {known} of {len(table.points)} points measured, the curve between "
            f"them is {table.error:.1%} off on average. {table.source}",
        ),
        Input("drafting", drafting, f"{1e6 * setup.draft_seconds:g} µs per request and step"),
        Input(
            "limit of answers",
            limit,
            f"{setup.max_tokens or longest} tokens: what policies know of an answer's length",
        ),
    ]
    if stretch != 1:
        about = f"each token of a text counts as {stretch:g} of context"
        found.append(Input("stretch", "assumed", about))
    if setup.spread == "length":
        about = "groups are dealt to replicas by lengths known beforehand"
        found.append(Input("spread", "assumed", about))
    outside = "sampling and scheduling beyond the table's times, networks, new weights"
    return [*found, Input("not simulated", "left out", outside)]
