"""One request: its sampling parameters, its text so far, its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import MAX_TOKEN, Int32s, IntsLike, as_tokens, check_flag
from foresay.drafter import ExternalDraft, Source
from foresay.engine.ledger import PHASES, Ledger, RequestStats
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import ForesayError, InputError
from foresay.sampling.logprobs import TokenLogprob
from foresay.sampling.noise import new_seed
from foresay.sampling.params import SamplingParams
from foresay.sampling.verification import VerificationInput

if TYPE_CHECKING:
    from foresay.models.target import Target, TextKv
    from foresay.structured.grammars import Grammars
    from foresay.structured.matcher import GrammarMatcher

__all__ = [
    "PHASES",
    "FinishReason",
    "Request",
    "RequestStats",
    "check_names",
    "fitted",
    "new_request",
]

FinishReason = Literal["stop", "length", "cancelled", "error"]


def check_names(group: object, tenant: object) -> None:
    """Refuse a group or a tenant that is not a str that UTF-8 can encode.

    Raises: InputError.
    """
    for what, name in (("group", group), ("tenant", tenant)):
        if name is not None and not (isinstance(name, str) and _is_utf8(name)):
            raise InputError(f"{what} is {name!r}; expected a str of valid characters, or None")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fitted(params: SamplingParams, tokens: Int32s, target: Target, memory: int) -> SamplingParams:
    """The parameters for a prompt, with max_tokens bounded by the context of the target; `memory`
    is the most tokens that memory holds.

    Raises: InputError for a prompt that cannot be answered, a bias outside the vocabulary, or if
    there is not enough memory: an answer must not end earlier because a machine is small.
    """
    context, vocabulary = target.context, target.vocabulary
    if not len(tokens):
        raise InputError("the prompt is empty; expected at least 1 token")
    if len(tokens) >= min(context, memory):
        limit = (
            f"the model takes {context}" if context <= memory else f"there is memory for {memory}"
        )
        raise InputError(
            f"the prompt has {len(tokens)} tokens; with one more for an answer {limit} in all"
        )
    if tokens.max() >= vocabulary:
        raise InputError(f"the prompt has token {tokens.max()}; expected 0 to {vocabulary - 1}")
    for token in params.logit_bias:
        if token >= vocabulary:
            raise InputError(f"logit_bias names token {token}; expected 0 to {vocabulary - 1}")
    left = context - len(tokens)
    if params.max_tokens > left:
        params = replace(params, max_tokens=left, min_tokens=min(params.min_tokens, left))
    if len(tokens) + params.max_tokens > memory:
        raise InputError(
            f"the prompt has {len(tokens)} tokens and max_tokens is {params.max_tokens}; there is "
            f"memory for {memory} in all"
        )
    return params


class Request:
    """A request and its answer. `Engine.add` makes one.

    number           counts up in order of arrival
    seed             of the noise that samples its tokens. Under rule rejection it is told to the
                     drafter only: drafts may come from earlier answers to the same seed, and what
                     decides about a draft must not have decided about these. So the noise is new
    length           tokens of prompt and answer
    token_ids        the answer so far
    sources          where each of its tokens was drafted from, if that is noted
    prompt_logprobs  one for each prefilled token of the prompt, if they were asked for; None for
                     the first, which has no token before it
    finish_reason    None while it waits or runs
    error            why it failed, if it did
    """

    def __init__(
        self,
        number: int,
        prompt: Int32s,
        params: SamplingParams,
        seed: int,
        stops: tuple[int, ...],
        group: str | None,
        tenant: str | None,
        text: IncrementalDetokenizer | None,
        prompt_logprobs: int | None = None,
        together: bool = False,
        owner: object = None,
    ) -> None:
        self.number = number
        self.owner = owner  # what its engine knows it by
        self.params = params
        self.seed = seed
        self.group = group
        self.tenant = tenant
        self.answer = text
        self.together = together
        self.finish_reason: FinishReason | None = None
        self.error: ForesayError | None = None
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob | None] | None = None
        self.prompt_top = 0  # likeliest tokens beside each
        if prompt_logprobs is not None:
            self.prompt_logprobs, self.prompt_top = [None], prompt_logprobs
        self.sources: list[Source] = []
        self.counted = RequestStats(prompt_tokens=len(prompt))  # without what the ledger has
        self.ledger: Ledger | None = None
        self.kv: TextKv | None = None
        self.decode_turn: Any = None  # the scheduler's, of a step in which it decodes
        self.state: Any = None  # the drafter's
        self.begun = False  # whether the drafter has begun the request
        self.matcher: GrammarMatcher | None = None  # of a structured answer, behind its last token
        self.external_drafts: list[ExternalDraft] = []  # that came before that
        self.paused = False  # whether it sits steps out
        # Checked once, here; each step's ask is made from it without checking the text again.
        self.rejects = params.rule == "rejection"
        # Whether its next token can be chosen before the host knows the one before it.
        self.foreseeable = not (
            self.rejects
            or params.penalised
            or params.logprobs is not None
            or params.structured_outputs is not None
        )
        noise = new_seed() if self.rejects else seed
        self._ask = VerificationInput(params, noise, prompt, (), stops)
        self._tokens = np.empty(len(prompt) + 64, np.int32)
        self._tokens[: len(prompt)] = prompt
        self._prompt = len(prompt)
        self.most = len(prompt) + params.max_tokens  # tokens of prompt and answer
        self.length = len(prompt)
        self.last = int(prompt[-1])  # token of the text

    def __len__(self) -> int:
        """Tokens of prompt and answer."""
        return self.length

    def __repr__(self) -> str:
        answer = self.length - self._prompt
        return f"Request({self.number}: {self._prompt} tokens, then {answer}, {self.status})"

    @property
    def stats(self) -> RequestStats:
        """What it took so far."""
        if self.ledger is not None:
            self.ledger.settle(self)
        return self.counted

    @property
    def status(self) -> str:
        return self.finish_reason or ("waiting" if self.kv is None else "running")

    @property
    def stops(self) -> tuple[int, ...]:
        """Token ids that end the answer."""
        return self._ask.stops

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def prompt(self) -> Int32s:
        return self._tokens[: self._prompt]

    @property
    def tokens(self) -> Int32s:
        """Prompt and answer; a view that is good until the next step."""
        return self._tokens[: self.length]

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self._tokens[self._prompt : self.length].tolist()
        return ids

    @property
    def pending(self) -> Int32s:
        """The end of the text that is not in the KV cache yet: never empty."""
        return self._tokens[self.stored : self.length]

    @property
    def stored(self) -> int:
        return 0 if self.kv is None else self.kv.length

    @property
    def prefill_left(self) -> int:
        """Pending tokens to prefill: the prompt's, but for its last one, which is decoded."""
        return max(self._prompt - 1 - self.stored, 0)

    @property
    def prompt_logprobs_done(self) -> int:
        """Tokens of the prompt whose log probabilities are known, or not wanted."""
        return self._prompt if self.prompt_logprobs is None else len(self.prompt_logprobs)

    @property
    def tokens_left(self) -> int:
        """How many tokens the answer may still get."""
        return self.most - self.length

    @property
    def ending(self) -> FinishReason | None:
        """Why the answer ends with its last token, if it does."""
        if self.answer is not None and self.answer.stopped is not None:
            return "stop"
        if self.last in self._ask.stops or (self.matcher is not None and self.matcher.complete):
            return "stop"
        return "length" if self.length == self.most else None

    def ask(self, masks: NDArray[np.int32] | None = None) -> VerificationInput:
        """The sampling parameters and text for the next verification, with masks for its rows.

        Valid until: the next step.
        """
        return self._ask.along(self._tokens[self._prompt : self.length], masks)

    def append(self, tokens: Int32s) -> None:
        """Add committed tokens, at least one, to the text."""
        begin, end = self.length, self.length + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens)), np.int32)
            grown[:begin] = self._tokens[:begin]
            self._tokens = grown
        self._tokens[begin:end] = tokens
        self.length, self.last = end, int(tokens[-1])
        self.counted.tokens += end - begin

    def append_one(self, token: int) -> None:
        """`append` of one token, sooner."""
        end = self.length
        if end == len(self._tokens):
            self.append(np.array([token], np.int32))
            return
        self._tokens[end] = token
        self.length, self.last = end + 1, token
        self.counted.tokens += 1


def _matcher_for(request: Request, grammars: Grammars | None) -> GrammarMatcher | None:
    """The grammar at the beginning of a request's answer; None for one that has no form.

    Raises: InputError for a form that cannot be compiled.
    """
    outputs = request.params.structured_outputs
    if outputs is None:
        return None
    if grammars is None:
        raise InputError(
            "structured_outputs is given to an engine without grammars; expected "
            "Engine(grammars=Grammars(tokenizer, vocabulary))"
        )
    return grammars.compile(outputs).matcher(request.stops)


def new_request(
    number: int,
    owner: object,
    target: Target,
    memory: int,
    prompt: IntsLike,
    params: SamplingParams | None,
    seed: int | None,
    stops: Sequence[int],
    group: str | None,
    tenant: str | None,
    text: IncrementalDetokenizer | None,
    prompt_logprobs: int | None,
    together: bool,
    grammars: Grammars | None,
) -> Request:
    """A request of an engine, as `Engine.add` was asked for it; `memory`: as for `fitted`,
    `grammars` of the engine.

    `text` is told of the prompt. Raises: InputError.
    """
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise InputError(f"params are {params!r}; expected SamplingParams")
    check_names(group, tenant)
    most = prompt_logprobs
    if most is not None and (type(most) is not int or not 0 <= most <= MAX_TOKEN):
        raise InputError(
            f"prompt_logprobs is {most!r}; expected a whole number from 0 to {MAX_TOKEN}, or None"
        )
    check_flag(together, "together")
    if text is not None and not isinstance(text, IncrementalDetokenizer):
        raise InputError(f"text is {text!r}; expected an IncrementalDetokenizer")
    ends = tuple(as_tokens(stops, "stops").tolist())
    tokens = as_tokens(prompt, "prompt")
    params = fitted(params, tokens, target, memory)
    if params.stop_texts and text is None:
        raise InputError(
            "stop has stop strings and text is None; expected an IncrementalDetokenizer"
        )
    if seed is None:
        seed = new_seed() if params.seed is None else params.seed
    whose = (group, tenant, text, prompt_logprobs, together)
    request = Request(number, tokens, params, seed, ends, *whose, owner)
    request.matcher = _matcher_for(request, grammars)
    if text is not None:
        with suppress(Exception):  # of `decode`: the request fails when it is decoded
            text.follow(tokens.tolist())
    return request
