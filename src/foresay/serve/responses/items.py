"""Input items of /v1/responses: checked, and as messages of a chat."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from foresay.serve.limits import Refused
from foresay.serve.responses.schema import (
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    InputPart,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Refusal,
    SummaryText,
)
from foresay.serve.schema import CalledFunction, ChatMessage, ToolCall

__all__ = ["items_of", "messages_of", "new_id"]

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text")
_KINDS = ("message", "function_call", "function_call_output", "reasoning")
_LONGEST = 64  # characters of an id


def new_id(kind: str) -> str:
    """A new id: `msg_…`, and nobody can guess it."""
    return f"{kind}_{secrets.token_hex(24)}"


def items_of(given: str | Sequence[InputItem]) -> list[Item]:
    """The input as items that have all that they need.

    Raises: Refused for an item that is not understood, and for what is not text.
    """
    if isinstance(given, str):
        return [MessageItem(new_id("msg"), "user", [InputText(given)], "completed")]
    return [_item(f"input[{at}]", item) for at, item in enumerate(given)]


def _item(at: str, item: InputItem) -> Item:
    kind = item.type or "message"
    if kind == "message":
        return _message(at, item)
    if kind == "function_call":
        name, arguments = _text(at, "name", item.name), _text(at, "arguments", item.arguments)
        call, more = _text(at, "call_id", item.call_id), {}
        if item.namespace:
            more["namespace"] = item.namespace
        return FunctionCallItem(_id(at, "fc", item), call, name, arguments, "completed", **more)
    if kind == "function_call_output":
        call = _text(at, "call_id", item.call_id)
        return FunctionOutputItem(_id(at, "fco", item), call, _output(at, item.output), "completed")
    if kind == "reasoning":
        summary = [SummaryText(part.text or "") for part in item.summary or ()]
        given = [] if isinstance(item.content, str) else item.content or []
        content = [ReasoningText(part.text or "") for part in given]
        return ReasoningItem(_id(at, "rs", item), summary, content, "completed")
    raise _refused(f"{at} is of type {kind[:40]!r}; expected {', '.join(_KINDS)}")


def _message(at: str, item: InputItem) -> MessageItem:
    if item.role not in _ROLES:
        raise _refused(f"{at} has the role {str(item.role)[:40]!r}; expected {', '.join(_ROLES)}")
    if item.content is None:
        raise _refused(f"{at} has no content; expected a text")
    parts: list[Any] = []
    content = item.content
    for part in [InputPart("text", content)] if isinstance(content, str) else content:
        if part.type == "refusal" and item.role == "assistant":
            parts.append(Refusal(part.refusal or ""))
        elif item.role == "assistant":
            parts.append(OutputText(_read(at, part), [], []))
        else:
            parts.append(InputText(_read(at, part)))
    return MessageItem(_id(at, "msg", item), item.role, parts, "completed")  # type: ignore[arg-type]


def _read(at: str, part: InputPart) -> str:
    if part.type not in _TEXTS or part.text is None:
        raise _refused(f"{at} has content of type {part.type[:40]!r}; expected a text")
    return part.text


def _output(at: str, output: Any) -> str:
    """What a function returned: a text, or parts that are texts."""
    if isinstance(output, str):
        return output
    try:
        parts = msgspec.convert(output, list[InputPart])
    except msgspec.ValidationError:
        raise _refused(f"{at} has no output; expected a text, or a list of texts") from None
    return "".join(_read(at, part) for part in parts)


def _id(at: str, kind: str, item: InputItem) -> str:
    if item.id is not None and not 0 < len(item.id) <= _LONGEST:
        raise _refused(f"{at} has an id of {len(item.id)} characters; expected 1 to {_LONGEST}")
    return new_id(kind) if item.id is None else item.id


def _text(at: str, name: str, value: str | None) -> str:
    if not value:
        raise _refused(f"{at} has no {name}; expected a text")
    return value


def _refused(message: str) -> Refused:
    return Refused(400, message, param="input")


def messages_of(
    items: Sequence[Item], instructions: str | None, names: Mapping[tuple[str, str], str]
) -> list[ChatMessage]:
    """Items as messages of a chat. Reasoning, a text and the calls that follow each other are one
    message of the assistant.

    names  the chat's name of each function that has a namespace
    """
    found: list[ChatMessage] = []
    if instructions:
        found.append(ChatMessage("system", instructions))
    turn: dict[str, Any] = {}  # the message of the assistant that is being put together

    def end() -> None:
        if turn:
            if "tool_calls" not in turn:
                turn.setdefault("content", "")
            found.append(ChatMessage("assistant", **turn))
            turn.clear()

    for item in items:
        if isinstance(item, ReasoningItem):
            if turn.keys() - {"reasoning_content"}:
                end()
            if text := "".join(part.text for part in item.content):
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
        elif isinstance(item, FunctionCallItem):
            name = names.get((item.namespace or "", item.name), item.name)
            called = CalledFunction(name, item.arguments)
            call = ToolCall(called, item.call_id, "function")
            turn.setdefault("tool_calls", []).append(call)
        elif isinstance(item, FunctionOutputItem):
            end()
            found.append(ChatMessage("tool", item.output, tool_call_id=item.call_id))
        elif item.role == "assistant":
            if "content" in turn or "tool_calls" in turn:
                end()
            turn["content"] = _content(item)
        else:
            end()
            found.append(ChatMessage(item.role, _content(item)))
    end()
    return found


def _content(item: MessageItem) -> str:
    return "".join(
        part.refusal if isinstance(part, Refusal) else part.text for part in item.content
    )
