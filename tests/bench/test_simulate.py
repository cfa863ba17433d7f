"""The simulator conserves what was recorded, and counts as the real engine does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.recorded_groups import groups, table
from foresay.bench import recorded
from foresay.bench.compare import Interval, _redrawn, compare, inputs_of
from foresay.bench.plans import PLANS, Plan, Setup
from foresay.bench.replay import replay
from foresay.bench.simulate import Simulation, simulate
from foresay.drafters.suffix import SuffixDrafter
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams
from foresay.traces import Trace
from tiny import one_thread, save_model

SETUP = Setup(table(), running=6, draft_seconds=1e-5)


def facts(run: Simulation) -> Any:
    """All that a simulation found, but for the plan."""
    return run.seconds, run.replicas, run.requests, run.steps


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_tokens_are_conserved(plan: Plan) -> None:
    traces = groups()
    run = simulate(traces, plan, SETUP)
    assert [r.id for r in run.requests] == [t.id for t in traces]
    assert [r.tokens for r in run.requests] == [len(t.output) for t in traces]
    assert sum(step.committed for step in run.steps) == sum(len(t.output) for t in traces)
    assert sum(step.accepted for step in run.steps) == sum(r.accepted for r in run.requests)
    assert sum(step.drafted for step in run.steps) == sum(r.drafted for r in run.requests)
    for r in run.requests:
        assert r.tokens == r.steps + r.accepted and 0 <= r.begin < r.end <= run.seconds
    assert run.seconds == pytest.approx(sum(step.seconds for step in run.steps))
    assert all(a.time <= b.time for a, b in pairwise(run.steps))
    assert max(step.running for step in run.steps) <= 6


def test_a_wrong_walk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are taken from the recorded answers; taking them from elsewhere must fail."""
    real = recorded._paths

    def early(drafts: Any, flat: Any, at: Any, left: Any) -> Any:
        at += 1  # what follows is one token late
        return real(drafts, flat, at, left)

    monkeypatch.setattr(recorded, "_paths", early)
    with pytest.raises((RuntimeError, IndexError)):
        simulate(groups(), Plan("fixed"), SETUP)


def test_none_is_k_0() -> None:
    traces = groups(seed=1)
    none = simulate(traces, Plan("none"), SETUP)
    for plan in (Plan("fixed", k=0), Plan("threshold", batch=0), Plan("threshold", k=0)):
        assert facts(simulate(traces, plan, SETUP)) == facts(none)
    assert facts(simulate(traces, Plan("fixed", k=1), SETUP)) != facts(none)


def test_it_is_deterministic() -> None:
    traces = groups(seed=2)
    plan = Plan("adaptive", "all", "stagger")
    assert facts(simulate(traces, plan, SETUP)) == facts(simulate(traces, plan, SETUP))


def test_the_time_of_one_request_is_the_sum_of_its_steps() -> None:
    trace = groups(1, 1, seed=3)[0]
    run = simulate([trace], Plan("none"), SETUP)
    costs, context = SETUP.table, len(trace.prompt)
    expected = costs.seconds(1, 1, context, context + sum(range(1, context)), context - 1)
    first, *others = run.steps
    assert first.seconds == pytest.approx(expected, rel=0.02)  # reads of the prompt: about
    for step in others:
        context += 1
        assert step.seconds == pytest.approx(costs.seconds(1, 1, context, context))
    assert len(run.steps) == len(trace.output)


def test_drafts_are_accepted_as_in_the_replay() -> None:
    traces = groups(seed=4)
    run = simulate(traces, Plan("fixed", k=6), replace(SETUP, running=1))
    other = replay(traces, SuffixDrafter(history=False), budget=6)
    assert sum(r.steps for r in run.requests) == other.steps
    assert sum(r.accepted for r in run.requests) == other.accepted
    assert run.tokens_per_step == other.tokens_per_step > 1.2


def test_memory_preempts_and_conserves() -> None:
    traces = groups(6, 4, 200, seed=5)
    free = simulate(traces, Plan("adaptive", "group"), replace(SETUP, running=24))
    longest = max(len(t.output) for t in traces)
    tight = replace(SETUP, running=24, kv_tokens=6 * 128 + longest)
    held = simulate(traces, Plan("adaptive", "group"), tight)
    assert not any(r.preemptions for r in free.requests)
    assert any(r.preemptions for r in held.requests)
    assert held.tokens == free.tokens and held.seconds > free.seconds
    with pytest.raises(InputError, match="memory for"):
        simulate(traces, Plan("none"), replace(SETUP, kv_tokens=200))


def test_replicas_end_with_the_slowest() -> None:
    traces = groups(5, seed=6)
    plan = Plan("adaptive", "all", "stagger")
    limit = max(len(t.output) for t in traces)
    setup = replace(SETUP, replicas=2, max_tokens=limit)
    run = simulate(traces, plan, setup)
    names = list(dict.fromkeys(t.group for t in traces))
    for replica in range(2):
        own = [t for t in traces if t.group in names[replica::2]]
        alone = simulate(own, plan, replace(setup, replicas=1))
        assert alone.seconds == run.replicas[replica]
        assert {r.id for r in run.requests if r.replica == replica} == {t.id for t in own}
    assert run.seconds == max(run.replicas) > min(run.replicas)
    even = simulate(traces, plan, replace(setup, spread="length"))
    sizes = [sum(r.tokens for r in even.requests if r.replica == n) for n in range(2)]
    other = [sum(r.tokens for r in run.requests if r.replica == n) for n in range(2)]
    assert max(sizes) <= max(other)
    more = simulate(traces, plan, replace(setup, replicas=9))  # some have nothing to do
    assert len(more.replicas) == 9 and min(more.replicas) == 0.0 and more.tokens == run.tokens


def test_sharing_and_history_help_and_the_oracle_is_the_bound() -> None:
    traces = groups(6, 4, 200, seed=7)

    def steps(plan: Plan, **more: Any) -> int:
        return sum(r.steps for r in simulate(traces, plan, SETUP, **more).requests)

    alone, group = steps(Plan("fixed")), steps(Plan("fixed", "group", "stagger"))
    assert group < alone
    assert steps(Plan("fixed", "all"), history=traces) < group  # the same answers once more
    assert steps(Plan("fixed"), history=traces) == alone
    slow = simulate(traces, Plan("adaptive", "all", "stagger"), SETUP)
    assert simulate(traces, Plan("oracle"), SETUP).seconds < slow.seconds


def test_drafting_takes_its_time() -> None:
    traces = groups(seed=8)
    fast, slow = (
        simulate(traces, Plan("fixed"), replace(SETUP, draft_seconds=s)) for s in (0.0, 1e-3)
    )
    asked = sum(r.steps for r in fast.requests) - len(traces)  # no draft for a last token: fewer
    assert 0.5e-3 * asked < slow.seconds - fast.seconds <= 1e-3 * (asked + len(traces)) + 1e-9


def test_as_the_real_engine_counts(tmp_path: Path) -> None:
    """A rollout of a real model, recorded and simulated: the same steps, drafts and acceptances."""
    from foresay.budget.policy import Fixed, Threshold
    from foresay.engine.llm import LLM
    from foresay.rl.rollouts import Rollouts

    save_model(tmp_path / "model")
    params = SamplingParams(temperature=0.25, max_tokens=48)
    prompts = [list(range(30 + n, 50 + n)) * 2 for n in range(3)]
    with one_thread():
        target = LLM(tmp_path / "model", drafter=None, dtype="float32").target
        for policy, plan in (
            (Fixed(k=5), Plan("fixed", "all", "stagger", k=5)),
            (Threshold(k=3, batch=3), Plan("threshold", "all", "stagger", batch=3)),
        ):
            rule = plan.drafter([])
            rollouts = Rollouts(target, rule, policy, max_running=4)
            found = rollouts.sample(prompts, params, samples=3, seed=5, stops=[3, 4, 7, 9])
            traces = [
                Trace(f"{r.prompt}.{r.sample}", f"{r.prompt}", _tokens(prompts[r.prompt]), answer)
                for group in found
                for r in group
                for answer in [_tokens(r.token_ids)]
            ]
            setup = Setup(table(), running=4, max_tokens=48)
            run = simulate(traces, plan, setup)
            real = [r.stats for group in found for r in group]
            assert [(r.steps, r.drafted, r.accepted) for r in run.requests] == [
                (s.steps, s.drafted, s.accepted) for s in real
            ]
            assert len({s.tokens for s in real}) > 1 and any(s.accepted for s in real)


def _tokens(values: list[int]) -> Any:
    return np.array(values, np.int32)


def test_intervals_are_of_redrawn_groups() -> None:
    traces = groups(8, 2, seed=9)
    plans = [Plan("adaptive", "all", "stagger"), Plan("none")]
    results = compare(traces, plans, SETUP, few=2, resamples=3)
    assert [r.simulation.plan for r in results] == [Plan("none"), plans[0]]
    base, other = results
    assert base.speedup == 1 and base.speedup_interval is None
    assert other.speedup == base.simulation.seconds / other.simulation.seconds
    assert other.speedup_interval is not None and other.tail_speedup is not None
    assert other.speedup_interval.low < other.speedup < other.speedup_interval.high
    again = compare(traces, plans, SETUP, few=2, resamples=3)[1]
    assert again.as_dict() == other.as_dict()
    alone = compare(traces, plans, SETUP, few=2, resamples=0)[1]
    assert alone.speedup == other.speedup and alone.speedup_interval is None
    assert Interval.around(2.0, [2.0, 2.0, 2.0]) == Interval(2.0, 2.0)


def test_a_group_that_is_drawn_twice_does_not_know_its_copy() -> None:
    traces = groups(5, 2, 200, seed=10)
    drawn, tenants = _redrawn(traces, np.random.default_rng(0))
    assert len(drawn) == len(traces) and len({t.group for t in drawn}) == 5
    assert len(tenants) == 5 - len({t.id.split(".")[0] for t in drawn}) > 0
    plan = Plan("fixed", "all")
    apart = simulate(drawn, plan, SETUP, tenants=tenants)
    assert apart.tokens_per_step < simulate(drawn, plan, SETUP).tokens_per_step


def test_inputs_say_what_is_assumed() -> None:
    traces = groups()
    kinds = {i.what: i.kind for i in inputs_of(traces, SETUP)}
    assert kinds["step costs"] == "measured" and kinds["answers"] == "recorded"
    far = replace(SETUP, table=SETUP.table.stretched(8.0), spread="length")
    kinds = {i.what: i.kind for i in inputs_of(traces, far, stretch=8.0)}
    assert kinds["step costs"] == kinds["stretch"] == kinds["spread"] == "assumed"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nonsense", "policy is 'nonsense' in the plan 'nonsense'; expected one of none, thresh"),
        ("fixed:most", "share is 'most'"),
        ("fixed:all:random", "order is 'random'"),
        ("fixed:all:file:x", "expected POLICY"),
    ],
)
def test_wrong_plans(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Plan.parse(text)


def test_names_are_read_again() -> None:
    assert [Plan.parse(plan.name) for plan in PLANS] == list(PLANS)


def test_what_cannot_be_simulated() -> None:
    with pytest.raises(InputError, match="no traces"):
        simulate([], Plan("none"), SETUP)
    empty = Trace("a", "g", _tokens([1]), _tokens([]))
    with pytest.raises(InputError, match="'a' has no output"):
        simulate([empty], Plan("none"), SETUP)
    with pytest.raises(InputError, match="max_tokens is 1 and"):
        simulate(groups(), Plan("none"), replace(SETUP, max_tokens=1))
    with pytest.raises(InputError, match="replicas"):
        replace(SETUP, replicas=0)
    with pytest.raises(InputError, match="draft_seconds is -1"):
        replace(SETUP, draft_seconds=-1)


def test_no_end_of_replicas() -> None:
    """Each has a list of its own: so many would fill the memory."""
    with pytest.raises(InputError, match=r"replicas is 10{20}; expected 1 to 65536"):
        replace(SETUP, replicas=10**20)
