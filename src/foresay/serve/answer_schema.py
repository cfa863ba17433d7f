"""The JSON bodies of answers. /openapi.json is made of them, and of `foresay.serve.schema`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from foresay.drafter import Source

Count = Annotated[int, Meta(ge=0)]
Counts = list[Count]
Byte = Annotated[int, Meta(ge=0, le=255)]
Reason = Literal["stop", "length"]
ChatReason = Literal["stop", "length", "tool_calls"]


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


class CompletionDetails(Answer):
    """Tokens of the answers: those of reasoning; and drafted ones that were accepted or rejected,
    unless the server hides that."""

    reasoning_tokens: Count
    accepted_prediction_tokens: Count | UnsetType = UNSET
    rejected_prediction_tokens: Count | UnsetType = UNSET


class Usage(Answer):
    """Numbers of tokens."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


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


class CallDelta(Answer):
    """What is new of a call's function: first its name, then the text of its arguments."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Answer, kw_only=True):
    """What is new of a call; the first one has the id."""

    index: Count
    function: CallDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class Delta(Answer, kw_only=True):
    """A part of a message; the first one has the role. Reasoning has the two names that it has in
    other servers: clients know one of them."""

    content: str | UnsetType = UNSET
    role: Literal["assistant"] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Choice, kw_only=True):
    """A part of one of the answers."""

    finish_reason: ChatReason | None
    delta: Delta
    logprobs: ChatLogprobs | None


class FunctionCall(Answer):
    """What is called; the arguments are the text of a JSON object."""

    name: str
    arguments: str


class MessageToolCall(Answer, tag_field="type", tag="function"):
    """A call that the model asks for."""

    id: str
    function: FunctionCall


class Message(Answer):
    """The model's message; its content is null where it only calls tools."""

    content: str | None
    role: Literal["assistant"]
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ChatChoice(Choice, kw_only=True):
    """One of the answers."""

    finish_reason: ChatReason
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
