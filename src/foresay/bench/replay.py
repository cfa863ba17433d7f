"""Replay: recorded outputs through a drafter, no model needed.

A looked-up draft is accepted exactly where it equals the model's output, and a trace is a recorded
output. So the tokens per step on a trace are what a real engine would reach, at any temperature,
and they are the same on every machine.

One step of one request is: propose, walk the tree along the recorded output, commit the longest
path that agrees and one more token, observe. The loop starts at the prompt's end, so that every
output token belongs to a step. This module knows drafters only by the Drafter protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, get_args

import numpy as np

from foresay.abilities import abilities_of
from foresay.counts import acceptance, tokens_per_step
from foresay.draft import Draft, DraftBatch
from foresay.drafter import MAX_BUDGET, Drafter
from foresay.drafters.lineup import Share
from foresay.errors import InputError, UnknownGroup
from foresay.rl.history import PromptHistory
from foresay.traces import Trace, TraceOrder, staggered
from foresay.verdict import Verdict, VerdictBatch

__all__ = ["BUCKET", "ReplayResult", "chain_nodes", "replay", "replay_epochs", "walk"]

BUCKET = 1000
"""Width of the position buckets of the curve, in tokens of text (prompt and output)."""


@dataclass(slots=True)
class ReplayResult:
    """What a replay counted. Mean values are properties, so that they always fit the counts."""

    requests: int = 0
    steps: int = 0  # one per request and model pass
    tokens: int = 0  # committed
    drafted: int = 0  # nodes proposed
    accepted: int = 0  # nodes committed
    accepted_at: list[int] = field(default_factory=list)  # [d]: steps that accepted depth d + 1
    curve: dict[int, list[int]] = field(default_factory=dict)  # bucket -> [steps, tokens]
    propose_seconds: float = 0.0
    observe_seconds: float = 0.0
    bytes_per_token: float | None = None  # at the moment when the drafter held most tokens
    peak_tokens: int = 0

    @property
    def tokens_per_step(self) -> float:
        """Mean acceptance length, the target's own token included: see `foresay.counts`."""
        return tokens_per_step(self.tokens, self.steps)

    @property
    def drafted_per_step(self) -> float:
        """Nodes proposed per step."""
        return self.drafted / self.steps if self.steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the proposed nodes that were committed."""
        return acceptance(self.accepted, self.drafted)

    @property
    def acceptance_by_depth(self) -> list[float]:
        """[d]: share of all steps that accepted a node at depth d + 1; sums to accepted / steps."""
        return [count / self.steps for count in self.accepted_at]

    def as_dict(self) -> dict[str, Any]:
        """The fields of `foresay replay --json`, in their fixed order."""
        return {
            "tokens_per_step": self.tokens_per_step,
            "drafted_per_step": self.drafted_per_step,
            "steps": self.steps,
            "tokens": self.tokens,
            "requests": self.requests,
            "propose_us_per_request": 1e6 * self.propose_seconds / max(1, self.steps),
            "observe_us_per_token": 1e6 * self.observe_seconds / max(1, self.tokens),
            "acceptance_by_depth": self.acceptance_by_depth,
            "bytes_per_token": self.bytes_per_token,
        }


@dataclass(slots=True)
class _Running:
    trace: Trace
    state: Any
    done: int = 0  # output tokens committed

    @property
    def left(self) -> int:
        return len(self.trace.output) - self.done


def replay(
    traces: Sequence[Trace],
    drafter: Drafter[Any],
    *,
    budget: int,
    chain: bool = False,
    share: Share = "none",
    lockstep: int = 1,
    order: TraceOrder = "file",
    earlier: PromptHistory | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Run every trace through `drafter` and count.

    `budget`: nodes per draft. `chain`: of each tree only the likeliest path counts. `share`: with
    "none" requests begin without a group; with "group" and "all" siblings share, and a group is
    dropped when its last member has finished; whether finished requests feed a history is the
    drafter's own setting. `lockstep`: how many requests advance together, refilled as they finish.
    `earlier`: answers to the same prompts that groups draft from; those of this replay are added.
    `progress` is called with the number of tokens committed by each round.

    Raises: InputError for options out of range, and what the drafter raises.
    """
    if not 1 <= budget <= MAX_BUDGET:
        raise InputError(
            f"the budget is {budget} (--budget); expected 1 to {MAX_BUDGET} nodes per draft"
        )
    if lockstep < 1:
        raise InputError(f"lockstep is {lockstep}; expected 1 or more requests")
    for name, value, kind in (("share", share, Share), ("order", order, TraceOrder)):
        if value not in get_args(kind):
            raise InputError(f"{name} is {value!r}; expected one of {', '.join(get_args(kind))}")
    result = ReplayResult(requests=len(traces))
    waiting = (staggered(traces) if order == "stagger" else list(traces))[::-1]
    members = Counter(trace.group for trace in traces)
    groups = abilities_of(drafter).groups if share != "none" else None
    running: list[_Running] = []
    told: set[str] = set()

    while waiting or running:
        while waiting and len(running) < lockstep:
            trace = waiting.pop()
            group = None if share == "none" else trace.group
            if earlier is not None and groups is not None and trace.group not in told:
                told.add(trace.group)
                for answer in earlier.of(trace.prompt):
                    groups.add_to_group(trace.group, trace.prompt, answer)
            running.append(_Running(trace, drafter.begin(trace.prompt, group=group)))

        active = [request for request in running if request.left]
        if active:
            committed = _step(active, drafter, budget, chain, result)
            if progress is not None:
                progress(committed)

        ended = [request for request in running if not request.left]
        if ended:
            _weigh(drafter, result)
        for request in ended:
            drafter.finish(request.state)
            group = request.trace.group
            members[group] -= 1
            if groups is not None and not members[group]:
                with suppress(UnknownGroup):  # dropped already, to keep a bound on memory
                    groups.drop_group(group)
        running = [request for request in running if request.left]
    if earlier is not None:
        for trace in traces:
            earlier.add(trace.prompt, [trace.output])
    return result


def replay_epochs(
    traces: Sequence[Trace],
    drafter: Drafter[Any],
    epochs: int,
    *,
    budget: int,
    chain: bool = False,
    lockstep: int = 1,
    order: TraceOrder = "file",
    progress: Callable[[int], None] | None = None,
) -> list[ReplayResult]:
    """Replay the samples of each group in several epochs, as if they were sampled while the model
    is trained: groups draft from each other's text and from the answers of the epochs before.

    Raises: InputError for fewer samples in a group than epochs; as `replay`.
    """
    samples: dict[str, list[Trace]] = {}
    for trace in traces:
        samples.setdefault(trace.group, []).append(trace)
    fewest = min(map(len, samples.values()), default=epochs)
    if not 1 <= epochs <= fewest:
        raise InputError(
            f"epochs is {epochs}; expected 1 to {fewest}, the fewest samples that a group has"
        )
    earlier = PromptHistory(versions=epochs, limit=1 << 30)
    results = []
    for epoch in range(epochs):
        some = [
            trace
            for group in samples.values()
            for trace in group[epoch * len(group) // epochs : (epoch + 1) * len(group) // epochs]
        ]
        if epoch:
            earlier.new_version()
            versions = abilities_of(drafter).versions
            if versions is not None:
                versions.new_version(epochs)
        results.append(
            replay(
                some,
                drafter,
                budget=budget,
                chain=chain,
                share="all",
                lockstep=lockstep,
                order=order,
                earlier=earlier,
                progress=progress,
            )
        )
    return results


def walk(draft: Draft, truth: list[int], allowed: set[int] | None = None) -> list[int]:
    """The longest root path of `draft` whose tokens are the beginning of `truth`.

    `allowed` limits the walk to some nodes.
    """
    parents = draft.parents.tolist()
    depth = [0] * (len(parents) + 1)  # depth of a matching node, 0 if it does not match
    deepest = -1
    for i, (token, parent) in enumerate(zip(draft.tokens.tolist(), parents, strict=True)):
        above = depth[parent] if parent >= 0 else 0
        if (parent >= 0 and not above) or above >= len(truth) or token != truth[above]:
            continue
        if allowed is not None and i not in allowed:
            continue
        depth[i] = above + 1
        if deepest < 0 or depth[i] > depth[deepest]:
            deepest = i
    path = []
    while deepest >= 0:
        path.append(deepest)
        deepest = parents[deepest]
    return path[::-1]


def chain_nodes(draft: Draft) -> list[int]:
    """The likeliest root path: from each node to its best child (without scores, the first)."""
    scores = [1.0] * len(draft) if draft.scores is None else draft.scores.tolist()
    best: dict[int, int] = {}
    for i, parent in enumerate(draft.parents.tolist()):
        if parent not in best or scores[i] > scores[best[parent]]:
            best[parent] = i
    path = []
    node = -1
    while node in best:
        node = best[node]
        path.append(node)
    return path


def _step(
    active: list[_Running],
    drafter: Drafter[Any],
    budget: int,
    chain: bool,
    result: ReplayResult,
) -> int:
    """One round of all active requests; returns the number of committed tokens."""
    states = [request.state for request in active]
    start = perf_counter()
    drafts = DraftBatch.of(drafter.propose(states, [budget] * len(active)))
    result.propose_seconds += perf_counter() - start

    verdicts = []
    for request, draft in zip(active, drafts, strict=True):
        if len(draft) > budget:
            raise InputError(
                f"a draft has {len(draft)} nodes; expected at most {budget}, the budget"
            )
        verdicts.append(_verify(request, draft, chain, result))
    batch = VerdictBatch.of(verdicts)

    start = perf_counter()
    drafter.observe(states, batch)
    result.observe_seconds += perf_counter() - start
    return len(batch.tokens)


def _verify(request: _Running, draft: Draft, chain: bool, result: ReplayResult) -> Verdict:
    """Commit the longest agreeing path and one more token of the recorded output."""
    allowed = set(chain_nodes(draft)) if chain else None
    output, done = request.trace.output, request.done
    # One token is always the target's own: where the output ends inside the tree, the path's last
    # node is that token and no longer part of the path.
    truth = output[done : done + min(len(draft), request.left - 1)].tolist()
    path = walk(draft, truth, allowed)
    tokens = output[done : done + len(path) + 1]

    result.steps += 1
    result.tokens += len(tokens)
    result.drafted += len(draft) if allowed is None else len(allowed)
    result.accepted += len(path)
    result.accepted_at += [0] * (len(path) - len(result.accepted_at))
    for depth in range(len(path)):
        result.accepted_at[depth] += 1
    bucket = result.curve.setdefault((len(request.trace.prompt) + done) // BUCKET, [0, 0])
    bucket[0] += 1
    bucket[1] += len(tokens)
    request.done += len(tokens)
    return Verdict._trusted(np.array(path, np.int32), tokens)


def _weigh(drafter: Drafter[Any], result: ReplayResult) -> None:
    """Keep the bytes per token of the fullest moment, if the drafter can tell."""
    memory = abilities_of(drafter).memory
    if memory is None:
        return
    tokens = memory.tokens_held()
    if tokens and tokens >= result.peak_tokens:
        result.peak_tokens = tokens
        result.bytes_per_token = memory.bytes_used() / tokens
