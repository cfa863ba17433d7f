"""Asks the drafter and checks its answers: a faulty drafter costs its drafts and nothing else.

A drafter that raises where it must not, or returns invalid drafts, is not asked again. The engine
goes on without drafts and warns once.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import gt
from typing import Any, TypeVar

import numpy as np

from foresay.abilities import Abilities, abilities_of
from foresay.arrays import Floats, Int32s, all_of, sizes_of
from foresay.budget.selected import SelectedNodes
from foresay.draft import Draft, DraftBatch
from foresay.drafter import Drafter, ExternalDraft, SeededParams, Source, check_lengths
from foresay.engine.proposal import Proposal, check_probs
from foresay.engine.request import Request
from foresay.errors import CorpusError, ForesayError, InputError, StateError, UnknownGroup
from foresay.models.target import Target
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["CheckedDrafter"]

T = TypeVar("T")
_WAITING = 64  # drafts from outside that wait for a request to begin


class CheckedDrafter:
    """A drafter whose answers are checked.

    drafter       None: no drafts
    target        drafted tokens outside of its vocabulary are dropped; drafters may share its keys
                  and values
    tokenizer_hash  of the target's tokenizer, if it is known: a drafter of another one refuses
    with_sources  whether to ask where drafted tokens came from

    Mutates: the drafter, which is told of the target here, and the requests' drafter states.
    Raises: InputError, TokenizerMismatch when constructed with what is no drafter, one that cannot
    draft for the target, or one that wants to see what the target does not have.
    """

    def __init__(
        self,
        drafter: Drafter[Any] | None,
        target: Target,
        *,
        tokenizer_hash: bytes | None = None,
        with_sources: bool = False,
    ) -> None:
        self._able = abilities_of(drafter)
        if self._able.fits is not None:
            self._able.fits.fit(target, tokenizer_hash)
        if drafter is not None:
            _check_layers(drafter.wants, target.depth)
        if drafter is not None and drafter.wants.topk > target.vocabulary:
            raise InputError(
                f"the drafter wants the {drafter.wants.topk} likeliest tokens; expected at most "
                f"{target.vocabulary}, the vocabulary"
            )
        self._drafter = drafter
        self._failure: Exception | None = None  # of which nobody was warned yet
        self._wants = Wants() if drafter is None else drafter.wants
        self._target = target
        self._vocabulary = target.vocabulary
        self._with_sources = with_sources and self._able.sources is not None
        self._open: set[int] = set()  # requests with a proposal that was not observed yet
        self._untold: tuple[list[Any], VerdictBatch] | None = None  # what `catch_up` will tell

    @property
    def active(self) -> bool:
        """Whether there is a drafter to ask."""
        return self._drafter is not None

    @property
    def wants(self) -> Wants:
        """What the drafter wants to see of the next step; nothing without a drafter."""
        chooses = self._able.chooses_wants
        wants = self._wants if chooses is None else self._tell(chooses.wants_now)
        if self._drafter is None:
            return Wants()
        if wants is not self._wants and not _is_part(wants, self._wants):
            self._give_up(InputError(f"wants_now() is {wants!r}; expected a part of {self._wants}"))
            return Wants()
        assert wants is not None
        return wants

    @property
    def sees_nothing(self) -> bool:
        """Whether the drafter never wants to see anything of a step."""
        return self._wants == Wants()

    def shown(self, seconds: float) -> None:
        """Tell a drafter that wants to know how long finding what it wants to see took."""
        if self._able.chooses_wants is not None:
            self._tell(self._able.chooses_wants.shown, seconds)

    def begin(self, request: Request) -> ForesayError | None:
        """Begin a request, if it has not begun; returns the error if the drafter refuses it.

        Valid until: `finish`.
        """
        if request.begun:
            return None
        self.catch_up()
        if self._drafter is None:
            return None
        begin = self._drafter.begin
        try:
            request.state = begin(
                request.tokens.copy(),
                group=request.group,
                tenant=request.tenant,
                sampling=SeededParams(request.params, request.seed).copy(),
            )
            request.begun = True
            waiting, request.external_drafts = request.external_drafts, []
            for draft in waiting:
                self.add_external_draft(request, draft)
        except (StateError, CorpusError) as error:  # of the drafter, not of this request
            self._give_up(error)
        except ForesayError as error:
            return error
        except Exception as error:
            self._give_up(error)
        return None

    def add_external_draft(self, request: Request, draft: ExternalDraft) -> None:
        """Pass on a draft from outside, if the drafter takes such; at the latest when the request
        begins."""
        external = self._able.external
        if external is not None and request.begun:
            add = external.add_external_draft
            self._tell(add, request.state, request.tokens.copy(), draft)
        elif external is not None and len(request.external_drafts) < _WAITING:
            request.external_drafts.append(draft)

    @property
    def takes_external_drafts(self) -> bool:
        """Whether drafts from outside are of any use."""
        external = self._able.external
        return external is not None and external.external_drafts != "none"

    def has_external_draft(self, request: Request) -> bool:
        """Whether a draft from outside continues the request's text."""
        external = self._able.external
        if external is None or not request.begun:
            return False
        return bool(self._tell(external.has_external_draft, request.state))

    @property
    def looks_up(self) -> bool:
        """Whether it runs no model, so that it can be asked while a device computes."""
        looks_up = self._able.looks_up
        return looks_up is not None and looks_up.looks_up

    @property
    def weighs(self) -> bool:
        """Whether the drafter wants to know what time is worth."""
        return self._able.weighs is not None

    def price(self, token: float, node: float, step: float) -> None:
        """Tell a drafter that `weighs` what time is worth in this step."""
        if self._able.weighs is not None:
            self._tell(self._able.weighs.price, token, node, step)

    def weighed_seconds(self) -> float:
        """How long the drafter worked in the last proposal because that seemed to pay."""
        weighs = self._able.weighs
        said = None if weighs is None else self._tell(lambda: float(weighs.weighed_seconds()))
        seconds = said or 0.0
        if math.isfinite(seconds):
            return seconds
        self._give_up(InputError(f"weighed_seconds() is {seconds}; expected a number of seconds"))
        return 0.0

    def propose(self, requests: Sequence[Request], budgets: Sequence[int]) -> Proposal:
        """Drafts for the requests, within their budgets and the vocabulary."""
        if self._drafter is None:
            return _nothing(len(requests))
        numbers = [request.number for request in requests]
        # After a step that failed, states still have its drafts: they are replaced by none.
        if not any(budgets) and self._open.isdisjoint(numbers):
            return _nothing(len(requests))
        self.catch_up()
        if not self.active:  # it failed in that
            return _nothing(len(requests))
        self._open.update(numbers)
        try:
            states = [request.state for request in requests]
            if self._able.shares_kv is None:
                given = self._drafter.propose(states, list(budgets))
            else:
                with self._sharing_kv(requests):
                    given = self._drafter.propose(states, list(budgets))
            packed = given if isinstance(given, DraftBatch) else _without_probs(given)
            # A copy: the drafter may write into its arrays before the step ends.
            drafts = packed.without_probs()
            drafts.check()
            check_lengths(len(requests), len(drafts), "drafts")
            if not len(drafts.tokens):
                return Proposal(drafts)
            sizes = sizes_of(drafts.offsets).tolist()
            if any(map(gt, sizes, budgets)):
                raise InputError(f"a draft has more nodes than its budget of {max(budgets)}")
            probs = self._probs(requests, given)
        except Exception as error:
            self._give_up(error)
            return _nothing(len(requests))
        if not len(drafts.tokens) or drafts.tokens.max() < self._vocabulary:
            return Proposal(drafts, probs)
        known = drafts.along_paths(np.append(drafts.tokens < self._vocabulary, True), np.minimum)
        return Proposal(drafts, probs, known[:-1])

    @contextmanager
    def _sharing_kv(self, requests: Sequence[Request]) -> Iterator[None]:
        """While the body runs, a drafter that reads the target's KV cache may store tokens behind
        the requests' texts. Afterwards it is as before."""
        sharing = self._able.shares_kv
        kvs = [request.kv for request in requests if request.kv is not None]
        if sharing is None or len(kvs) < len(requests):
            yield
            return
        share = sharing.share_kv_cache
        lengths = [kv.length for kv in kvs]
        try:
            share(self._target, [request.state for request in requests], kvs)
            yield
        finally:
            for kv, length in zip(kvs, lengths, strict=True):
                if kv.length > length:
                    kv.cut(length)
            share(self._target, [], [])

    def _probs(self, requests: Sequence[Request], given: Sequence[Draft]) -> dict[int, Floats]:
        """The distributions that drafted tokens were sampled from, for requests under rule
        rejection. Rule match does not need them."""
        probs: dict[int, Floats] = {}
        if isinstance(given, DraftBatch) and given.probs is None:
            return probs
        for at, request in enumerate(requests):
            if not request.rejects:
                continue
            draft = given[at]
            if draft.probs is not None and len(draft):
                check_probs(draft.probs, draft.tokens, self._vocabulary)
                probs[at] = draft.probs
        return probs

    def note_sources(self, requests: Sequence[Request], verdicts: VerdictBatch) -> None:
        """Note where each committed token was drafted from: the best of its sources, or the form
        of the answer for node -1; nothing without `with_sources`. To be called before `observe`.
        """
        if not self._with_sources:
            return
        sources = self._able.sources

        def best(request: Request, verdict: Verdict) -> list[Source]:
            said = sources.sources(request.state) if sources is not None else ()
            path = verdict.path.tolist()
            return [Source.GRAMMAR if node < 0 else Source(said[node][0]) for node in path]

        for request, verdict in zip(requests, verdicts, strict=True):
            found = [] if self._drafter is None else self._tell(best, request, verdict) or []
            request.sources += found + [Source.MODEL] * (len(verdict.tokens) - len(found))

    def observe(
        self, requests: Sequence[Request], verdicts: VerdictBatch, *, later: bool = False
    ) -> None:
        """Tell the drafter what was committed; a request without new tokens is left out. `later`:
        at the next `catch_up`, or before anything else is asked of it or told to it.
        """
        self.catch_up()
        if self._drafter is None:
            return
        sizes, told = sizes_of(verdicts.offsets).tolist(), requests
        if 0 in sizes or False in [request.begun for request in requests]:
            pairs = zip(requests, sizes, strict=True)
            kept = [at for at, (r, size) in enumerate(pairs) if size and r.begun]
            told = [requests[at] for at in kept]
            verdicts = VerdictBatch.of([verdicts[at] for at in kept])
        if not told:
            return
        self._open.difference_update([request.number for request in told])
        # A copy: whatever the drafter does with it, the step goes on.
        self._untold = [request.state for request in told], verdicts.copy()
        if not later:
            self.catch_up()

    def catch_up(self) -> None:
        """Tell the drafter what was to be told later."""
        untold, self._untold = self._untold, None
        if untold is not None and self._drafter is not None:
            self._tell(self._drafter.observe, *untold)

    def finish(self, request: Request) -> None:
        """End a request, if it has begun.

        Mutates: the drafter; the request's drafter state is gone.
        """
        self._open.discard(request.number)
        state, begun = request.state, request.begun
        request.state, request.begun = None, False
        if begun and self._drafter is not None:
            self._tell(self._drafter.finish, state)

    def drop_group(self, group: str, tenant: str | None) -> None:
        """Drop a group, if the drafter has groups."""
        self.catch_up()
        if self._able.groups is None:
            return
        try:
            self._able.groups.drop_group(group, tenant)
        except UnknownGroup:
            pass  # no request of it had begun
        except Exception as error:
            self._give_up(error)

    def add_to_group(self, group: str, prompt: Int32s, answer: Int32s) -> None:
        """Let a group draft from an earlier answer, if the drafter has groups."""
        if self._able.groups is not None:
            self._tell(self._able.groups.add_to_group, group, prompt.copy(), answer.copy())
            self.warn()

    def new_version(self, keep: int) -> None:
        """The target's weights were replaced: of a history, what the last `keep` versions before
        wrote stays."""
        if self._able.versions is not None:
            self._tell(self._able.versions.new_version, keep)
            self.warn()

    def bytes_used(self) -> int:
        """What the drafter holds in memory, 0 if it cannot tell."""
        memory = self._able.memory
        return 0 if memory is None else self._tell(lambda: int(memory.bytes_used())) or 0

    def _tell(self, call: Callable[..., T], *values: Any) -> T | None:
        self.catch_up()
        if self._drafter is None:  # it failed in that
            return None
        try:
            return call(*values)
        except Exception as error:
            self._give_up(error)
            return None

    def _give_up(self, error: Exception) -> None:
        self._drafter, self._able, self._failure = None, Abilities(), error

    def warn(self) -> None:
        """Warn if the drafter has failed since the last call. Not amid a commit: a warning may be
        an error, and tokens, text and memory would no longer fit together."""
        failure, self._failure = self._failure, None
        if failure is not None:
            warnings.warn(f"the drafter failed, and is not asked again: {failure!r}", stacklevel=4)


def _nothing(requests: int) -> Proposal:
    return Proposal(SelectedNodes.nothing(requests).proposal)


def _check_layers(wants: Wants, depth: int) -> None:
    """Refuse a drafter that wants hidden states which a target of this `depth` does not give.

    Raises: InputError.
    """
    if wants.hidden_layers and not depth:
        raise InputError(
            f"the drafter wants hidden states of the layers {list(wants.hidden_layers)}, but this "
            "target gives the last ones only; expected weights in safetensors, not quantised"
        )
    if any(layer >= depth for layer in wants.hidden_layers):
        raise InputError(
            f"the drafter wants hidden states of the layers {list(wants.hidden_layers)}; expected "
            f"0 to {depth - 1}, the target's"
        )


def _is_part(wants: object, whole: Wants) -> bool:
    """Whether `wants` is no more than the whole."""
    if not isinstance(wants, Wants) or wants.topk > whole.topk or wants.hidden > whole.hidden:
        return False
    return wants.hidden_layers == (whole.hidden_layers if wants.hidden else ())


def _without_probs(drafts: Sequence[Draft]) -> DraftBatch:
    """Packed; some drafts may have `probs` and others not."""
    listed = all_of(Draft, drafts, "drafts")
    return DraftBatch.of([Draft._trusted(d.tokens, d.parents, d.scores) for d in listed])
