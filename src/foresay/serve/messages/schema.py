"""The JSON bodies of /v1/messages, and the events of its streams."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from foresay.serve.answer_schema import Answer, Count

__all__ = [
    *("BlockDelta", "BlockStart", "BlockStop", "ContentBlock", "CountBody", "InputBlock"),
    *("InputDelta", "InputMessage", "InputTokens", "Message", "MessageBody", "MessageDelta"),
    *("MessageEvent", "MessageStart", "MessageStop", "MessageTool", "MessageToolChoice"),
    *("MessageUsage", "OutputConfig", "OutputDetails", "OutputFormat", "Ping", "Stop"),
    *("StopReason", "TextBlock", "TextDelta", "Thinking", "ThinkingBlock", "ThinkingDelta"),
    *("ToolUseBlock",),
]

StopReason = Literal[
    "end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"
]

# ---- requests ------------------------------------------------------------------------------------


class InputBlock(msgspec.Struct, kw_only=True, frozen=True):
    """A block of a message, of any type; only texts are read, and no URL is ever opened."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: Any = None
    is_error: bool | None = None


class InputMessage(msgspec.Struct, frozen=True):
    """A message of a conversation."""

    role: str
    content: str | list[InputBlock]


class MessageTool(msgspec.Struct, kw_only=True, frozen=True):
    """A function; tools of other types are left out."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessageToolChoice(msgspec.Struct, frozen=True):
    """Whether functions may or must be called, or the one that must be."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    """Whether the answer shows what the model wrote before it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """The schema that the answer follows."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    """The form of the answer."""

    format: OutputFormat | None = None
    effort: str | None = None


class CountBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of /v1/messages/count_tokens. null is the same as absent."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[InputBlock] | None = None
    tools: list[MessageTool] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessageBody(CountBody, kw_only=True, frozen=True):
    """The body of /v1/messages. null is the same as absent."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None


# ---- answers -------------------------------------------------------------------------------------


class TextBlock(Answer, tag_field="type", tag="text"):
    """A text."""

    text: str


class ThinkingBlock(Answer, tag_field="type", tag="thinking"):
    """What the model wrote before its answer; it is not signed."""

    thinking: str
    signature: str


class ToolUseBlock(Answer, tag_field="type", tag="tool_use"):
    """A call of a function. Its input is as the model wrote it; where it was cut off, what is
    whole of it."""

    id: str
    name: str
    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(Answer):
    """Tokens of the thinking."""

    thinking_tokens: Count


class MessageUsage(Answer):
    """Numbers of tokens; those from the prefix cache are not among the input's."""

    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count
    output_tokens_details: OutputDetails


class Message(Answer, kw_only=True, tag_field="type", tag="message"):
    """The model's message."""

    id: str
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class InputTokens(Answer):
    """How many tokens the messages have."""

    input_tokens: Count


# ---- events --------------------------------------------------------------------------------------


class MessageStart(Answer, tag_field="type", tag="message_start"):
    """The first event: a message without content."""

    message: Message


class BlockStart(Answer, tag_field="type", tag="content_block_start"):
    """A block begins."""

    index: Count
    content_block: ContentBlock


class TextDelta(Answer, tag_field="type", tag="text_delta"):
    """More of a text."""

    text: str


class ThinkingDelta(Answer, tag_field="type", tag="thinking_delta"):
    """More of the thinking."""

    thinking: str


class InputDelta(Answer, tag_field="type", tag="input_json_delta"):
    """More of the input of a call, as JSON."""

    partial_json: str


class BlockDelta(Answer, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: Count
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(Answer, tag_field="type", tag="content_block_stop"):
    """A block ends."""

    index: Count


class Stop(Answer):
    """Why the message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(Answer, tag_field="type", tag="message_delta"):
    """The end of the message, and its usage in all."""

    delta: Stop
    usage: MessageUsage


class MessageStop(Answer, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Answer, tag_field="type", tag="ping"):
    """That the server is still there."""


MessageEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
)
