"""The JSON bodies of /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from foresay.serve.answer_schema import Answer, ChatLogprob, CompletionDetails, Count

__all__ = [
    *("Deleted", "Failure", "FunctionCallItem", "FunctionOutputItem", "FunctionTool"),
    *("Incomplete", "InputItem", "InputItems", "InputPart", "InputText", "InputTokens"),
    *("Item", "MessageItem", "NamespaceTool", "OutputItem", "OutputText"),
    *("Reasoning", "ReasoningItem", "ReasoningText", "Refusal", "Response", "ResponseBody"),
    *("ResponseUsage", "Status", "SummaryText", "TextConfig", "TextField", "TextFormat"),
    *("Tool", "ToolChoice"),
]

Status = Literal["in_progress", "completed", "incomplete"]

# ---- requests ------------------------------------------------------------------------------------


class InputPart(msgspec.Struct, frozen=True):
    """A part of an item; only texts are read, and no URL is ever opened."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(msgspec.Struct, kw_only=True, frozen=True):
    """An item of the input, of any type; those without a type are messages."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: Any = None
    summary: list[InputPart] | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    """The form of the answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, frozen=True):
    """The form of the answer's text, and how long it shall be."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(msgspec.Struct):
    """How much the model shall reason, and whether a summary of it is wanted."""

    effort: str | None = None
    summary: str | None = None


class Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function, or a namespace with several; other types are left out."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list[Tool] | None = None


class ToolChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The function that must be called, or those that may be."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required", "none"] | None = None
    tools: list[Tool] | None = None


class ResponseBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of /v1/responses. null is the same as absent."""

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    background: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    top_logprobs: int | None = None
    text: TextConfig | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None


# ---- items ---------------------------------------------------------------------------------------


class InputText(Answer, tag_field="type", tag="input_text"):
    """A text that the client wrote."""

    text: str


class OutputText(Answer, tag_field="type", tag="output_text"):
    """A text that the model wrote."""

    text: str
    annotations: list[Any]
    logprobs: list[ChatLogprob]


class Refusal(Answer, tag_field="type", tag="refusal"):
    """A refusal of another model, in a conversation that goes on here."""

    refusal: str


class ReasoningText(Answer, tag_field="type", tag="reasoning_text"):
    """What the model wrote before its answer."""

    text: str


class SummaryText(Answer, tag_field="type", tag="summary_text"):
    """A summary of another model's reasoning."""

    text: str


class MessageItem(Answer, tag_field="type", tag="message"):
    """A message."""

    id: str
    role: Literal["user", "assistant", "system", "developer"]
    content: list[InputText | OutputText | Refusal]
    status: Status


class FunctionCallItem(Answer, tag_field="type", tag="function_call"):
    """A call of a function, with its arguments as JSON."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status
    namespace: str | UnsetType = UNSET


class FunctionOutputItem(Answer, tag_field="type", tag="function_call_output"):
    """What a function returned."""

    id: str
    call_id: str
    output: str
    status: Status


class ReasoningItem(Answer, tag_field="type", tag="reasoning"):
    """The model's reasoning; its summary is empty, for the text itself is there."""

    id: str
    summary: list[SummaryText]
    content: list[ReasoningText]
    status: Status


OutputItem = MessageItem | FunctionCallItem | ReasoningItem
Item = MessageItem | FunctionCallItem | ReasoningItem | FunctionOutputItem

# ---- answers -------------------------------------------------------------------------------------


class Incomplete(Answer):
    """Why a response ended before its end."""

    reason: Literal["max_output_tokens"]


class Failure(Answer):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class FunctionTool(Answer, tag_field="type", tag="function"):
    """A function that the model was told of."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class NamespaceTool(Answer, tag_field="type", tag="namespace"):
    """Several functions under one name."""

    name: str
    description: str | None
    tools: list[FunctionTool]


class TextField(Answer):
    """The form that the text has."""

    format: TextFormat
    verbosity: Literal["low", "medium", "high"]


class InputTokens(Answer):
    """Tokens that came from the prefix cache; none is ever paid for being written there."""

    cached_tokens: Count
    cache_write_tokens: Count


class ResponseUsage(Answer):
    """Numbers of tokens."""

    input_tokens: Count
    input_tokens_details: InputTokens
    output_tokens: Count
    output_tokens_details: CompletionDetails
    total_tokens: Count


class Response(Answer, kw_only=True, tag_field="object", tag="response"):
    """A response."""

    id: str
    created_at: Count
    completed_at: Count | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    incomplete_details: Incomplete | None
    error: Failure | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[OutputItem]
    tools: list[FunctionTool | NamespaceTool]
    tool_choice: Literal["none", "auto", "required"] | ToolChoice
    parallel_tool_calls: bool
    text: TextField
    reasoning: Reasoning
    truncation: Literal["disabled"]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: Count
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: Literal[False]
    service_tier: Literal["default"]
    metadata: dict[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    usage: ResponseUsage | None


class InputItems(Answer, tag_field="object", tag="list"):
    """The input of a response."""

    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Answer, tag_field="object", tag="response"):
    """That a response is not kept any more."""

    id: str
    deleted: Literal[True]
