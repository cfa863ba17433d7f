"""Asynchronous scheduling: a plain step is started before the step before it has been read.

While a device computes a step, the host does the rest of the one before. The next step needs of
that one only the tokens that were chosen, and these are on the device. So where nothing is drafted,
the device always has a step to compute:

    host      | start 2, read 1, commit 1 | start 3, read 2, commit 2 |
    device    |      1      |      2      |      3      |

Who ends in step 1 is in step 2 as well: its row is not read. Drafts need the text on the host, so
that a step with drafts, or after one, is started when the step before has been committed. Whether
they would be worth that is known without trying: while the device computes, the drafter is asked,
and what it says is looked at (`budget.policy.LooksAhead`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import sizes_of
from foresay.budget.load import Load
from foresay.budget.policy import LooksAhead, Policy
from foresay.budget.selected import SelectedNodes
from foresay.draft import DraftBatch
from foresay.engine.drafting import CheckedDrafter
from foresay.engine.request import Request
from foresay.engine.scheduler import Scheduler
from foresay.engine.step import Outcome, Step, Timings, load_of
from foresay.models.parts import StepParts, keep_first_rows
from foresay.models.target import KeepsTogether, RunsAhead, Target
from foresay.sampling.acceptance.inputs import best_for
from foresay.sampling.acceptance.match import chosen_on_device, followed
from foresay.sampling.acceptance.upload import Download, upload
from foresay.sampling.verification import VerificationBatch
from foresay.verdict import VerdictBatch, Wants

__all__ = ["StepsAhead"]


@dataclass(slots=True, eq=False)
class _Started:
    """A plain step that the device computes.

    step     its requests: those that are left of the ones whose rows are computed
    codes    of all rows, on the device: each row's token, or -1 - its status
    started  when it was started
    rows     the rows of the step's requests; None: they have all of them
    """

    step: Step
    codes: Tensor
    copy: Download
    started: float
    rows: NDArray[np.int64] | None = None


class StepsAhead:
    """Computes plain steps, and starts the step after each.

    target   does nothing unless it `RunsAhead`
    clock    by which steps are timed
    enabled  whether it may do anything; looks, whether drafts are looked at meanwhile
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
        self.enabled = enabled and isinstance(target, RunsAhead)
        self._policy, self._drafter = policy, drafter
        looks = self.enabled and drafter.looks_up and isinstance(policy, LooksAhead)
        self._looks: Any = policy if looks else None
        self._pays = False  # drafts, by what was looked at
        self._target: Any = target
        self._together = target if isinstance(target, KeepsTogether) else None
        self._scheduler = scheduler
        self._clock = clock
        self._read = clock()  # when the last step was read
        self._next: _Started | None = None

    @property
    def looks(self) -> bool:
        return self._looks is not None and self._drafter.active

    def drop(self) -> None:
        """Forget the step that was started: what it computes is not read."""
        self._next = None

    def take(self) -> Step | None:
        """The step that was started, with the requests that still want a token; None: schedule
        one."""
        started = self._next
        if started is None:
            return None
        step = started.step
        if not all(map(_is_committed, step.decoding)):  # an interrupt came before
            self._next = None
            return None
        wanting = [not (one.finished or one.paused) for one in step.decoding]
        if all(wanting):
            return step
        rows = np.flatnonzero(wanting)
        if not len(rows):
            self._next = None
            return None
        turns = [step.turns[at] for at in rows]
        # The load stays: it is what the device computes.
        requests, nothing = [turn.request for turn in turns], SelectedNodes.nothing(len(rows))
        started.step, started.rows = Step(turns, requests, step.load, nothing, {}), rows
        started.step.parts = self._parts(requests)
        return started.step

    def outcome(self, step: Step, wants: Wants, laps: Timings) -> Outcome | None:
        """Compute a step, and start the next one if nothing is drafted in it. None for a step that
        is not plain; then nothing was done.

        Raises: what the target raises; the step can be taken again then.
        """
        started, self._next = self._next, None
        if started is None:
            if not self.enabled or wants != Wants() or not _is_plain(step):
                return None
            started = self._started(step, self._target.forward(step.parts).logits, _asks(step))
        if not self._pays:
            self._start_next(started)
        self._pays = False
        laps.end("forward")
        step.meanwhile()
        looked = self._look(step)
        outcome = self._outcome_of(started)
        if looked is not None:
            self._learn(*looked, outcome.verified.verdicts)
        return outcome

    def _look(self, step: Step) -> tuple[Load, DraftBatch] | None:
        """Ask for drafts after the texts as they are known. They are for the step that runs: were
        they worth verifying, the ones for the next but one will be."""
        if self._next is None or not self.looks:
            return None
        load = load_of(step.turns, waiting=bool(self._scheduler.waiting), overlaps=True)
        budgets = self._looks.looks(load)
        if not any(budgets):
            return None
        drafts = self._drafter.propose(step.decoding, budgets).drafts
        self._pays = self._looks.pays(drafts, load)
        return load, drafts

    def _learn(self, load: Load, drafts: DraftBatch, verdicts: VerdictBatch) -> None:
        """Which of the drafts' first tokens came."""
        firsts = SelectedNodes(drafts, drafts.parents < 0).drafts
        sizes = sizes_of(firsts.offsets)
        chosen = np.full(len(sizes), -1, np.int32)
        whole = sizes_of(verdicts.offsets) > 0
        chosen[whole] = verdicts.tokens
        self._looks.saw(firsts, firsts.tokens == chosen.repeat(sizes), load)

    def _start_next(self, before: _Started) -> None:
        """Start the step after `before`, if it has the same requests. Then the texts store the
        tokens of `before`."""
        step, requests = before.step, before.step.decoding
        if not self._scheduler.continues(requests):
            return
        lengths = np.array([request.length for request in requests], np.int64) + 1
        load = replace(
            step.load,
            contexts=lengths,
            tokens_left=np.array([request.most for request in requests], np.int64) - lengths,
            ids=np.array([request.number for request in requests], np.int64),
            tenants=[request.tenant for request in requests],
            weights=None,
        )
        if not load.tokens_left.any() or not self._goes_ahead(load):
            return
        keep_first_rows([one.kv for one in requests if one.kv is not None], self._together)
        step.stored = True
        following = Step(step.turns, requests, load, SelectedNodes.nothing(len(requests)), {})
        following.parts = self._parts(requests)
        tokens = before.codes
        if before.rows is not None:
            tokens = tokens[upload({"rows": before.rows}, tokens.device)["rows"]]
        try:
            logits = self._target.forward_next(following.parts, tokens).logits
        except MemoryError:  # there is no page for the next token of a text
            return
        self._next = self._started(following, logits, _asks(step).a_token_on())

    def _goes_ahead(self, load: Load) -> bool:
        if not self._drafter.active:
            return True
        if self._looks is None:
            return not any(self._policy.budgets(load))
        goes: bool = self._looks.goes_ahead(load)
        return goes

    def _started(self, step: Step, logits: Tensor, asks: VerificationBatch) -> _Started:
        kernel: Any = "torch" if logits.device.type == "cpu" else best_for(logits)
        with torch.inference_mode():
            codes = chosen_on_device(step.chosen.drafts, logits, asks, kernel)
            return _Started(step, codes, Download(codes), self._clock())

    def _outcome_of(self, started: _Started) -> Outcome:
        """What was chosen, once it is there. The step before is committed."""
        asks = _asks(started.step)  # made while the device computes
        codes = started.copy.values()
        if started.rows is not None:
            codes = codes[started.rows]
        began, self._read = max(started.started, self._read), self._clock()
        verified = followed(codes, started.step.chosen.drafts, asks)
        return Outcome(verified, overlaps=True, seconds=self._read - began)

    def _parts(self, requests: list[Request]) -> StepParts:
        """Of texts of which the last token is not known on the host."""
        kvs = [request.kv for request in requests if request.kv is not None]
        stored = np.array([kv.length for kv in kvs], np.int32)
        nothing = SelectedNodes.nothing(len(kvs)).drafts
        return StepParts.decoding(self._target, kvs, np.zeros(len(kvs), np.int32), nothing, stored)


def _is_committed(request: Request) -> bool:
    """Whether it has the token of the step that was read last: all but that one are stored."""
    return request.kv is None or request.kv.length + 1 == request.length


def _is_plain(step: Step) -> bool:
    """Whether the step after it needs nothing of it but the tokens that are chosen."""
    if len(step.decoding) < len(step.turns) or step.load.other_rows or len(step.chosen.flat):
        return False
    return all(request.foreseeable for request in step.decoding)


def _asks(step: Step) -> VerificationBatch:
    return VerificationBatch([request.ask() for request in step.decoding])
