"""The common part of ModelDrafter and SelfDrafter: a model that writes drafts, as a Drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from foresay.arrays import Int32s, IntsLike, check_hash, check_positive
from foresay.draft import Draft
from foresay.drafter import (
    ByTenant,
    SeededParams,
    Source,
    as_asked,
    as_commits,
    as_prompt,
    as_states,
    check_name,
)
from foresay.drafters.decoding.noise_weight import NoiseWeight
from foresay.drafters.decoding.shapes import ShapeLike, as_shape
from foresay.drafters.decoding.state import RequestState
from foresay.errors import InputError, TokenizerMismatch
from foresay.sampling.signals import Signals
from foresay.verdict import Verdict, Wants

if TYPE_CHECKING:
    from foresay.drafters.decoding.dropout import Dropout
    from foresay.models.target import Target

__all__ = ["MEMORY", "Choice", "DecodingDrafter"]

Choice = Literal["coupled", "likeliest"]
MEMORY = 1 << 30
"""Bytes of keys and values that a drafter has, unless it is told otherwise."""
_STEP = 64  # tokens: memory comes in multiples of it


class DecodingDrafter:
    """Drafts by decoding with a model, which has keys and values of its own for each request.

    model       the model; None: it is given later
    shape       see `ShapeLike`
    choice      for requests that are sampled under rule match: "coupled" or "likeliest"
    memory      bytes of keys and values, at most
    vocabulary  ids that may be drafted
    """

    wants = Wants()

    def __init__(
        self,
        model: Target | None,
        *,
        shape: ShapeLike,
        choice: Choice,
        memory: int = MEMORY,
        tokenizer_hash: bytes | None = None,
    ) -> None:
        if not isinstance(choice, str) or choice not in ("coupled", "likeliest"):
            raise InputError(f"choice is {choice!r}; expected 'coupled' or 'likeliest'")
        check_hash(tokenizer_hash, "tokenizer_hash")
        check_positive(memory, "memory")
        self.shape = as_shape(shape)
        self.tokenizer_hash = tokenizer_hash
        self._choice = choice
        self._memory = memory
        self._calls = 0  # of propose
        self._noise = ByTenant(NoiseWeight)
        self._signals = False
        self._dropout: Dropout | None = None
        self._live: dict[int, RequestState] = {}
        self._model: Target | None = None
        self.vocabulary = 0
        if model is not None:
            self._use(model)

    @property
    def needs_target(self) -> bool:
        """Whether it has no model yet, so that only an engine can use it."""
        return self._model is None

    @property
    def model(self) -> Target:
        """The model that drafts.

        Raises: InputError if it has none yet.
        """
        if self._model is None:
            raise InputError(
                f"{type(self).__name__} has no model yet; expected a Target, or an engine that "
                "gives it its own"
            )
        return self._model

    def fit(self, target: Target, tokenizer_hash: bytes | None = None) -> None:
        """Refuse a target that this drafter cannot draft for; `tokenizer_hash`: of the target's
        tokenizer, if that is known. Sizes of vocabularies may differ where both tokenizers are
        known to be the same: then one of the models is padded.

        Raises: TokenizerMismatch, InputError.
        """
        own, other = self.tokenizer_hash, tokenizer_hash
        if own is not None and other is not None and own != other:
            raise TokenizerMismatch(
                f"the draft model's tokenizer has the hash {own.hex()[:16]}… and the target's has "
                f"{other.hex()[:16]}…; expected models of one tokenizer"
            )
        sizes = self.model.vocabulary, target.vocabulary
        if target.vocabulary == self.vocabulary:
            return
        if own is None or own != other:
            raise InputError(
                f"the draft model's vocabulary has {sizes[0]} tokens and the target's has "
                f"{sizes[1]}; expected the same, or models whose tokenizer is known to be the same"
            )
        if self._live:
            raise InputError(
                f"the drafter drafts for a vocabulary of {self.vocabulary} tokens, and the target "
                f"has {target.vocabulary}; expected a drafter without requests"
            )
        self.vocabulary = target.vocabulary

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> RequestState:
        """Start a request. Nothing is computed before its first draft. The group changes nothing.

        Raises: TokenTypeError, InputError for an empty prompt, a token out of range, or a drafter
        without a model.
        """
        tokens = as_prompt(prompt)
        _ = self.model
        state = RequestState(self, tokens, sampling, self._noise[tenant], tenant)
        self._live[id(state)] = state
        return state

    def propose(self, states: Sequence[RequestState], budgets: Sequence[int], /) -> list[Draft]:
        """A draft for each state; of texts that the model cannot read, an empty one, and where the
        memory is too small for all of them, of the last ones that have no keys and values yet.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice
        or lengths that differ; what the model raises.
        """
        from foresay.drafters.decoding.tree_builder import (  # torch, which takes seconds
            TreeBuilder,
            build_trees,
        )

        given = as_asked(states, budgets, RequestState, self)
        asked: list[tuple[RequestState, int, int]] = []
        self._calls += 1
        for state, budget in given:
            if budget:
                state.used = self._calls
            if state.proposed_for == (budget, self.model.version):
                continue
            state.forget_proposal()
            depth = self._depth(state, budget)
            if depth > 0:
                state.prepare(self.model)
                asked.append((state, budget, depth))
        fitting = self._make_room([(state, budget) for state, budget, _ in asked])
        builders = [
            TreeBuilder(state, budget, depth, self.shape, self._way(state))
            for state, budget, depth in asked
            if state in fitting
        ]
        if builders:
            build_trees(
                self.model, builders, self.vocabulary, signals=self._signals, dropout=self._dropout
            )
        for builder in builders:
            builder.state.proposed, builder.state.signals = builder.draft(), builder.signals()
        for state, budget in given:
            state.proposed_for = budget, self.model.version
        return [state.proposed for state, _ in given]

    def observe(self, states: Sequence[RequestState], verdicts: Sequence[Verdict], /) -> None:
        """Add what was committed; what was stored of other drafted tokens is dropped.

        Raises: StateError, InputError for a state that is there twice or lengths that differ;
        nothing has changed then.
        """
        for state, tokens in as_commits(states, verdicts, RequestState, self):
            if state.by_weight and len(tokens):
                state.noise_weight.learn(state.by_weight, int(tokens[0]))
            state.commit(tokens)
            if not self._readable(state):
                state.forget()

    def finish(self, state: RequestState, /) -> None:
        """End a request; its keys and values are freed.

        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], RequestState, self)
        del self._live[id(state)]
        state.finished = True
        state.forget_proposal()
        state.forget()

    def drop_tenant(self, tenant: str) -> None:
        """Forget how much of the noise a tenant's drafts follow. Raises: InputError."""
        check_name(tenant, "the tenant", needed=True)
        self._noise.forget(tenant)

    def sources(self, state: RequestState, /) -> list[tuple[Source, ...]]:
        """`Source.DRAFT_MODEL`, for each node of the state's last draft.

        Raises: StateError.
        """
        as_states([state], RequestState, self)
        return [(Source.DRAFT_MODEL,)] * len(state.proposed)

    def keep_signals(self, dropout: Dropout | None = None) -> None:
        """From the next proposal on, keep how uncertain the model is of each drafted token; with
        `dropout` also the variance, which takes a hidden state of each."""
        self._signals, self._dropout = True, dropout

    def signals(self, state: RequestState, /) -> Signals | None:
        """Of each node of the state's last draft; None if they are not kept, or there is no node.

        Raises: StateError.
        """
        as_states([state], RequestState, self)
        return state.signals

    def text(self, state: RequestState, /) -> Int32s:
        """A copy of prompt and observed tokens.

        Raises: StateError.
        """
        as_states([state], RequestState, self)
        text: Int32s = state.text.copy()
        return text

    def kv_length(self, state: RequestState, /) -> int:
        """Tokens of prompt and observed text whose keys and values are stored.

        Raises: StateError.
        """
        as_states([state], RequestState, self)
        return min(state.stored, len(state.text))

    def bytes_used(self) -> int:
        """Bytes of texts, and of their keys and values; the model's weights are not counted."""
        return self._bytes(list(self._live.values()))

    def bytes_of(self, tenant: str | None) -> int:
        """The same of one tenant's requests."""
        return self._bytes([one for one in list(self._live.values()) if one.tenant == tenant])

    def _bytes(self, states: Sequence[RequestState]) -> int:
        held = sum(state.capacity for state in states)
        return held * self._bytes_per_token + 4 * sum(len(state.text) for state in states)

    def tokens_held(self) -> int:
        """Tokens of all live requests."""
        return sum(len(state.text) for state in list(self._live.values()))

    def _use(self, model: Target) -> None:
        self._model = model
        self.vocabulary = model.vocabulary
        self._bytes_per_token = model.bytes_per_token

    def _make_room(self, asked: Sequence[tuple[RequestState, int]]) -> set[RequestState]:
        """Which of these states fit into the memory, with what their budgets add. The keys and
        values of the others, and those that were used least recently, are forgotten.

        Those of one call never take each other's place, or each step would compute all of them
        anew: what does not fit gets no draft.
        """
        left = self._memory // max(self._bytes_per_token, 1) if asked else 0
        waiting, fitting = {state for state, _ in asked}, set[RequestState]()
        live = sorted(self._live.values(), key=lambda state: -state.used) if asked else []
        left -= sum(s.capacity for s in live if s.used == self._calls and s not in waiting)
        for state, budget in sorted(asked, key=lambda item: item[0].capacity == 0):
            tokens = len(state.text) + min(budget, self.shape.nodes)
            # Memory that has to grow is doubled.
            need = state.capacity if tokens <= state.capacity else 2 * tokens + _STEP
            if need <= left:
                left -= need
                fitting.add(state)
            else:
                state.forget()
        for state in live:
            if state.used < self._calls:
                if state.capacity > left:
                    state.forget()
                left -= state.capacity
        return fitting

    def _way(self, state: RequestState) -> Literal["likeliest", "coupled", "sampled"]:
        if state.sampling is None:
            return "likeliest"
        return "sampled" if state.sampling.params.rule == "rejection" else self._choice

    def _readable(self, state: RequestState) -> bool:
        highest = min(self.model.vocabulary, self.vocabulary)
        return len(state.text) <= self.model.context and state.highest < highest

    def _depth(self, state: RequestState, budget: int) -> int:
        """How many levels a draft may have: the last is not computed, only proposed."""
        if not self._readable(state):
            return 0
        levels = [len(self.shape.branches), budget, self.model.context - len(state.text) + 1]
        if state.room is not None:
            levels.append(state.room - 1)
        return min(levels)
