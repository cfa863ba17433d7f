"""The state of one step of the engine, and the parts of a step that need no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import Floats, Int32s, sizes_of
from foresay.budget.load import Load
from foresay.budget.selected import SelectedNodes
from foresay.budget.urgency import urgency
from foresay.engine.request import Request
from foresay.engine.scheduler import ScheduledRequest
from foresay.errors import ForesayError, InputError
from foresay.models.target import SequenceInput, Target
from foresay.sampling.acceptance.upload import download, upload
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.logprobs import Logprobs
from foresay.verdict import TopK, VerdictBatch

__all__ = [
    "Outcome",
    "Step",
    "Timings",
    "load_of",
    "parts_of",
    "seen_by_drafter",
    "until_texts_end",
]


@dataclass(slots=True)
class Step:
    """One step, filled in as it goes."""

    turns: list[ScheduledRequest]
    decoding: list[Request]
    """Requests whose next token is chosen in this step, in the order of the turns."""
    load: Load
    chosen: SelectedNodes
    """The drafted nodes that are verified, one draft for each request in `decoding`."""
    draft_probs: dict[int, Floats]
    """What drafted tokens were sampled from under rule rejection, by index in `decoding`."""
    parts: list[SequenceInput] = field(default_factory=list)
    """The inputs of the model, one for each turn."""

    def count(self, verdicts: VerdictBatch, laps: Timings) -> None:
        """Add the step to the statistics of its requests."""
        for turn in self.turns:
            spent = turn.request.stats.seconds
            for phase, lap in laps.seconds.items():
                spent[phase] += lap / len(self.turns)
        drafted = sizes_of(self.chosen.drafts.offsets)
        accepted = sizes_of(verdicts.path_offsets)
        for at, request in enumerate(self.decoding):
            request.stats.steps += 1
            request.stats.drafted += int(drafted[at])
            request.stats.accepted += int(accepted[at])


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a step's computation found.

    verified  the verdicts on the drafts of `step.decoding`
    logprobs  of the verdicts' tokens, if one of the requests wants them
    topk      the likeliest tokens after each row of `decoding`, if the drafter wants them
    hidden    the last hidden states of all rows, if the drafter wants them
    showing   seconds that finding `topk` took
    """

    verified: Verified
    logprobs: Logprobs | None = None
    topk: TopK | None = None
    hidden: Tensor | None = None
    showing: float = 0.0


class Timings:
    """How long each phase took, by a clock."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds: dict[str, float] = {}
        self.clock = clock
        self._begin = clock()

    def end(self, phase: str) -> None:
        now = self.clock()
        self.seconds[phase] = now - self._begin
        self._begin = now


def parts_of(step: Step, target: Target) -> list[SequenceInput]:
    """Each request's part of the forward pass."""
    drafts = iter(step.chosen.drafts)
    return [
        SequenceInput.of(
            target,
            r.kv,
            r.pending[: turn.tokens],
            next(drafts) if turn.whole else None,
            needs_logits=turn.whole,
            prefill=(prefill := min(turn.tokens, r.prefill_left)),
            prefill_logits=min(prefill, max(r.stored + prefill + 1 - r.prompt_logprobs_done, 0)),
        )
        for turn in step.turns
        if (r := turn.request).kv is not None
    ]


def until_texts_end(
    step: Step, verified: Verified
) -> tuple[NDArray[np.int64], dict[int, ForesayError]]:
    """How many of each request's tokens there are up to a stop string, and which requests fail,
    also because their tokens cannot be decoded. The texts grow.
    """
    failures = dict(verified.failures)
    sizes = sizes_of(verified.verdicts.offsets).astype(np.int64)
    for at, request in enumerate(step.decoding):
        if request.answer is None:
            continue
        for count, token in enumerate(verified.verdicts[at].tokens.tolist(), 1):
            try:
                ends = token not in request.stops and request.answer.add(token)
            except Exception as error:  # of `decode`
                failures[at] = InputError(f"the answer's tokens cannot be decoded: {error!r}")
                sizes[at] = 0
                break
            if ends:
                sizes[at] = count
                break
    return sizes, failures


def seen_by_drafter(step: Step, outcome: Outcome, verified: Verified) -> VerdictBatch:
    """The verdicts that are left of the outcome's, with what the drafter wants to see, on the nodes
    of the proposal."""
    found, states, hidden = verified.verdicts, outcome.hidden, None
    rows: Int32s | None = None
    if outcome.topk is not None:  # each draft has one row more than it has nodes
        rows = step.chosen.drafts.offsets + np.arange(len(found) + 1).astype(np.int32)
    if states is not None:
        if states.dtype == torch.float32 and states.device.type == "cpu":
            hidden = states.numpy()[verified.rows]  # a copy, sooner than torch makes one
        else:
            at = upload({"rows": verified.rows}, states.device)["rows"]
            # Wider than bfloat16, which numpy has not, and the same numbers.
            hidden = download(states[at].float())
    own = found.tokens, found.offsets, found.path, found.path_offsets
    return step.chosen.numbered(VerdictBatch._trusted(*own, outcome.topk, rows, hidden))


def load_of(turns: Sequence[ScheduledRequest], *, requests_wait: bool) -> Load:
    """The load of a step with these turns. Of a text's new tokens only the last one counts as its
    own row; those before it are rows of a prompt.

    Where the caller waits for several answers together, tokens count by the chance that their
    request ends last; not while `requests_wait`: they could be admitted after any end.
    """
    rows = reads = 0
    for turn in turns:
        others = turn.tokens - turn.whole
        rows += others
        reads += others * (turn.request.stored + (others + 1) // 2)
    decoding = [turn.request for turn in turns if turn.whole]
    tokens_left = np.array([request.tokens_left for request in decoding], np.int64)
    weights = None
    if len(decoding) > 1 and not requests_wait and all(request.together for request in decoding):
        stats = [request.stats for request in decoding]
        weights = urgency(tokens_left, [s.tokens for s in stats], [s.steps for s in stats])
    return Load(
        contexts=np.array([len(request) for request in decoding], np.int64),
        tokens_left=tokens_left,
        other_rows=rows,
        other_reads=reads,
        ids=np.array([request.number for request in decoding], np.int64),
        weights=weights,
        tenants=[request.tenant for request in decoding],
    )
