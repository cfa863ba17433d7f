"""The JSON bodies of requests. /openapi.json is made of them, and of `foresay.serve.answer_schema`.

A request may have fields that are not here (`foresay.serve.parse`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class StreamOptions(msgspec.Struct, frozen=True):
    """Whether a stream has the usage: at its end, and in every chunk."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(msgspec.Struct, frozen=True):
    """The schema of a response format."""

    schema: dict[str, Any] | bool | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    """The form of the answer, as OpenAI has it."""

    type: str
    json_schema: JsonSchema | None = None


class Structure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer, as vLLM has it: one of these."""

    json: dict[str, Any] | str | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


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
    response_format: ResponseFormat | None = None
    structured_outputs: Structure | None = None
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


class CalledFunction(msgspec.Struct, frozen=True):
    """What was called: its arguments are the text of a JSON object, or that object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool, in a message of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of a conversation; a tool's result names the call by `tool_call_id`."""

    role: str
    content: str | list[Content] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A function that the model may call; `parameters` is the schema of its arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool: a function."""

    type: str
    function: FunctionDefinition | None = None


class NamedFunction(msgspec.Struct, frozen=True):
    """A function by its name."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A tool by its name."""

    type: str
    function: NamedFunction | None = None


class AllowedTools(msgspec.Struct, frozen=True):
    """Tools that may be called, or of which one must be."""

    mode: str
    tools: list[NamedTool]


class ToolChoice(msgspec.Struct, frozen=True):
    """The tool to call, or those that are allowed."""

    type: str
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


class Chat(Sampling, kw_only=True, frozen=True):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None


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
