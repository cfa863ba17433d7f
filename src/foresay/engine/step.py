"""The state of one step of the engine, and the parts of a step that need no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import Floats, Int32s, offsets_of, sizes_of
from foresay.budget.load import Load
from foresay.budget.selected import SelectedNodes
from foresay.budget.urgency import urgency
from foresay.draft import DraftBatch
from foresay.engine.ledger import PHASES, Ledger
from foresay.engine.proposal import Completion
from foresay.engine.request import Request
from foresay.engine.scheduler import ScheduledRequest
from foresay.errors import ForesayError, InputError
from foresay.models.parts import StepParts
from foresay.models.target import KeepsTogether, Target
from foresay.sampling.acceptance.upload import download, upload
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.logprobs import Logprobs
from foresay.structured.matcher import GrammarMatcher
from foresay.verdict import TopK, VerdictBatch

__all__ = [
    "Outcome",
    "Step",
    "Timings",
    "append_committed",
    "drafted_within",
    "keep_parts",
    "load_of",
    "parts_of",
    "seconds_of",
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
    completion: Completion | None = None
    """How the forms of answers have changed the drafts."""
    parts: StepParts = field(init=False)
    """The inputs of the model, one for each turn."""
    meanwhile: Callable[[], None] = lambda: None
    """What can be done while a device computes the step."""
    stored: bool = False
    """Whether the keys and values of its texts' tokens are stored already."""

    def count(self, verdicts: VerdictBatch, laps: Timings, ledger: Ledger) -> None:
        """Add the step to the statistics of its requests."""
        shares = {phase: lap / len(self.turns) for phase, lap in laps.seconds.items()}
        if len(self.decoding) < len(self.turns):
            for turn in self.turns:
                if not turn.whole:
                    spent = turn.request.counted.seconds
                    for phase, share in shares.items():
                        spent[phase] += share
        drafted = sizes_of(self.chosen.drafts.offsets)
        ledger.note(self.decoding, shares, drafted, sizes_of(verdicts.path_offsets))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a step's computation found.

    verified  the verdicts on the drafts of `step.decoding`
    logprobs  of the verdicts' tokens, if one of the requests wants them
    topk      the likeliest tokens after each row of `decoding`, if the drafter wants them
    hidden    the last hidden states of all rows, if the drafter wants them
    showing   seconds that finding `topk` took
    overlaps  whether a forward pass returns before the device has computed it
    ahead     whether the step was started before the one before it was read
    seconds   from its start, or from reading the step before if that is later, until it was read;
              None: what its phases took
    """

    verified: Verified
    logprobs: Logprobs | None = None
    topk: TopK | None = None
    hidden: Tensor | None = None
    showing: float = 0.0
    overlaps: bool = False
    ahead: bool = False
    seconds: float | None = None


class Timings:
    """How long each phase took, by a clock."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.clock = clock
        self._begin = clock()

    def end(self, phase: str) -> None:
        now = self.clock()
        self.seconds[phase] += now - self._begin
        self._begin = now


def parts_of(step: Step, target: Target) -> StepParts:
    """Each request's part of the forward pass."""
    turns, drafts = step.turns, step.chosen.drafts
    requests = step.decoding
    if len(requests) == len(turns) and not step.load.other_rows:  # all of them decode
        kvs = [kv for r in requests if (kv := r.kv) is not None]
        last = np.array([r.last for r in requests], np.int32)
        before = step.load.contexts.astype(np.int32) - 1
        return StepParts.decoding(target, kvs, last, drafts, before)
    requests = [turn.request for turn in turns]
    whole = np.array([turn.whole for turn in turns])
    sizes = [turn.tokens for turn in turns]
    stored = [r.stored for r in requests]
    pairs = list(zip(requests, sizes, strict=True))
    prefill = [min(size, r.prefill_left) for r, size in pairs]
    logits = [
        min(given, max(before + given + 1 - r.prompt_logprobs_done, 0))
        for r, given, before in zip(requests, prefill, stored, strict=True)
    ]
    return StepParts(
        target,
        [r.kv for r in requests if r.kv is not None],
        np.concatenate([r.pending[:size] for r, size in pairs]),
        offsets_of(sizes),
        _for_all(drafts, whole),
        needs_logits=whole,
        prefill=np.array(prefill, np.int32),
        prefill_logits=np.array(logits, np.int32),
        stored=np.array(stored, np.int32),
    )


def _for_all(drafts: DraftBatch, whole: NDArray[np.bool_]) -> DraftBatch:
    """The drafts of the turns that are `whole`, with an empty one for each of the others."""
    counts = np.zeros(len(whole), np.int32)
    counts[whole] = sizes_of(drafts.offsets)
    offsets = offsets_of(counts.tolist())
    return DraftBatch._trusted(drafts.tokens, drafts.parents, offsets, drafts.scores)


def keep_parts(step: Step, verdicts: VerdictBatch, together: KeepsTogether | None) -> None:
    """Store what was committed of each text."""
    parts = step.parts
    if step.stored:
        return
    if len(verdicts) < len(parts):  # some are prefilled only
        whole = np.array([turn.whole for turn in step.turns])
        lengths = np.zeros(len(parts), np.int32)
        lengths[whole] = sizes_of(verdicts.path_offsets)
        offsets = offsets_of(lengths.tolist())
        verdicts = VerdictBatch._trusted(verdicts.tokens, offsets, verdicts.path, offsets)
    parts.keep(verdicts, together)


def append_committed(requests: Sequence[Request], verdicts: VerdictBatch) -> None:
    """Add each verdict's tokens to the text of its request, and a step to its statistics."""
    tokens, bounds = verdicts.tokens, verdicts.offsets.tolist()
    listed = tokens.tolist()
    begin = 0
    for request, end in zip(requests, bounds[1:], strict=True):
        if end - begin == 1:
            request.append_one(listed[begin])
        elif end > begin:
            request.append(tokens[begin:end])
        request.counted.steps += 1
        begin = end


def until_texts_end(
    step: Step, verified: Verified
) -> tuple[NDArray[np.int64], dict[int, ForesayError]]:
    """How many of each request's tokens there are up to a stop string or the end of the form, and
    which requests fail, also because their tokens cannot be decoded. Texts and matchers advance.
    """
    failures = dict(verified.failures)
    sizes = sizes_of(verified.verdicts.offsets).astype(np.int64)
    for at, request in enumerate(step.decoding):
        if request.matcher is not None and sizes[at]:
            try:
                sizes[at] = _within_form(request.matcher, verified.verdicts[at].tokens.tolist())
            except InputError as error:
                failures[at], sizes[at] = error, 0
    texts = [request.answer for request in step.decoding]
    if texts.count(None) == len(texts):
        return sizes, failures
    for at, text in enumerate(texts):
        if text is None:
            continue
        request = step.decoding[at]
        for count, token in enumerate(verified.verdicts[at].tokens[: sizes[at]].tolist(), 1):
            try:
                ends = token not in request.stops and text.add(token)
            except Exception as error:  # of `decode`
                failures[at] = InputError(f"the answer's tokens cannot be decoded: {error!r}")
                sizes[at] = 0
                break
            if ends:
                sizes[at] = count
                break
    return sizes, failures


def seconds_of(step: Step, outcome: Outcome, laps: Timings) -> tuple[float, float]:
    """What the step took, and what drafting took beside it: all that the device would not have
    waited for without drafts, because plain steps are started before the one before is read."""
    took = laps.seconds
    seconds = outcome.seconds or took["verify"]
    drafting = 0.0 if outcome.ahead else took["draft"]
    if not outcome.overlaps:
        seconds += took["forward"]
    elif not outcome.ahead:  # until the host has started the step
        drafting += took["forward"]
    if step.load.probed and not outcome.ahead:
        drafting += took["schedule"] + took["commit"]
    return seconds, drafting


def _within_form(matcher: GrammarMatcher, tokens: list[int]) -> int:
    """How many of the tokens there are up to the end of the form, or to one that the matcher cannot
    follow: the next step begins with that, as it would without drafts.

    Raises: as the matcher, and InputError for a token that it forbids, if that is the first one.
    """
    with suppress(InputError):
        if matcher.stops.isdisjoint(tokens) and matcher.follow(tokens):
            matcher.settle()
            return len(tokens)
    for count, token in enumerate(tokens, 1):
        if token in matcher.stops:
            return count
        try:
            if not matcher.advance(token):
                said = f"token {token} was chosen; the form of the answer does not allow it"
                raise InputError(said)
        except InputError:
            if count == 1:
                raise
            return count - 1
        if matcher.complete:
            return count
    return len(tokens)


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


def load_of(turns: Sequence[ScheduledRequest], *, waiting: bool, probed: bool = False) -> Load:
    """The load of a step with these turns. Of a text's new tokens only the last one counts as its
    own row; those before it are rows of a prompt.

    Where the caller waits for several answers together, tokens count by the chance that their
    request ends last; not while others are `waiting`: they could be admitted after any end.
    """
    decoding = [turn.request for turn in turns if turn.whole]
    rows = reads = 0
    new = sum([turn.tokens for turn in turns])
    if new > len(decoding):
        for turn in turns:
            others = turn.tokens - turn.whole
            if others:
                rows += others
                reads += others * (turn.request.stored + (others + 1) // 2)
    contexts = np.array([request.length for request in decoding], np.int64)
    tokens_left = np.array([request.most for request in decoding], np.int64) - contexts
    weights = None
    if len(decoding) > 1 and not waiting and all(request.together for request in decoding):
        stats = [request.counted for request in decoding]
        weights = urgency(tokens_left, [s.tokens for s in stats], [s.steps for s in stats])
    return Load(
        contexts=contexts,
        tokens_left=drafted_within(decoding, tokens_left),
        other_rows=rows,
        other_reads=reads,
        ids=np.array([request.number for request in decoding], np.int64),
        weights=weights,
        tenants=[request.tenant for request in decoding],
        probed=probed,
    )


def drafted_within(requests: Sequence[Request], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """The tokens within which drafts are of use, of those that are `left` to each answer: one, the
    target's own, where there are to be no drafts."""
    drafting = [request.params.speculative for request in requests]
    return left if all(drafting) else np.where(drafting, left, 1)
