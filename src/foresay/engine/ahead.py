"""Asynchronous scheduling: a plain step is started before the step before it has been read.

While a device computes a step, the host does the rest of the one before. The next step needs of
that one only the tokens that were chosen, and these are on the device. So while nothing is drafted,
the device always has a step to compute:

    host      | start 2, read 1, commit 1 | start 3, read 2, commit 2 |
    device    |      1      |      2      |      3      |

Who ends in step 1 is in step 2 as well: its row is not read. Drafts need the text on the host, so
that a step with drafts, or after one, is started when the step before has been committed. Whether
they would be worth that is found out without waiting: while the device computes, the drafter is
asked for drafts that are not verified, probes (`budget.policy.ProbesDrafts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import sizes_of
from foresay.budget.load import Load
from foresay.budget.policy import Policy, ProbesDrafts
from foresay.budget.selected import SelectedNodes
from foresay.draft import DraftBatch
from foresay.engine.drafting import CheckedDrafter
from foresay.engine.request import Request
from foresay.engine.scheduler import ScheduledRequest, Scheduler
from foresay.engine.step import Outcome, Step, Timings, drafted_within, load_of
from foresay.models.parts import StepParts, keep_first_rows
from foresay.models.target import KeepsTogether, Outputs, RunsAhead, Target
from foresay.sampling.acceptance.match import chosen_on_device, followed
from foresay.sampling.acceptance.upload import Download, upload
from foresay.sampling.verification import VerificationBatch
from foresay.verdict import VerdictBatch

__all__ = ["StepsAhead"]


@dataclass(slots=True, eq=False)
class _Started:
    """A plain step that the device computes, as it was started. When it is taken, each request that
    still runs has all of its tokens stored but the last, which the step before has chosen.

    codes  of its rows, on the device: each row's token, or -1 - its status
    began  when it was started
    waits  whether the next step is started only when this one was committed: drafts seem to pay
    """

    step: Step
    codes: Tensor
    copy: Download
    began: float
    waits: bool = False


class StepsAhead:
    """Computes plain steps, and starts the step after each.

    target   does nothing unless it `RunsAhead`
    drafter  nothing is done for one that ever wants to see something
    clock    by which steps are timed
    enabled  whether it may do anything
    """

    def __init__(
        self,
        target: Target,
        scheduler: Scheduler,
        policy: Policy,
        drafter: CheckedDrafter,
        clock: Callable[[], float],
        *,
        enabled: bool,
    ) -> None:
        self.enabled = enabled and isinstance(target, RunsAhead) and drafter.sees_nothing
        self._policy, self._drafter = policy, drafter
        probes = self.enabled and drafter.looks_up and isinstance(policy, ProbesDrafts)
        self._probes: Any = policy if probes else None
        self._target: Any = target
        self._together = target if isinstance(target, KeepsTogether) else None
        self._scheduler = scheduler
        self._clock = clock
        self._read = clock()  # when the last step was read
        self._next: _Started | None = None

    def can_follow(self, turns: Sequence[ScheduledRequest]) -> bool:
        """Whether a step after these turns could be started before they have been read, if nothing
        was drafted in either."""
        return self.enabled and all(
            turn.whole and turn.tokens == 1 and turn.request.foreseeable for turn in turns
        )

    def probes(self, turns: Sequence[ScheduledRequest]) -> bool:
        """Whether drafts would be probed meanwhile."""
        return self._probes is not None and self._drafter.active and self.can_follow(turns)

    def drop(self) -> None:
        """Forget the step that was started: what it computes is not read."""
        self._next = None

    def take(self) -> Step | None:
        """The step that was started, with the requests that still want a token; None: schedule
        one."""
        started = self._next
        if started is None:
            return None
        turns = [turn for turn in started.step.turns if _wants(turn.request)]
        # An interrupt can have come before the step before was committed.
        if not turns or not all(_is_committed(turn.request) for turn in turns):
            self._next = None
            return None
        if len(turns) == len(started.step.turns):
            return started.step
        # The load stays: it is what the device computes.
        return self._step(turns, started.step.load)

    def outcome(self, step: Step, laps: Timings) -> Outcome | None:
        """Compute a step that was scheduled or taken, and start the next one if nothing is drafted
        in it. None for a step that is not plain; then nothing was done.

        Raises: what the target raises; the step can be taken again then.
        """
        started, self._next = self._next, None
        ahead = started is not None
        if not ahead and (len(step.chosen.flat) or not self.can_follow(step.turns)):
            return None
        asks = VerificationBatch([request.ask() for request in step.decoding])
        if started is None:
            started = self._started(step, lambda: self._target.forward(step.parts), asks)
        rows = None if step is started.step else _rows(started.step, step)
        if not started.waits:
            self._start_next(step, asks, started.codes, rows)
        laps.end("forward")
        step.meanwhile()
        laps.end("verify")
        probed = self._probe(step) if ahead else None  # else it was asked just now
        laps.end("draft")
        _ = asks.room, asks.stops  # made while the device computes
        codes = started.copy.values()
        began, self._read = max(started.began, self._read), self._clock()
        chosen = step.chosen.drafts
        verified = followed(codes if rows is None else codes[rows], chosen, asks)
        if probed is not None:
            self._learn(*probed, verified.verdicts)
        return Outcome(verified, overlaps=True, ahead=ahead, seconds=self._read - began)

    def _start_next(
        self,
        step: Step,
        asks: VerificationBatch,
        codes: Tensor,
        rows: NDArray[np.int64] | None,
    ) -> None:
        """Start the step after `step`, if it has the same requests. Then the texts store the tokens
        of `step`.

        codes, rows  what was chosen; which of them is whose, None: they are in order
        """
        requests = step.decoding
        if not self._scheduler.hold_next(requests):
            return
        lengths = np.array([request.length for request in requests], np.int64) + 1
        left = np.array([request.most for request in requests], np.int64) - lengths
        if not left.any():
            return
        load = replace(
            step.load,
            contexts=lengths,
            # Who ends in `step` is computed once more.
            tokens_left=drafted_within(requests, np.maximum(left, 1)),
            ids=np.array([request.number for request in requests], np.int64),
            tenants=[request.tenant for request in requests],
            weights=None,  # nothing is chosen by them
        )
        if not self._goes_on(load):
            return
        keep_first_rows([one.kv for one in requests if one.kv is not None], self._together)
        step.stored = True
        following = self._step(step.turns, load)
        if rows is not None:
            codes = codes[upload({"rows": rows}, codes.device)["rows"]]
        forward = self._target.forward_next
        try:
            self._next = self._started(
                following, lambda: forward(following.parts, codes), asks.a_token_on()
            )
        except MemoryError:  # there is no page for the next token of a text
            return

    def _goes_on(self, load: Load) -> bool:
        """Whether a step with this load may be started without drafts."""
        if not self._drafter.active:
            return True
        if self._probes is None:
            return not any(self._policy.budgets(load))
        goes_on: bool = self._probes.runs_ahead(load)
        return goes_on

    def _started(
        self, step: Step, forward: Callable[[], Outputs], asks: VerificationBatch
    ) -> _Started:
        logits = forward().logits
        with torch.inference_mode():
            codes = chosen_on_device(step.chosen.drafts, logits, asks)
            return _Started(step, codes, Download(codes), self._clock())

    def _step(self, turns: Sequence[ScheduledRequest], load: Load) -> Step:
        """Of texts of which the last token is not known on the host."""
        requests = [turn.request for turn in turns]
        nothing = SelectedNodes.nothing(len(requests))
        kvs = [request.kv for request in requests if request.kv is not None]
        stored = np.array([kv.length for kv in kvs], np.int32)
        step = Step(list(turns), requests, load, nothing, {})
        last = np.zeros(len(kvs), np.int32)
        step.parts = StepParts.decoding(self._target, kvs, last, nothing.drafts, stored)
        return step

    def _probe(self, step: Step) -> tuple[Load, DraftBatch] | None:
        """Ask for drafts after the texts as they are known: of what the device computes now."""
        if self._next is None or not self.probes(step.turns):
            return None
        load = load_of(step.turns, waiting=bool(self._scheduler.waiting), probed=True)
        budgets = self._probes.probe_budgets(load)
        if not any(budgets):
            return None
        drafts = self._drafter.propose(step.decoding, budgets).drafts
        self._next.waits = self._probes.probe_pays(drafts, load)
        return load, drafts

    def _learn(self, load: Load, drafts: DraftBatch, verdicts: VerdictBatch) -> None:
        """Which of the probes' first tokens came."""
        firsts = SelectedNodes(drafts, drafts.parents < 0).drafts
        sizes = sizes_of(firsts.offsets)
        chosen = np.full(len(sizes), -1, np.int32)
        chosen[sizes_of(verdicts.offsets) > 0] = verdicts.tokens
        self._probes.observe_probe(firsts, firsts.tokens == chosen.repeat(sizes), load)


def _wants(request: Request) -> bool:
    """Whether it runs and still wants a token."""
    return request.kv is not None and not (request.finished or request.paused)


def _is_committed(request: Request) -> bool:
    """Whether it has the token of the step before: all tokens but that one are stored."""
    return request.kv is not None and request.kv.length + 1 == request.length


def _rows(whole: Step, part: Step) -> NDArray[np.int64]:
    """The rows of the requests that are left."""
    places = {request.number: at for at, request in enumerate(whole.decoding)}
    return np.array([places[request.number] for request in part.decoding], np.int64)
