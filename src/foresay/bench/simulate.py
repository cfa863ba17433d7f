"""A rollout step simulated: recorded answers and a step-cost table in, times out.

The engine is the real one: its scheduler, its memory, its drafters and its policies. Only the
forward pass and the verification are replaced, by the recorded answers and a clock that advances by
the table's time of each step (`bench.recorded`). Data-parallel replicas have an engine each, and
whole groups; the step ends with the slowest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from foresay.abilities import abilities_of
from foresay.bench.plans import Plan, Setup
from foresay.bench.recorded import (
    Clock,
    ClockedDrafter,
    CountedTarget,
    RecordedAnswers,
    RecordedEnd,
)
from foresay.bench.tail import Activity, Tail, tail_of
from foresay.counts import tokens_per_step
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.errors import InputError
from foresay.rl.steplog import StepRecord
from foresay.sampling.params import SamplingParams
from foresay.traces import Trace, staggered
from foresay.verdict import Verdict

__all__ = ["SimulatedRequest", "SimulatedStep", "Simulation", "simulate"]


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request: when it was first in a step, when it ended, and what it took."""

    id: str
    group: str
    replica: int
    begin: float
    end: float
    tokens: int
    steps: int
    drafted: int
    accepted: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class SimulatedStep(StepRecord):
    """One step of a replica, in simulated seconds.

    replica  which one
    rows     that the step computed: of requests, drafted nodes and prompts
    """

    replica: int
    rows: int


@dataclass(frozen=True, eq=False)
class Simulation:
    """A simulated rollout step.

    plan      how drafts were used
    seconds   until the slowest replica ended
    replicas  seconds of each
    requests  in the order of the traces
    steps     of all replicas, each replica's in order
    """

    plan: Plan
    seconds: float
    replicas: list[float]
    requests: list[SimulatedRequest]
    steps: list[SimulatedStep]

    @cached_property
    def tokens(self) -> int:
        return sum(request.tokens for request in self.requests)

    @property
    def tokens_per_step(self) -> float:
        """See `foresay.counts`."""
        return tokens_per_step(self.tokens, sum(request.steps for request in self.requests))

    @property
    def drafted_per_step(self) -> float:
        """Drafted tokens that were verified, for each request and step."""
        steps = sum(request.steps for request in self.requests)
        return sum(request.drafted for request in self.requests) / steps if steps else 0.0

    def tails(self, few: int) -> list[Tail]:
        """The tail of each replica that had requests."""
        found = []
        for replica in range(len(self.replicas)):
            own = [step for step in self.steps if step.replica == replica]
            if own:
                spans = ((s.time - s.seconds, s.time, s.left) for s in own)
                found.append(tail_of(Activity.of_steps(spans, None), few))
        return found


def simulate(
    traces: Sequence[Trace],
    plan: Plan,
    setup: Setup,
    *,
    tenants: Mapping[str, str] | None = None,
    history: Sequence[Trace] = (),
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """One rollout step of all traces. Answers without tokens are refused.

    tenants   of groups that share nothing with the others
    history   earlier answers, which requests draft from where the plan shares all
    progress  called for new tokens: progress(how many)

    Raises: InputError for what the engine cannot answer, such as a text larger than kv_tokens.
    """
    if not traces:
        raise InputError("there are no traces; expected at least 1")
    for trace in traces:
        if not len(trace.output):
            raise InputError(f"request {trace.id!r} has no output; expected at least 1 token")
    longest = max(len(trace.output) for trace in traces)
    limit = longest if setup.max_tokens is None else setup.max_tokens
    if limit < longest:
        raise InputError(
            f"max_tokens is {limit} and an answer has {longest}; expected at least as many"
        )
    found: dict[int, SimulatedRequest] = {}
    steps: list[SimulatedStep] = []
    seconds = []
    for replica, members in enumerate(_dealt(traces, setup)):
        if not members:
            seconds.append(0.0)
            continue
        run = _Replica(replica, [traces[at] for at in members], plan, setup, limit, tenants or {})
        for earlier in history if plan.share == "all" else ():
            run.remember(earlier)
        found |= {members[at]: request for at, request in run.run(progress)}
        seconds.append(run.clock.now)
        steps += run.steps
    return Simulation(plan, max(seconds), seconds, [found[at] for at in sorted(found)], steps)


def _dealt(traces: Sequence[Trace], setup: Setup) -> list[list[int]]:
    """The indices of each replica's traces, in the order of the file; groups stay whole."""
    groups: dict[str, list[int]] = {}
    for at, trace in enumerate(traces):
        groups.setdefault(trace.group, []).append(at)
    dealt: list[list[int]] = [[] for _ in range(setup.replicas)]
    if setup.spread == "round":
        for number, members in enumerate(groups.values()):
            dealt[number % setup.replicas] += members
    else:
        sizes = [0] * setup.replicas
        weights = {name: sum(len(traces[at].output) for at in of) for name, of in groups.items()}
        for name in sorted(groups, key=lambda name: -weights[name]):
            to = sizes.index(min(sizes))
            dealt[to] += groups[name]
            sizes[to] += weights[name]
    return [sorted(members) for members in dealt]


class _Replica:
    """One engine and its requests, at least one."""

    def __init__(
        self,
        number: int,
        traces: Sequence[Trace],
        plan: Plan,
        setup: Setup,
        limit: int,
        tenants: Mapping[str, str],
    ) -> None:
        self.number, self.traces, self.clock = number, traces, Clock()
        self.steps: list[SimulatedStep] = []
        self._plan, self._limit, self._tenants = plan, limit, tenants
        # The engine numbers requests as they are added, so the answers are in that order, too.
        order = {id(trace): at for at, trace in enumerate(traces)}
        ordered = staggered(traces) if plan.order == "stagger" else list(traces)
        self._ordered, self._places = ordered, [order[id(trace)] for trace in ordered]
        drafter = plan.drafter(ordered)
        self._drafter = drafter
        if drafter is not None:
            drafter = ClockedDrafter(drafter, self.clock, setup.draft_seconds)
        context = max(len(trace.prompt) for trace in traces) + limit + 1
        tokens = max(max(t.prompt.max(), t.output.max()) for t in traces)
        enough = sum(len(trace.prompt) + limit + 128 for trace in traces)
        self._answers = RecordedAnswers(ordered, setup.table, self.clock)
        self.engine = Engine(
            CountedTarget(vocabulary=int(tokens) + 1, context=context),
            drafter,
            policy=plan.policy_with(setup.table),
            memory=2 * enough if setup.kv_tokens is None else setup.kv_tokens,
            max_running=setup.running,
            max_rows=setup.max_rows,
            compute=self._answers,
            clock=self.clock,
        )

    def remember(self, trace: Trace) -> None:
        """Let the drafter see an earlier answer as finished, and the group of its prompt draft from
        it, as `foresay.rl.Rollouts` does."""
        if self._drafter is None or not len(trace.output):
            return
        state = self._drafter.begin(trace.prompt, group=None)
        self._drafter.observe([state], [Verdict([], trace.output)])
        self._drafter.finish(state)
        groups = abilities_of(self._drafter).groups
        if groups is not None and any(trace.group == other.group for other in self.traces):
            tenant = self._tenants.get(trace.group)
            groups.add_to_group(trace.group, trace.prompt, trace.output, tenant=tenant)

    def run(self, progress: Callable[[int], None] | None) -> Iterator[tuple[int, SimulatedRequest]]:
        """Step until all requests have ended: each with its place among the traces. Then `steps`
        are complete."""
        ends: dict[int, float] = {}
        asked = [self._add(at, trace) for at, trace in enumerate(self._ordered)]
        while self.engine.busy:
            before, self._answers.step = self.clock.now, None
            for request in self.engine.step():
                if request.error is not None:
                    raise InputError(f"a request failed: {request.error}")
                if request.finished:
                    ends[request.number] = self.clock.now
            committed = self._note(before)
            if progress is not None:
                progress(committed)
        for at, (request, trace) in enumerate(zip(asked, self._ordered, strict=True)):
            stats = request.stats
            if request.token_ids != trace.output.tolist():
                raise RuntimeError(f"{request!r} did not answer as {trace.id!r} did")
            yield (
                self._places[at],
                SimulatedRequest(
                    trace.id,
                    trace.group,
                    self.number,
                    self._answers.begun[request.number],
                    ends[request.number],
                    stats.tokens,
                    stats.steps,
                    stats.drafted,
                    stats.accepted,
                    stats.preemptions,
                ),
            )

    def _add(self, number: int, trace: Trace) -> Request:
        group = None if self._plan.share == "none" else trace.group
        tenant = self._tenants.get(trace.group)
        if group is not None and not self.engine.groups.members(tenant, group):
            self.engine.groups.open(tenant, group)
        return self.engine.add(
            trace.prompt,
            SamplingParams(max_tokens=self._limit),
            seed=number,
            group=group,
            tenant=tenant,
            text=RecordedEnd(len(trace.output)),
            together=True,
        )

    def _note(self, before: float) -> int:
        """Note the step that has ended; how many tokens it made."""
        step = self._answers.step
        if step is None:
            raise RuntimeError("a step computed nothing")
        committed = self._answers.committed
        drafted = len(step.chosen.drafts.tokens)
        self.steps.append(
            SimulatedStep(
                self.clock.now,
                self.clock.now - before,
                len(step.turns),
                len(self.engine.scheduler.waiting),
                drafted,
                committed - len(step.decoding),
                committed,
                replica=self.number,
                rows=len(step.decoding) + drafted + step.load.other_rows,
            )
        )
        return committed
