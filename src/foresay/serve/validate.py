"""Validate parsed bodies: as prompts and sampling parameters, with every number checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from foresay.arrays import MAX_TOKEN, Int32s, as_tokens
from foresay.engine.llm import LLM
from foresay.engine.pages import PAGE
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams
from foresay.serve.chat.answers import ChatForm
from foresay.serve.chat.structure import Structured, structure_of
from foresay.serve.chat.templates import Templates
from foresay.serve.chat.tools import ToolUse
from foresay.serve.limits import Limits, Refused
from foresay.serve.schema import Chat, ChatMessage, Completion, Sampling
from foresay.structured.matcher import Grammar

__all__ = ["FIELDS", "ChatFields", "GenerationRequest", "Most", "Validator"]

_AS_SENT = (
    *("temperature", "top_p", "min_p", "processor_order", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "ignore_eos", "min_tokens"),
    "speculative",
)
_DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it


class ChatFields(NamedTuple):
    """What an API calls fields of a chat."""

    messages: str = "messages"
    most: str = "max_completion_tokens"
    form: str = "response_format"
    stop: str = "stop"


FIELDS = ChatFields()
"""OpenAI's names."""


class Most(NamedTuple):
    """How many tokens an answer may have, and the name of the field that says so."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The prompts and parameters of one HTTP request, and how its answers are sent.

    prompts       token ids; each gets `params.n` answers
    texts         the prompts as texts, if they are echoed
    unwanted      max_tokens is 0: the one token that is decoded is not sent
    prompt_logprobs  how many likeliest tokens beside each prompt token; None: not requested
    form          what the answers to a chat may hold beside content
    structure     the form of the answers; to be compiled before they begin
    """

    prompts: list[Int32s]
    params: SamplingParams
    chat: bool
    stream: bool
    texts: list[str] | None = None
    unwanted: bool = False
    prompt_logprobs: int | None = None
    usage: bool = False
    usage_always: bool = False
    by_token: bool = False
    token_ids: bool = False
    details: bool = False
    form: ChatForm = field(default_factory=ChatForm)
    structure: Structured | None = None

    @property
    def answers(self) -> int:
        return len(self.prompts) * self.params.n


class Validator:
    """Makes generation requests of parsed bodies. Tokenizing takes time: use a worker thread."""

    def __init__(self, llm: LLM, limits: Limits, templates: Templates) -> None:
        self._llm = llm
        self._limits = limits
        self._templates = templates
        self.context = min(llm.target.context, llm.engine.scheduler.pages.total * PAGE - 1)
        """The most tokens of a prompt and its answer together."""

    def completion(self, body: Completion) -> GenerationRequest:
        """The request of /v1/completions.

        Raises: Refused.
        """
        n = 1 if body.n is None else body.n
        if body.best_of is not None and body.best_of != n:
            raise Refused(
                400,
                f"best_of is {body.best_of}; expected n, {n}: this server returns all its answers",
                param="best_of",
            )
        if body.logprobs is not None:
            self._limits.check_most("logprobs", body.logprobs, self._limits.logprobs)
        listed = _prompts(body.prompt)
        self._limits.check_most("prompt", len(listed), self._limits.prompts, "prompts")
        prompts = [self._tokens(p) for p in listed]
        echo = bool(body.echo)
        most = _most(body, 0) or Most("max_tokens by default", _DEFAULT_TOKENS)
        unwanted = most.tokens == 0
        structure, least = structure_of(body), most._replace(tokens=max(most.tokens, 1))
        params = self._params(body, prompts, least, body.logprobs, structure, FIELDS)
        decode = self._llm.tokenizer.decode
        return GenerationRequest(
            prompts,
            params,
            chat=False,
            texts=[p if isinstance(p, str) else decode(p) for p in listed] if echo else None,
            unwanted=unwanted,
            prompt_logprobs=body.logprobs if echo else None,
            structure=structure,
            **_delivery(body),
        )

    def chat(
        self, body: Chat, use: ToolUse | None, names: ChatFields = FIELDS, *, fit: bool = False
    ) -> GenerationRequest:
        """The request of a chat that may, or must, call these tools. `names` is what refusals call
        its fields.

        fit  whether max_tokens may be more than the context has left, which then is the most

        Raises: Refused.
        """
        top = body.top_logprobs
        if top and not body.logprobs:
            raise Refused(
                400, f"top_logprobs is {top}; expected logprobs: true with it", param="top_logprobs"
            )
        if top is not None:
            _check_least("top_logprobs", top, 0)
            self._limits.check_most("top_logprobs", top, self._limits.logprobs)
        text, prompt = self._rendered(body, use, names)
        structure, form = self._templates.form_of(text, use, structure_of(body, names.form))
        rest = Most("the rest of the context", max(self.context - len(prompt), 1))
        most = _most(body, 1, names) or rest
        if fit and most.tokens > rest.tokens:
            most = rest
        logprobs = (top or 0) if body.logprobs else None
        params = self._params(body, [prompt], most, logprobs, structure, names)
        how = {"form": form, "structure": structure, **_delivery(body)}
        return GenerationRequest([prompt], params, chat=True, **how)

    def count(self, body: Chat, use: ToolUse | None, names: ChatFields = FIELDS) -> int:
        """How many tokens a chat has in the model's template, also if they are too many.

        Raises: Refused.
        """
        return len(self._rendered(body, use, names)[1])

    def _rendered(self, body: Chat, use: ToolUse | None, names: ChatFields) -> tuple[str, Int32s]:
        name, most = names.messages, self._limits.messages
        self._limits.check_most(name, len(body.messages), most, "messages")
        text = self._templates.render(body.messages, use, name)
        return text, _checked(self._encode_chat, text, name)

    def ids(self, prompt: Int32s, params: SamplingParams, seed: int) -> GenerationRequest:
        """The request of an edge stream: ids, and parameters that are valid by themselves.

        Raises: Refused.
        """
        self.check_size(len(prompt), Most("max_tokens", params.max_tokens), "prompt")
        self._check_stops("stop", len(params.stop), params.stop_texts)
        biases = self._limits.biases
        self._limits.check_most("logit_bias", len(params.logit_bias), biases, "entries")
        return GenerationRequest([prompt], replace(params, seed=seed), chat=False, stream=True)

    def conversation(self, messages: Sequence[ChatMessage]) -> Int32s:
        """The tokens of messages, in the model's chat template.

        Raises: Refused.
        """
        return _checked(self._encode_chat, self._templates.render(messages, None), "messages")

    def _encode_chat(self, text: str) -> Int32s:
        return self._llm.tokenizer.encode(text, special=False)

    def _tokens(self, prompt: str | list[int]) -> Int32s:
        if isinstance(prompt, str):
            return _checked(self._llm.tokenizer.encode, prompt, "prompt")
        tokens = _checked(lambda ids: as_tokens(ids, "prompt"), prompt, "prompt")
        vocabulary = self._llm.target.vocabulary
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary:
            wrong = next(t for t in prompt if not 0 <= t < vocabulary)
            raise Refused(
                400, f"prompt has token {wrong}; expected 0 to {vocabulary - 1}", param="prompt"
            )
        return tokens

    def _params(
        self,
        body: Sampling,
        prompts: Sequence[Int32s],
        most: Most,
        logprobs: int | None,
        structure: Structured | None,
        names: ChatFields,
    ) -> SamplingParams:
        param = names.messages if isinstance(body, Chat) else "prompt"
        for prompt in prompts:
            self.check_size(len(prompt), most, param)
        n = 1 if body.n is None else body.n
        self._limits.check_most("n", n, self._limits.n)
        texts = [body.stop] if isinstance(body.stop, str) else body.stop or []
        ids = body.stop_token_ids or []
        entries = names.stop if texts else "stop_token_ids"
        self._check_stops(entries, len(texts) + len(ids), texts)
        for token in ids:
            _check_least("stop_token_ids", token, 0, MAX_TOKEN)
        if body.min_tokens is not None:
            _check_least("min_tokens", body.min_tokens, 0, most.tokens, most.name)
        seed = body.seed
        if seed is not None and -(1 << 63) <= seed < 0:
            seed += 1 << 64  # OpenAI's seeds have a sign
        values = {name: getattr(body, name) for name in _AS_SENT} | {
            "n": n,
            "top_k": 0 if body.top_k == -1 else body.top_k,
            "seed": seed,
            "stop": (*texts, *ids),
            "logprobs": logprobs,
            "logit_bias": self._bias(body.logit_bias),
            "structured_outputs": None if structure is None else structure.outputs,
        }
        return _sampling(most, {name: v for name, v in values.items() if v is not None})

    def compiled(self, structure: Structured) -> Grammar:
        """The grammar of a form. It may take seconds.

        Raises: Refused.
        """
        try:
            return self._llm.grammars.compile(structure.outputs, structure.name)
        except InputError as error:
            raise Refused(400, str(error), param=structure.name) from error

    def _check_stops(self, param: str, entries: int, texts: Sequence[str]) -> None:
        limits = self._limits
        limits.check_most(param, entries, limits.stops, "entries")
        for text in texts:
            size = len(text.encode())
            limits.check_most("stop", size, limits.stop_bytes, "bytes in one of its texts")

    def check_size(self, size: int, most: Most, param: str) -> None:
        """Refuse a prompt of `size` tokens that leaves no room for the answer. Raises: Refused."""
        if not size:
            raise Refused(400, "the prompt is empty; expected at least 1 token", param=param)
        if size + 1 > self.context:
            raise Refused(
                400,
                f"the prompt has {size} tokens; expected at most {self.context - 1}, the context "
                "less one token of the answer",
                param=param,
                code="context_length_exceeded",
            )
        if size + most.tokens > self.context:
            raise Refused(
                400,
                f"the prompt has {size} tokens and {most.name} is {most.tokens}; expected at most "
                f"{self.context} together",
                param=most.name.split()[0],
                code="context_length_exceeded",
            )

    def _bias(self, bias: dict[str, float] | None) -> dict[int, float]:
        found: dict[int, float] = {}
        self._limits.check_most("logit_bias", len(bias or ()), self._limits.biases, "entries")
        vocabulary = self._llm.target.vocabulary
        for name, value in (bias or {}).items():
            token = int(name) if name.isascii() and name.isdigit() and len(name) < 12 else -1
            if not 0 <= token < vocabulary:
                raise Refused(
                    400,
                    f"logit_bias names token {name[:40]!r}; expected '0' to '{vocabulary - 1}'",
                    param="logit_bias",
                )
            if not -100 <= value <= 100:
                raise Refused(
                    400,
                    f"logit_bias['{token}'] is {value}; expected a number from -100 to 100",
                    param="logit_bias",
                )
            found[token] = value
        return found


def _checked(read: Callable[[Any], Int32s], value: object, param: str) -> Int32s:
    try:
        return read(value)
    except (InputError, OverflowError) as error:
        raise Refused(400, str(error), param=param) from error


def _check_least(
    param: str, value: int, least: int, most: int | None = None, name: str = ""
) -> None:
    """Refuse a number under the name of its HTTP field, which may differ from the engine's."""
    if value < least or (most is not None and value > most):
        end = "" if most is None else f" to {name}, {most}" if name else f" to {most}"
        raise Refused(
            400, f"{param} is {value}; expected a whole number from {least}{end}", param=param
        )


def _most(body: Sampling, least: int, names: ChatFields = FIELDS) -> Most | None:
    """The most tokens of the answer. If both fields are given, the smaller one counts."""
    both = (("max_tokens", body.max_tokens), (names.most, body.max_completion_tokens))
    given = [Most(name, tokens) for name, tokens in both if tokens is not None]
    for most in given:
        _check_least(most.name, most.tokens, least)
    return min(given, key=lambda most: most.tokens, default=None)


def _sampling(most: Most, values: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(max_tokens=most.tokens, **values)
    except InputError as error:
        for name, value in values.items():  # find the field that is wrong
            try:
                SamplingParams(max_tokens=most.tokens, **{name: value})
            except InputError as own:
                raise Refused(400, str(own), param=name) from own
        raise Refused(400, str(error)) from error


def _prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """One prompt or several, as a list of texts and token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if prompt and all(isinstance(item, int) for item in prompt):
        return [prompt]  # type: ignore[list-item]
    found = [item for item in prompt if not isinstance(item, int)]
    if len(found) < len(prompt):
        why = "prompt has token ids beside prompts; expected a list of ids, or lists of them"
        raise Refused(400, why, param="prompt")
    if not found:
        raise Refused(400, "prompt is an empty list; expected at least one prompt", param="prompt")
    return found


def _delivery(body: Sampling) -> dict[str, Any]:
    """How the answers are sent to the client."""
    options = body.stream_options
    if options is not None and not body.stream:
        raise Refused(
            400, "stream_options is given; expected stream: true with it", param="stream_options"
        )
    return {
        "stream": bool(body.stream),
        "usage": bool(options and options.include_usage),
        "usage_always": bool(options and options.continuous_usage_stats),
        "by_token": body.stream_granularity == "token",
        "token_ids": bool(body.return_token_ids),
        "details": bool(body.spec_details),
    }
