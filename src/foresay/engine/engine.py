"""The engine: many requests at once; each answer is exactly what it would be alone.

    step:  schedule, draft, forward, verify, commit

The engine knows no text and no tokenizer: tokens go in, tokens come out (an
`IncrementalDetokenizer` is given to it where there are stop strings). It has no threads: the caller
of `step` drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from torch import Tensor

from foresay.arrays import IntsLike, check_flag, check_positive
from foresay.budget.load import StepFacts
from foresay.budget.policy import Policy, Pricing, make_policy
from foresay.budget.selected import SelectedNodes
from foresay.drafter import Drafter, ExternalDraft, check_lengths
from foresay.engine.ahead import StepsAhead
from foresay.engine.compute import Compute, forward_and_verify
from foresay.engine.drafting import CheckedDrafter
from foresay.engine.groups import Groups
from foresay.engine.ledger import Ledger
from foresay.engine.logprobs import note_logprobs
from foresay.engine.measure import measured_cost
from foresay.engine.pages import PAGE, Pages
from foresay.engine.proposal import choice, that_fits
from foresay.engine.request import FinishReason, Request, check_names, new_request
from foresay.engine.scheduler import ScheduledRequest, Scheduler
from foresay.engine.step import (
    Outcome,
    Step,
    Timings,
    append_committed,
    keep_parts,
    load_of,
    parts_of,
    seconds_of,
    seen_by_drafter,
    until_texts_end,
)
from foresay.engine.structured import with_forms
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import ForesayError, InputError
from foresay.models.progress import Progress, silent
from foresay.models.target import KeepsTogether, Target, check_target
from foresay.sampling.acceptance.verdicts import cut
from foresay.sampling.params import SamplingParams
from foresay.structured.grammars import Grammars
from foresay.verdict import VerdictBatch

__all__ = ["Engine"]


class Engine:
    """Requests in, tokens out.

    target        the model
    drafter       the drafter; None: no drafts
    policy        how many drafted tokens are verified: a name of `budget.policy.POLICIES`, or a
                  Policy
    tokenizer_hash  of the target, if it is known: drafters of another tokenizer are refused
    memory        bytes that the keys and values of stored tokens may take; texts that grow own up
                  to twice what they store
    max_running   requests in one step
    max_rows      prompt tokens in one step
    grammars      of the target's tokenizer: for answers that are to have a form
    with_sources  note where each token was drafted from
    progress      called while steps are timed, which takes seconds
    compute       the forward pass and the verification of a step; None: by the target
    clock         the seconds by which steps are timed

    Raises: InputError when constructed.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter[Any] | None = None,
        *,
        policy: str | Policy = "adaptive",
        tokenizer_hash: bytes | None = None,
        memory: int = 4 << 30,
        max_running: int = 256,
        max_rows: int = 512,
        grammars: Grammars | None = None,
        with_sources: bool = False,
        progress: Progress = silent,
        compute: Compute | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        given = {"max_running": max_running, "max_rows": max_rows, "memory": memory}
        for name, value in given.items():
            check_positive(value, name)
        check_flag(with_sources, "with_sources")
        check_target(target)
        self.drafter = CheckedDrafter(
            drafter, target, tokenizer_hash=tokenizer_hash, with_sources=with_sources
        )
        pages = Pages.within(memory, target.bytes_per_token)
        self.target = target
        make_policy(policy)  # an invalid one is refused before the long work
        used = "none" if drafter is None else policy
        tokens = memory // target.bytes_per_token
        cost = measured_cost(target, progress, tokens=tokens) if used == "adaptive" else None
        self.policy = make_policy(used, cost)
        # A protocol is slow to check, and this is asked in every step.
        self._pricing = self.policy if isinstance(self.policy, Pricing) else None
        self.scheduler = Scheduler(target.open, pages, max_running=max_running, max_rows=max_rows)
        self.groups = Groups()
        self._grammars = grammars
        self._compute = forward_and_verify(target) if compute is None else compute
        # For drafts from outside requests wait, step by step.
        alone = compute is None and not self.drafter.takes_external_drafts
        self._ahead = StepsAhead(
            target, self.scheduler, self.policy, self.drafter, clock, enabled=alone
        )
        self._keeps_together = target if isinstance(target, KeepsTogether) else None
        self._ledger = Ledger()
        self._clock = clock
        self._added = 0
        self._mark = object()  # by which it knows its requests
        self._computed_with = target.version  # of the stored keys and values
        self.last_step: StepFacts | None = None  # None also after one that computed nothing
        self._unlearned: StepFacts | None = None  # what the policy was not told yet

    @property
    def busy(self) -> bool:
        """Whether there is anything to do: a request that is not paused."""
        return not self.scheduler.idle

    def add(
        self,
        prompt: IntsLike,
        params: SamplingParams | None = None,
        *,
        seed: int | None = None,
        stops: Sequence[int] = (),
        group: str | None = None,
        tenant: str | None = None,
        text: IncrementalDetokenizer | None = None,
        prompt_logprobs: int | None = None,
        together: bool = False,
    ) -> Request:
        """A new request, which waits to be admitted. It is one answer: `params.n` is ignored.

        seed    of its noise: by default that of the parameters, or a new one
        stops   token ids that end the answer: the model's own, unless they are to be ignored
        group   requests of one group draft from each other's answers
        tenant  requests share nothing with requests of other tenants
        text    finds the stop strings of `params.stop`; it is told of the prompt
        prompt_logprobs  note the log probabilities of the prompt's own tokens, and of this many
                likeliest beside each; for such a prompt the prefix cache is not used
        together  the caller needs this answer only when all such answers have ended: where only
                such requests run, drafts go first to the ones that will end last

        Raises: InputError for what cannot be answered; nothing has changed then.
        """
        memory = self.scheduler.pages.total * PAGE - 1
        whose = (group, tenant, text, prompt_logprobs, together, self._grammars)
        request = new_request(
            self._added, self._mark, self.target, memory, prompt, params, seed, stops, *whose
        )
        self._added += 1
        self.groups.join(request)
        self.scheduler.add(request)
        return request

    def cancel(self, *requests: Request) -> None:
        """End requests now; nothing happens to one that has ended.

        Mutates: the requests; their memory is free. Raises: InputError for a foreign request;
        nothing has changed then. An interrupt comes after all of them have ended.
        """
        for request in requests:
            self._check_own(request)
        try:
            self._cancel(requests)
        except BaseException:
            self._cancel(requests)
            raise
        self.drafter.warn()

    def _check_own(self, request: Request) -> None:
        if not isinstance(request, Request) or request.owner is not self._mark:
            raise InputError(f"{request!r} is not of this engine; expected its own requests")

    def _cancel(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.finished:
                self.scheduler.mend()  # ending it may have been interrupted
            else:
                self._finish(request, "cancelled")

    def add_external_draft(self, request: Request, draft: ExternalDraft) -> None:
        """Give the drafter a draft from outside, if it takes such: it can change the speed only.

        Raises: InputError for a foreign request.
        """
        self._check_own(request)
        if not request.finished:
            self.drafter.add_external_draft(request, draft)

    def pause(self, request: Request, paused: bool = True) -> None:
        """Let a request sit steps out until it is paused no more: while its next draft is on the
        way. An engine with none but paused requests is not `busy`.

        Raises: InputError for a foreign request.
        """
        self._check_own(request)
        check_flag(paused, "paused")
        request.paused = paused

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Let the drafter forget a group that gets no more members; the groups of `add_samples` end
        by themselves.

        Raises: InputError.
        """
        check_names(group, tenant)
        self.drafter.drop_group(group, tenant)
        self.drafter.warn()

    def replace_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Go on with other weights, by the names that the model gives them; weights that are not
        named stay. `version` counts up. What was computed with the old ones is gone: prefixes for
        good, and the texts of running requests are computed again. Their tokens stay.

        Mutates: the target, for all engines that share it; each notices by itself, before its next
        forward pass. Not while a step runs in another thread. Raises: as `Target.replace_weights`;
        nothing has changed then.
        """
        self.target.replace_weights(weights)

    @property
    def version(self) -> int:
        """How often the weights were replaced."""
        return self.target.version

    def step(self) -> list[Request]:
        """One pass of the model: the requests that got tokens or ended in it.

        Raises: what the model raises, before anything was committed. A request that fails ends with
        its error; the others go on. After an interrupt, cancel the running requests to free their
        memory.
        """
        laps = Timings(self._clock)
        self.last_step = None
        self._recompute_if_replaced()
        step, failed = self._ahead.take(), list[Request]()
        if step is None:
            turns, failed = self._begun(self.scheduler.schedule())
            laps.end("schedule")
            if not turns:
                return failed
            step = self._draft(turns)
            if self._recompute_if_replaced():  # by the drafter, or while it worked
                return failed
            step.parts = parts_of(step, self.target)
        laps.end("draft")
        step.meanwhile = self._catch_up
        outcome = self._ahead.outcome(step, laps) or self._compute(step, self.drafter.wants, laps)
        laps.end("verify")
        verdicts = self._commit(step, outcome)
        laps.end("commit")
        self._account(step, outcome, verdicts, laps)
        self.drafter.warn()
        return failed + step.decoding

    def _catch_up(self) -> None:
        """What the last step has left to be done while the device computes the next one."""
        self.drafter.catch_up()
        self._learn()

    def _learn(self) -> None:
        facts, self._unlearned = self._unlearned, None
        if facts is not None:
            self.policy.observe(facts)

    def _recompute_if_replaced(self) -> bool:
        """Whether the weights were replaced: what was computed with the old ones is dropped."""
        version = self.target.version
        if self._computed_with == version:
            return False
        self._ahead.drop()
        self.scheduler.recompute()
        self._computed_with = version
        return True

    def run(self) -> None:
        """Step until all requests have ended, or are paused. Raises: as `step`."""
        while self.busy:
            self.step()

    def check_integrity(self) -> None:
        """Check that memory is held by running requests and the prefix cache only.

        Valid until: the next call. Raises: RuntimeError that names the first violation.
        """
        self.scheduler.check_integrity()
        for request in self.scheduler.running:
            if request.kv is None or not 0 <= request.stored < len(request):
                raise RuntimeError(f"{request!r} has {request.stored} tokens stored")
            request.kv.check_integrity()

    def _begun(self, turns: list[ScheduledRequest]) -> tuple[list[ScheduledRequest], list[Request]]:
        """The turns of requests that the drafter has begun, and the requests that it refused."""
        refused: list[Request] = []
        if not self.drafter.active:
            return turns, refused
        for turn in turns:
            request = turn.request
            if turn.whole and not request.begun and (error := self.drafter.begin(request)):
                self._finish(request, "error", error)
                refused.append(request)
        return [turn for turn in turns if not turn.request.finished] if refused else turns, refused

    def _draft(self, turns: list[ScheduledRequest]) -> Step:
        """Ask for drafts, and choose the nodes that are verified."""
        decoding = [turn.request for turn in turns if turn.whole]
        waiting, probed = bool(self.scheduler.waiting), self._ahead.probes(turns)
        load = load_of(turns, waiting=waiting, probed=probed)
        budgets = self.policy.budgets(load) if self.drafter.active else [0] * len(decoding)
        check_lengths(len(decoding), len(budgets), "budgets of the policy")
        drafting = any(budgets)
        if drafting and True in [request.rejects for request in decoding]:
            # For drafts that may be sampled, memory is reserved before they are sampled: the size
            # of a draft can depend on its tokens (see `with_all_sampled`).
            asked = [n if r.rejects else 0 for r, n in zip(decoding, budgets, strict=True)]
            fits = self.scheduler.reserve(decoding, asked)
            budgets = [n if fit else 0 for n, fit in zip(budgets, fits, strict=True)]
            drafting = any(budgets)
        pricing = self._pricing if drafting and self.drafter.weighs else None
        if pricing is not None:
            self.drafter.price(*pricing.price(load))
        proposal = self.drafter.propose(decoding, budgets)
        if pricing is not None:
            pricing.spent(self.drafter.weighed_seconds())
        if not drafting:
            return Step(turns, decoding, load, SelectedNodes.nothing(len(decoding)), {})
        proposal = with_forms(decoding, proposal, budgets)
        chosen = that_fits(decoding, choice(proposal, self.policy, load), self.scheduler.reserve)
        probs, completion = proposal.probs_of(chosen), proposal.completion
        return Step(turns, decoding, load, chosen, probs, completion)

    def _commit(self, step: Step, outcome: Outcome) -> VerdictBatch:
        """Find stops, store keys and values, tell the drafter, and finish what has ended."""
        sizes, failures = until_texts_end(step, outcome.verified)
        note_logprobs(step.decoding, outcome.verified, outcome.logprobs, sizes)
        verified = cut(outcome.verified, sizes)
        began = self._clock()
        verdicts = seen_by_drafter(step, outcome, verified)  # here rows become nodes
        self.drafter.shown(outcome.showing + self._clock() - began)
        keep_parts(step, verified.verdicts, self._keeps_together)
        whole, told = verdicts, verdicts
        if step.completion is not None:
            whole, told = step.completion.numbered(verdicts)
        self.drafter.note_sources(step.decoding, whole)
        append_committed(step.decoding, verdicts)
        self.drafter.observe(step.decoding, told, later=outcome.overlaps)
        for at, request in enumerate(step.decoding):
            reason = "error" if at in failures else request.ending
            if reason is not None:
                self._finish(request, reason, failures.get(at))
        return verdicts

    def _account(self, step: Step, outcome: Outcome, verdicts: VerdictBatch, laps: Timings) -> None:
        """Add the step to the requests' statistics, and let the policy learn from it: while the
        device computes the next one, where it does so."""
        seconds, drafting = seconds_of(step, outcome, laps)
        self.last_step = StepFacts.of(step.load, step.chosen, verdicts, seconds, drafting)
        self._learn()  # of a step before, if nothing was computed since
        self._unlearned = self.last_step
        if not (outcome.overlaps and self.busy):
            self._learn()
        step.count(verdicts, laps, self._ledger)

    def _finish(
        self, request: Request, reason: FinishReason, error: ForesayError | None = None
    ) -> None:
        if request.answer is not None:
            with suppress(Exception):  # then the text is what could be decoded
                request.answer.finish()
            if request.answer.stopped is not None and reason == "length":
                reason = "stop"
        # The finish reason comes last: after an interrupt before it, this can be repeated.
        self.scheduler.release(request, cache=reason in ("stop", "length"))
        self.drafter.finish(request)
        if request.group is not None and self.groups.leave(request):
            self.drafter.drop_group(request.group, request.tenant)
            self.groups.close(request.tenant, request.group)
        request.matcher = None
        request.error, request.finish_reason = error, reason
