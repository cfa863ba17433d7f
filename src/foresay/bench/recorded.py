"""What stands in for a model in a simulated engine: recorded answers and a clock.

No logits are made. A draft is accepted exactly where it equals the recorded answer, which is what
rule match does with the answer that the model would have sampled (see `bench.replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from foresay.abilities import abilities_of
from foresay.arrays import Int32s, sizes_of
from foresay.bench.replay import walk
from foresay.bench.step_costs import StepTable
from foresay.draft import Draft, DraftBatch
from foresay.drafter import Drafter, SeededParams
from foresay.engine.step import Outcome, Step, Timings
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError, StateError
from foresay.models.target import Hidden, Outputs, SequenceInput
from foresay.sampling.acceptance.verdicts import Verified
from foresay.traces import Trace
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = [
    "Clock",
    "ClockedDrafter",
    "CountedTarget",
    "OracleDrafter",
    "RecordedAnswers",
    "RecordedEnd",
]


class Clock:
    """Simulated seconds: it stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds


class CountedKv:
    """A `TextKv` that counts tokens and stores nothing."""

    def __init__(self, length: int = 0) -> None:
        self.length = length

    @property
    def capacity(self) -> int:
        return self.length

    def keep(self, path: Int32s, /) -> None:
        self.length += len(path)

    def cut(self, length: int, /) -> None:
        self.length = length

    def copy_from(self, other: CountedKv, length: int, /) -> None:
        if self.length or not 0 <= length <= other.length:
            raise InputError(f"length is {length}; expected 0 to {other.length}, and an empty text")
        self.length = length

    def check_integrity(self) -> None:
        if self.length < 0:
            raise RuntimeError(f"the text has {self.length} tokens")


class CountedTarget:
    """A `Target` without weights, whose memory is counted in tokens."""

    exact: bool | None = None
    version = 0
    depth = 0
    threads = 1
    identity: str | None = None
    bytes_per_token = 1

    def __init__(self, *, vocabulary: int, context: int) -> None:
        self.vocabulary, self.context = vocabulary, context

    def open(self) -> CountedKv:
        return CountedKv()

    def open_filled(self, tokens: int) -> CountedKv:
        return CountedKv(tokens)

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        self._refuse()

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def replace_weights(self, weights: Mapping[str, Any], *, copy: bool = True) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise StateError("a simulated target has no weights; expected an engine with `compute`")


class RecordedEnd(IncrementalDetokenizer):
    """Ends an answer after `length` tokens, which neither the engine nor its policy is told."""

    def __init__(self, length: int) -> None:
        super().__init__(lambda tokens: "")
        self._left = length

    def follow(self, prompt: Sequence[int]) -> None:
        """Nothing is decoded."""

    def add(self, token: int) -> bool:
        """Count a token; whether it was the last."""
        self._left -= 1
        if not self._left:
            self.stopped = ""
        return not self._left


class RecordedAnswers:
    """The `Compute` of a simulated engine: walks along the recorded answers, and advances the clock
    by what the step takes.

    traces  by the number of the request that answers as they did
    """

    def __init__(self, traces: Sequence[Trace], table: StepTable, clock: Clock) -> None:
        self._table, self._clock = table, clock
        self._prompts = np.array([len(trace.prompt) for trace in traces], np.int64)
        lengths = np.array([len(trace.output) for trace in traces], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._flat = np.concatenate([trace.output for trace in traces])
        self.step: Step | None = None
        """The last one."""
        self.committed = 0
        """Tokens that it made."""
        self.begun: dict[int, float] = {}
        """When each request was first in a step, by its number."""

    def __call__(self, step: Step, wants: Wants, laps: Timings) -> Outcome:
        if wants.topk or wants.hidden:
            raise InputError(
                "the drafter wants to see a model's output; recorded answers have none"
            )
        for turn in step.turns:
            self.begun.setdefault(turn.request.number, self._clock.now)
        self.step = step
        load, drafts = step.load, step.chosen.drafts
        counts = sizes_of(drafts.offsets)
        nodes = len(drafts.tokens)
        reads = load.keys + int(counts @ load.contexts) + nodes + load.other_reads
        seconds = self._table.seconds(
            len(load), len(load) + nodes, load.keys, reads, load.other_rows
        )
        self._clock.advance(seconds)
        laps.end("forward")
        verified = self._verified(step)
        self.committed = len(verified.verdicts.tokens)
        return Outcome(verified)

    def _verified(self, step: Step) -> Verified:
        drafts = step.chosen.drafts
        if not len(drafts):
            return Verified(VerdictBatch.of([]), {}, np.empty(0, np.int64))
        assert step.load.ids is not None
        ids = step.load.ids
        at = self._starts[ids] + step.load.contexts - self._prompts[ids]  # of the next token
        left = self._starts[ids + 1] - at
        path, lengths = _paths(drafts, self._flat, at, left)
        sizes = lengths + 1
        offsets = _offsets(sizes)
        places = np.arange(offsets[-1]) + np.repeat(at - offsets[:-1], sizes)
        batch = VerdictBatch._trusted(
            self._flat[places].astype(np.int32), offsets, path, _offsets(lengths)
        )
        return Verified(batch, {}, np.zeros(len(batch.tokens), np.int64))


def _paths(
    drafts: DraftBatch, flat: Int32s, at: NDArray[np.int64], left: NDArray[np.int64]
) -> tuple[Int32s, NDArray[np.int64]]:
    """The nodes of each draft that agree with the recorded answer from `at` on, and how many. One
    token is always the target's own, so with `left` tokens at most left - 1 nodes are accepted.
    """
    counts = sizes_of(drafts.offsets)
    if not len(drafts.tokens):
        return np.empty(0, np.int32), np.zeros(len(drafts), np.int64)
    owner = np.repeat(np.arange(len(drafts)), counts)
    depths = drafts.depths
    known = depths < left[owner]
    places = np.where(known, at[owner] + depths - 1, 0)
    agrees = np.append(known & (flat[places] == drafts.tokens), True).astype(np.int64)
    agrees = drafts.along_paths(agrees, np.minimum)[:-1].astype(bool)
    deepest = np.zeros(len(drafts), np.int64)
    np.maximum.at(deepest, owner[agrees], depths[agrees])
    nodes = np.flatnonzero(agrees)
    if len(nodes) != deepest.sum():  # equal siblings: the first of the deepest paths
        found = [
            walk(draft, flat[a : a + n - 1].tolist())
            for draft, a, n in zip(drafts, at.tolist(), left.tolist(), strict=True)
        ]
        path = np.array([node for each in found for node in each], np.int32)
        return path, np.array([len(each) for each in found], np.int64)
    return (nodes - drafts.offsets[owner[nodes]]).astype(np.int32), deepest


def _offsets(sizes: NDArray[np.int64]) -> Int32s:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


class ClockedDrafter:
    """A drafter whose drafts take simulated time: `seconds` for each request asked for."""

    def __init__(self, drafter: Drafter[Any], clock: Clock, seconds: float) -> None:
        self._drafter, self._clock, self._seconds = drafter, clock, seconds
        self.wants = drafter.wants
        self.finish = drafter.finish
        self.observe = drafter.observe
        groups = abilities_of(drafter).groups
        if groups is not None:
            self.drop_group, self.add_to_group = groups.drop_group, groups.add_to_group

    def begin(self, prompt: Int32s, /, **about: Any) -> Any:
        return self._drafter.begin(prompt, **about)

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> Sequence[Draft]:
        self._clock.advance(self._seconds * sum(budget > 0 for budget in budgets))
        return self._drafter.propose(states, budgets)


class _Known:
    def __init__(self, output: Int32s) -> None:
        self.output, self.done = output, 0


class OracleDrafter:
    """Drafts the recorded answers themselves: an upper bound for every drafter. A request is known
    by its seed, which is the index of its trace.
    """

    wants = Wants()

    def __init__(self, traces: Sequence[Trace]) -> None:
        self._traces = traces

    def begin(
        self, prompt: Int32s, /, *, sampling: SeededParams | None = None, **about: Any
    ) -> _Known:
        if sampling is None:
            raise InputError("sampling is None; expected the seed, by which the answer is known")
        return _Known(self._traces[sampling.seed].output)

    def propose(self, states: Sequence[_Known], budgets: Sequence[int], /) -> list[Draft]:
        return [
            Draft.chain(state.output[state.done : state.done + budget])
            for state, budget in zip(states, budgets, strict=True)
        ]

    def observe(self, states: Sequence[_Known], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            state.done += len(verdict.tokens)

    def finish(self, state: _Known, /) -> None:
        """Nothing is kept."""
