"""The JSON bodies of requests and of answers. /openapi.json is made of them.

A request may have fields that are not here (`foresay.serve.parse`); an answer has none.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from foresay.drafter import Source

# ---- requests ------------------------------------------------------------------------------------


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether a stream has the usage: at its end, and in every chunk."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Sampling(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that completions and chats have in common. null is the same as absent."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    processor_order: list[str] | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_granularity: Literal["token", "commit"] | None = None
    return_token_ids: bool | None = None
    spec_details: bool | None = None
    speculative: bool | None = None
    user: str | None = None


class Completion(Sampling, kw_only=True, frozen=True):
    """The body of /v1/completions."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None


class Content(msgspec.Struct, frozen=True):
    """A part of a message; only texts are read, and no URL is ever opened."""

    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation."""

    role: str
    content: str | list[Content] | None = None
    tool_calls: list[Any] | None = None


class Chat(Sampling, kw_only=True, frozen=True):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None


class Tokenize(msgspec.Struct, frozen=True):
    """The body of /tokenize: a text, or messages."""

    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    model: str | None = None
    add_special_tokens: bool | None = True
    return_token_strs: bool | None = False


class Detokenize(msgspec.Struct, frozen=True):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


# ---- answers -------------------------------------------------------------------------------------

Count = Annotated[int, Meta(ge=0)]
Counts = list[Count]
Byte = Annotated[int, Meta(ge=0, le=255)]
Reason = Literal["stop", "length"]


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """An answer, or a part of one. What is UNSET is left out."""


class ErrorFacts(Answer):
    """What is wrong, and with which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Answer):
    """The body of every refusal."""

    error: ErrorFacts


class PromptDetails(Answer):
    """Each prompt counts once, for any number of answers."""

    cached_tokens: Count


class Usage(Answer):
    """Numbers of tokens."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptDetails


class Details(Answer):
    """With spec_details: the text and the source of each token, and what the steps did."""

    words: list[str]
    sources: list[Source]
    drafted: Count
    accepted: Count
    step_seconds: float


class Logprobs(Answer):
    """Of a completion, by token: those of the prompt first, if it is echoed."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: Counts


class ChatToken(Answer):
    """A token, and the bytes of its text, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[Byte] | None


class ChatLogprob(ChatToken):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(Answer):
    """Of a chat's answer, by token."""

    content: list[ChatLogprob]
    refusal: None


class Choice(Answer, kw_only=True):
    """What the choices have in common."""

    index: Count
    token_ids: Counts | UnsetType = UNSET


class CompletionChunkChoice(Choice, kw_only=True):
    """A part of one of the answers."""

    finish_reason: Reason | None
    text: str
    logprobs: Logprobs | None
    prompt_token_ids: Counts | UnsetType = UNSET


class CompletionChoice(CompletionChunkChoice, kw_only=True):
    """One of the answers."""

    finish_reason: Reason
    foresay: Details | UnsetType = UNSET


class Delta(Answer):
    """A part of a message; the first one has the role."""

    content: str
    role: Literal["assistant"] | UnsetType = UNSET


class ChatChunkChoice(Choice, kw_only=True):
    """A part of one of the answers."""

    finish_reason: Reason | None
    delta: Delta
    logprobs: ChatLogprobs | None


class Message(Answer):
    """The model's message."""

    content: str
    role: Literal["assistant"]


class ChatChoice(Choice, kw_only=True):
    """One of the answers."""

    finish_reason: Reason
    message: Message
    logprobs: ChatLogprobs | None
    foresay: Details | UnsetType = UNSET


class _Head(Answer, kw_only=True):
    id: str
    created: Count
    model: str
    system_fingerprint: str


class _Chunk(_Head, kw_only=True):
    usage: Usage | UnsetType | None = UNSET
    foresay: Details | UnsetType = UNSET


class CompletionAnswer(_Head, kw_only=True, tag_field="object", tag="text_completion"):
    """The answer of /v1/completions."""

    choices: list[CompletionChoice]
    usage: Usage


class CompletionChunk(_Chunk, kw_only=True, tag_field="object", tag="text_completion"):
    """An event of its stream."""

    choices: list[CompletionChunkChoice]


class ChatAnswer(_Head, kw_only=True, tag_field="object", tag="chat.completion"):
    """The answer of /v1/chat/completions."""

    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: Counts | UnsetType = UNSET


class ChatChunk(_Chunk, kw_only=True, tag_field="object", tag="chat.completion.chunk"):
    """An event of its stream."""

    choices: list[ChatChunkChoice]


class Model(Answer, tag_field="object", tag="model"):
    """The model that is served."""

    id: str
    created: Count
    owned_by: str
    max_model_len: Count


class Models(Answer, tag_field="object", tag="list"):
    """All models: one."""

    data: list[Model]


class Tokens(Answer):
    """The tokens of a text, or of messages."""

    tokens: Counts
    count: Count
    max_model_len: Count
    token_strs: list[str] | UnsetType = UNSET


class Text(Answer):
    """The text of tokens."""

    prompt: str


class TokenizerInfo(Answer):
    """About the tokenizer; special tokens as texts."""

    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    end_token_ids: Counts
    vocab_size: Count
    max_model_len: Count


class Totals(Answer):
    """What all steps did for a tenant; accepted_lengths: how often that number was accepted, where
    something was drafted."""

    steps: Count
    answers_in_steps: Count
    drafted: Count
    accepted: Count
    tokens: Count
    tokens_per_step: float
    accepted_lengths: dict[str, Count]


class StepOfTenant(Answer):
    """What a step did for a tenant; `start` is in seconds since the server began."""

    start: float
    seconds: dict[str, float]
    answers: Count
    rows: Count
    drafted: Count
    accepted: Count
    tokens: Count


class Stats(Answer):
    """Acceptance statistics and the last steps."""

    totals: Totals
    timeline: list[StepOfTenant]
    running: Count
    waiting: Count
    drafter_bytes: Count | None
    requests_of: Literal["everybody", "tenant"]


class Status(Answer):
    """That all is well."""

    status: Literal["ok"]


class Version(Answer):
    """The version of foresay."""

    version: str


class Description(msgspec.Struct):
    """An OpenAPI description."""

    openapi: str
    paths: dict[str, Any]
