"""A request to /v1/messages as a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from foresay.serve import schema as chats
from foresay.serve.chat.tools import Choice, ToolUse, tool_of, use_of, wrong_choice
from foresay.serve.limits import Limits, Refused
from foresay.serve.messages.schema import (
    CountBody,
    InputBlock,
    InputMessage,
    MessageBody,
    MessageToolChoice,
)
from foresay.serve.validate import ChatFields

__all__ = ["NAMES", "chat_of", "tools_of"]

NAMES = ChatFields(form="output_config.format", stop="stop_sequences")
"""What the fields of a chat are called here."""

_AS_SENT = ("stream", "temperature", "top_p", "top_k", "seed")
_ROLES = ("user", "assistant", "system")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_DROPPED = ("redacted_thinking",)  # another model's, which nobody here can read


def chat_of(body: CountBody, most: int) -> chats.Chat:
    """The chat that a request asks for, without its tools; its answer has at most so many tokens.

    Raises: Refused.
    """
    given = body.output_config.format if body.output_config is not None else None
    form = None if given is None else chats.JsonSchema(given.schema, strict=True)
    more: dict[str, Any] = {}
    if isinstance(body, MessageBody):
        more = {name: getattr(body, name) for name in _AS_SENT} | {"stop": body.stop_sequences}
    return chats.Chat(
        messages=_conversation(body),
        max_tokens=most,
        response_format=None if form is None else chats.ResponseFormat("json_schema", form),
        **more,
    )


def _conversation(body: CountBody) -> list[chats.ChatMessage]:
    """The messages of a request as those of a chat.

    Raises: Refused for what is not text, and for messages that do not end with the user's.
    """
    found: list[chats.ChatMessage] = []
    if body.system:
        found.append(chats.ChatMessage("system", _text("system", body.system)))
    for at, message in enumerate(body.messages):
        found += _message(f"messages[{at}]", message)
    if body.messages and body.messages[-1].role == "assistant":
        raise _refused(
            "messages",
            f"messages[{len(body.messages) - 1}] is the assistant's; expected the user's last: "
            "this server does not continue an answer that has begun",
        )
    return found


def _message(at: str, message: InputMessage) -> list[chats.ChatMessage]:
    role, content = message.role, message.content
    if role not in _ROLES:
        raise _refused("messages", f"{at} has the role {role[:40]!r}; expected {', '.join(_ROLES)}")
    if isinstance(content, str):
        return [chats.ChatMessage(role, content)]
    if role == "assistant":
        return [_assistant(at, content)]
    found: list[chats.ChatMessage] = []
    texts: list[str] = []
    for number, block in enumerate(content):
        where = f"{at}.content[{number}]"
        if block.type != "tool_result" or role != "user":
            texts.append(_block_text(where, block))
            continue
        if not block.tool_use_id:
            raise _refused("messages", f"{where} has no tool_use_id; expected a text")
        if texts:
            found.append(chats.ChatMessage(role, "\n".join(texts)))
            texts = []
        result = _result(f"{where}.content", block.content)
        if block.is_error:
            result = f"Error: {result}"
        found.append(chats.ChatMessage("tool", result, tool_call_id=block.tool_use_id))
    if texts or not found:
        found.append(chats.ChatMessage(role, "\n".join(texts)))
    return found


def _assistant(at: str, content: Sequence[InputBlock]) -> chats.ChatMessage:
    """All blocks of the assistant's message as one message."""
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[chats.ToolCall] = []
    for number, block in enumerate(content):
        where = f"{at}.content[{number}]"
        if block.type == "thinking":
            thinking.append(block.thinking or "")
        elif block.type == "tool_use":
            if not block.id or not block.name:
                raise _refused("messages", f"{where} has no id or no name; expected both")
            arguments = msgspec.json.encode(block.input or {}).decode()
            called = chats.CalledFunction(block.name, arguments)
            calls.append(chats.ToolCall(called, block.id, "function"))
        elif block.type not in _DROPPED:
            texts.append(_block_text(where, block))
    return chats.ChatMessage(
        "assistant",
        "".join(texts) if texts or not calls else None,
        tool_calls=calls or None,
        reasoning_content="".join(thinking) or None,
    )


def _result(at: str, content: Any) -> str:
    """What a tool returned: a text, blocks of text, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    try:
        blocks = msgspec.convert(content, list[InputBlock])
    except msgspec.ValidationError:
        raise _refused("messages", f"{at} has no text; expected a text or blocks") from None
    return _text(at, blocks)


def _text(at: str, given: str | Sequence[InputBlock]) -> str:
    if isinstance(given, str):
        return given
    return "\n".join(_block_text(f"{at}[{n}]", block) for n, block in enumerate(given))


def _block_text(at: str, block: InputBlock) -> str:
    if block.type != "text" or block.text is None:
        raise _refused("messages", f"{at} is of type {block.type[:40]!r}; expected 'text'")
    return block.text


def tools_of(body: CountBody, limits: Limits) -> ToolUse | None:
    """The functions among the tools, and which may or must be called. Tools of another type have
    no schema here: a model that is not told of a tool does not call it.

    Raises: Refused.
    """
    taken = set[str]()
    tools = [
        tool_of(
            chats.FunctionDefinition(tool.name, tool.description, tool.input_schema, tool.strict),
            *(f"tools[{at}]", taken, "input_schema"),
        )
        for at, tool in enumerate(body.tools or ())
        if tool.type in (None, "custom")
    ]
    choice = body.tool_choice
    many = choice is None or not choice.disable_parallel_tool_use
    return use_of(tools, _choice(choice), limits, many=many)


def _choice(choice: MessageToolChoice | None) -> Choice:
    if choice is None or choice.type != "tool":
        return Choice("auto" if choice is None else _CHOICES[choice.type])
    if not choice.name:
        raise wrong_choice("tool_choice has no name; expected that of a tool")
    return Choice("required", [choice.name], once=True)


def _refused(param: str, message: str) -> Refused:
    return Refused(400, message, param=param)
