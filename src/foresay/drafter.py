"""The contract between a drafter and the engine that verifies its drafts.

A request's life, from the drafter's side:

    begin (propose* observe)* finish

The *request* owns its state; the *drafter* owns what requests share (groups, history, corpora,
weights); the *engine* owns randomness, logits processing, stopping, budgets and KV, which it may
share. A drafter never sees a logits processor, an EOS id, an attention mask or a position. It is
told the request's sampling parameters and seed, which most drafters ignore. A request that sits out
a step or is preempted causes no call and loses nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_items, as_tokens
from foresay.draft import Draft
from foresay.errors import InputError, StateError
from foresay.sampling.params import SamplingParams, check_seed
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = [
    "MAX_BUDGET",
    "SOURCE_NAMES",
    "ByTenant",
    "Drafter",
    "ExternalDraft",
    "SeededParams",
    "Source",
    "SourceName",
    "as_asked",
    "as_budgets",
    "as_commits",
    "as_prompt",
    "as_states",
    "check_lengths",
    "check_name",
    "check_native",
    "known_noise",
]

State = TypeVar("State")
T = TypeVar("T")

MAX_BUDGET = 4096
"""The most nodes that a draft may be asked to have."""


@dataclass(frozen=True, slots=True)
class SeededParams:
    """The sampling parameters of a request, and the seed of its noise.

    With them a drafter can sample as the target will. Under rule `match` the token at position t is
    argmax(processed logits + gumbel(seed, t, token)) with the noise of `foresay.sampling.noise`: a
    draft model that samples with the same noise has a far higher acceptance rate than one with
    noise of its own. Under rule `rejection` it may sample with streams from `Stream.DRAFT` on, and
    give in `Draft.probs` the distributions it sampled from.

    Raises: InputError when constructed.
    """

    params: SamplingParams
    seed: int

    def __post_init__(self) -> None:
        if not isinstance(self.params, SamplingParams):
            raise InputError(f"params is {self.params!r}; expected SamplingParams")
        check_seed(self.seed)

    def copy(self) -> SeededParams:
        """The same, sharing nothing that can be written to."""
        bias = self.params.logit_bias
        params = replace(self.params, logit_bias=dict(bias)) if bias else self.params
        return SeededParams(params, self.seed)


@dataclass(frozen=True, slots=True, eq=False)
class ExternalDraft:
    """A draft from outside, for a drafter that takes such.

    base    how many tokens the text has that the draft continues, the prompt's included
    prefix  CRC-32 of these tokens, as little-endian int32
    """

    base: int
    prefix: int
    draft: Draft


class ByTenant(Generic[T]):
    """What is learned from texts, for each tenant apart, so that nothing of one shows in another's
    drafts.

    make  what a new tenant begins with
    most  tenants that are remembered; the one that was asked for least recently is forgotten
    """

    def __init__(self, make: Callable[[], T], most: int = 256) -> None:
        self._make = make
        self._most = most
        self._of: OrderedDict[str | None, T] = OrderedDict()

    def __getitem__(self, tenant: str | None) -> T:
        if tenant not in self._of:
            self._of[tenant] = self._make()
        self._of.move_to_end(tenant)
        while len(self._of) > self._most:
            self._of.popitem(last=False)
        return self._of[tenant]

    def __len__(self) -> int:
        return len(self._of)

    def forget(self, tenant: str | None) -> None:
        """Let a tenant begin anew."""
        self._of.pop(tenant, None)


def known_noise(sampling: SeededParams | None) -> tuple[int, float]:
    """Seed and temperature of a request whose noise is known before the target speaks: rule match,
    not greedy. Temperature 0: it is not known, or there is none.
    """
    if sampling is None or sampling.params.rule != "match":
        return 0, 0.0
    return sampling.seed, float(sampling.params.temperature)


class SourceName(NamedTuple):
    """What people are told of a source: its name, and what it is."""

    name: str
    about: str


class Source(str, Enum):
    """What a token was drafted from: a kind of text, or a model; the best one comes first. A source
    equals its name (`Source.OWN == "own"`), so it can be written to JSON as it is. Beside that
    stands what people are `told`.
    """

    told: SourceName

    def __new__(cls, value: str, name: str = "", about: str = "") -> Source:
        self = str.__new__(cls, value)
        self._value_, self.told = value, SourceName(name, about)
        return self

    OWN = "own", "own text", "the prompt, and the answer so far"
    GROUP = "group", "group", "other samples of the same prompt"
    HISTORY = "history", "history", "earlier answers"  # of the same tenant
    CORPUS = "corpus", "corpus", "recorded text in a file"
    USUAL = "usual", "usual", "frequent tokens of these texts"  # of no single place
    RECYCLED = "recycled", "recycled", "what the model found likely before"  # in such a place
    DRAFT_MODEL = "draft_model", "draft model", "a smaller model"  # or some of the target's layers
    HEAD = "head", "head", "over the model's hidden states"
    GRAMMAR = "grammar", "grammar", "the only text that the form allows"
    EDGE = "edge", "edge", "an edge client"
    OTHER = "other", "other", "a drafter that does not say"
    MODEL = "", "the model's own token", "not drafted"

    def __str__(self) -> str:
        return str.__str__(self)


SOURCE_NAMES = {source: source.told for source in Source}
"""In the order of a legend: on the command line, and on the server's page."""


@runtime_checkable
class Drafter(Protocol[State]):
    """Drafts the next tokens of many requests at once.

    What else a drafter can do are protocols of their own, in `foresay.abilities`.
    """

    wants: Wants
    """What the drafter wants to see in each verdict."""

    def begin(
        self,
        prompt: Int32s,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> State:
        """Start a request whose text so far is `prompt`, at the cost of O(prompt).

        Requests of one `group` (samples of one prompt) draft from each other's tokens as soon as
        they are observed; requests of different tenants share nothing. `sampling` holds the
        request's sampling parameters and seed, None if the caller does not know them.

        Mutates: the drafter's shared store, if the request has a group.
        Valid until: `finish` of the returned state.
        Raises: TokenTypeError for a prompt that is not int32, InputError for an empty prompt or a
        token out of range; nothing has changed then.
        GIL: released during long work where the drafter is native.
        """
        ...

    def propose(self, states: Sequence[State], budgets: Sequence[int], /) -> Sequence[Draft]:
        """Draft what follows each state's text: draft i has at most `budgets[i]` nodes.

        Called any number of times between two commits, also never. A draft may be empty, and a
        budget may be 0. The result is a `DraftBatch` or any sequence of drafts, in the order of
        the states.

        Mutates: nothing the caller can see; the same call twice gives the same drafts.
        Valid until: the drafts for ever, since they are values.
        Raises: StateError for a finished or foreign state, InputError for a budget outside
        0 … 4096, a state that is there twice or a length that differs; nothing has changed then.
        GIL: released during long work where the drafter is native.
        """
        ...

    def observe(self, states: Sequence[State], verdicts: Sequence[Verdict], /) -> None:
        """Learn what was committed: exactly once per commit, the first token after the prompt too.

        After each call `prompt + all observed tokens == committed text`. A verdict's path refers to
        the state's last proposal, and is empty if there was none.

        Mutates: the states, and the shared store.
        Valid until: the effect lasts until `finish`, and beyond it in the shared store.
        Raises: StateError for a finished or foreign state, InputError for a state that is there
        twice or lengths that differ; nothing has changed then.
        GIL: released during long work where the drafter is native.
        """
        ...

    def finish(self, state: State, /) -> None:
        """End a request, exactly once, also when it was aborted.

        Mutates: the state, which is dead afterwards; the text may enter a shared history.
        Valid until: the effect is final.
        Raises: StateError if the state was finished before.
        GIL: released during long work where the drafter is native.
        """
        ...


def as_prompt(prompt: IntsLike) -> Int32s:
    """`prompt` as checked tokens, at least one.

    Raises: TokenTypeError, InputError.
    """
    tokens = as_tokens(prompt, "prompt")
    if not len(tokens):
        raise InputError("the prompt is empty; expected at least 1 token")
    return tokens


def as_budgets(budgets: Sequence[int], num_states: int) -> list[int]:
    """One budget per state, each an int (of Python or numpy) from 0 to MAX_BUDGET.

    Raises: InputError.
    """
    budgets = as_items(budgets, "budgets", "a list of whole numbers")
    check_lengths(num_states, len(budgets), "budgets")
    for at, budget in enumerate(budgets):
        whole = isinstance(budget, (int, np.integer)) and not isinstance(budget, bool)
        if not whole or not 0 <= budget <= MAX_BUDGET:
            raise InputError(
                f"budgets[{at}] is {budget!r}; expected a whole number from 0 to {MAX_BUDGET}"
            )
    return [int(budget) for budget in budgets]


def check_lengths(num_states: int, num_items: int, name: str) -> None:
    """Refuse a batch whose parts differ in length.

    Raises: InputError.
    """
    if num_states != num_items:
        raise InputError(
            f"there are {num_states} states but {num_items} {name}; expected one for each state"
        )


def as_states(states: Sequence[State], kind: type[State], owner: object) -> list[State]:
    """Unfinished states that `owner` began, each once; they have `owner` and `finished`.

    Raises: StateError for a finished or foreign state, InputError for a state that is there twice.
    """
    seen: set[int] = set()
    states = as_items(states, "states", "a list of states")
    for at, state in enumerate(states):
        found: Any = state
        if not isinstance(state, kind):
            name = type(found).__name__
            raise StateError(
                f"state {at} is of type {name}; expected a state that begin() returned"
            )
        if found.owner is not owner:
            raise StateError(
                f"state {at} was begun by another drafter; expected a state of this one"
            )
        if found.finished:
            raise StateError(f"state {at} was finished before; begin a new request for more text")
        if id(state) in seen:
            raise InputError(f"state {at} is in the batch twice; expected each state once")
        seen.add(id(state))
    return states


def as_asked(
    states: Sequence[State], budgets: Sequence[int], kind: type[State], owner: object
) -> list[tuple[State, int]]:
    """What `propose` is called with, checked: each state with its budget.

    Raises: as `as_states` and `as_budgets`.
    """
    alive = as_states(states, kind, owner)
    return list(zip(alive, as_budgets(budgets, len(alive)), strict=True))


def as_commits(
    states: Sequence[State], verdicts: Sequence[Verdict], kind: type[State], owner: object
) -> list[tuple[State, Int32s]]:
    """What `observe` is called with, checked: each state with the tokens committed, a view.

    Raises: as `as_states`, InputError for lengths that differ.
    """
    alive = as_states(states, kind, owner)
    batch = VerdictBatch.of(verdicts)
    check_lengths(len(alive), len(batch), "verdicts")
    pieces = [batch.tokens[first:end] for first, end in pairwise(batch.offsets.tolist())]
    return list(zip(alive, pieces, strict=True))


def check_native(state: object, kind: type[object]) -> None:
    """Refuse what is no state of a drafter of the core. Raises: StateError."""
    if not isinstance(state, kind):
        raise StateError(f"{state!r} is no state; expected one that begin() returned")


def check_name(value: object, name: str, *, needed: bool = False) -> None:
    """Refuse what is no name of a group or tenant. Raises: InputError."""
    if not (isinstance(value, str) or (value is None and not needed)):
        raise InputError(f"{name} is {value!r}; expected a str{'' if needed else ' or None'}")
