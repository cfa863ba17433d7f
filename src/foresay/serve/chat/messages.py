"""Messages in the form that chat templates take."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from foresay.serve.chat.formats import ToolFormat
from foresay.serve.chat.tools import Tool
from foresay.serve.limits import Refused
from foresay.serve.schema import ChatMessage, ToolCall

__all__ = ["ROLES", "in_turns", "messages_of", "roles_of", "with_text_arguments", "without_tools"]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles that chat templates have in common."""

_INSTRUCT = ("system", "developer")
Messages = list[dict[str, Any]]
_COMPARED = re.compile(r"""role['"\]\s]*==\s*['"](\w+)['"]""")  # in a template


def roles_of(template: str) -> tuple[str, ...]:
    """The roles that a message may have: the usual ones, and those of the template."""
    return (*ROLES, *sorted(set(_COMPARED.findall(template)) - set(ROLES)))


def messages_of(
    messages: Sequence[ChatMessage],
    developer: str = "system",
    roles: Sequence[str] = ROLES,
    id_size: int = 0,
) -> Messages:
    """Messages in the form that chat templates take: the arguments of calls are objects where
    they can be, a tool's result has the name of the tool.

    developer  the template's role for developer messages
    roles      the roles that a message may have
    id_size    how long the template wants ids of calls to be; 0: as they are

    Raises: Refused for an unknown role or content that is not text.
    """
    if not messages:
        raise Refused(400, "messages is empty; expected at least one", param="messages")
    found: Messages = []
    called: dict[str, str] = {}  # the names of tools by the ids of their calls
    for at, message in enumerate(messages):
        role = developer if message.role == "developer" else message.role
        one: dict[str, Any] = {"role": role, "content": _content(message, at, roles)}
        if message.tool_calls:
            if message.role != "assistant":
                raise _wrong(
                    at, f"tool_calls and the role {message.role[:40]!r}; expected 'assistant'"
                )
            one["tool_calls"] = [_call(call, at, id_size) for call in message.tool_calls]
            called |= {c.id: c.function.name for c in message.tool_calls if c.id is not None}
        if message.role == "tool":
            name = message.name or called.get(message.tool_call_id or "")
            if name is not None:
                one["name"] = name
            if message.tool_call_id is not None:
                one["tool_call_id"] = _sized(message.tool_call_id, id_size)
        reasoning = message.reasoning_content or message.reasoning
        if message.role == "assistant" and reasoning:
            one["reasoning_content"] = reasoning
        found.append(one)
    return found


def with_text_arguments(messages: Messages) -> Messages:
    """The same messages, with the arguments of calls as texts: some templates want these."""

    def as_text(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    return [
        {**one, "tool_calls": list(map(as_text, one["tool_calls"]))} if "tool_calls" in one else one
        for one in messages
    ]


def in_turns(messages: Messages, *, system: bool = True) -> Messages:
    """The same messages for a template that wants one system message, the first, and then user and
    assistant in turns: neighbours are one message, and what the system says later the user tells;
    without `system`, all that it says.
    """
    found: Messages = []
    for one in messages:
        before = found[-1] if found else one
        first = system and before["role"] in _INSTRUCT
        if one["role"] in _INSTRUCT and not first:
            one = {**one, "role": "user"}
        plain = before.keys() == one.keys() == {"role", "content"}
        if found and plain and before["role"] == one["role"]:
            one = {**one, "content": f"{before['content']}\n\n{one['content']}"}
            found.pop()
        found.append(one)
    return found


def without_tools(
    messages: Messages, tools: Sequence[Tool], form: ToolFormat, *, calls: bool
) -> Messages:
    """Messages for a template that knows less of tools: a system message says which there are and
    how they are called; and with `calls`, calls are the text of the assistant, and their results
    are told by the user."""
    found: Messages = []
    for one in messages:
        if calls and "tool_calls" in one:
            written = form.written([_call_text(call, form) for call in one["tool_calls"]])
            text = f"{one['content']}\n{written}" if one["content"] else written
            one = {"role": one["role"], "content": text}
        elif calls and one["role"] == "tool":
            text = f"The result of {one.get('name', 'the call')}: {one['content']}"
            one = {"role": "user", "content": text, "result": True}
            if found and "result" in found[-1]:  # templates want user and assistant in turns
                one["content"] = f"{found.pop()['content']}\n{text}"
        found.append(one)
    if tools:
        said = [found.pop(0)["content"]] if found[0]["role"] == "system" else []
        told = "\n\n".join([*said, _about(tools, form)])
        found.insert(0, {"role": "system", "content": told})
    return [{key: value for key, value in one.items() if key != "result"} for one in found]


def _about(tools: Sequence[Tool], form: ToolFormat) -> str:
    definitions = (tool.definition["function"] for tool in tools)
    listed = "\n".join(json.dumps(one, ensure_ascii=False) for one in definitions)
    call = form.written([f'{{"name": its name, "{form.key}": an object that fits its parameters}}'])
    return (
        "You can call functions. To call one, answer with nothing but this, with an object in "
        f"JSON; for several calls write several objects:\n{call}\n"
        f"These are the functions:\n{listed}"
    )


def _call_text(call: dict[str, Any], form: ToolFormat) -> str:
    function = call["function"]
    value = {"name": function["name"], form.key: function["arguments"]}
    return json.dumps(value, ensure_ascii=False)


def _content(message: ChatMessage, at: int, roles: Sequence[str]) -> str:
    content = message.content
    if message.role not in roles:
        raise _wrong(at, f"the role {message.role[:40]!r}; expected {', '.join(roles)}")
    if content is None:
        if not message.tool_calls:
            raise _wrong(at, "no content; expected a text")
        return ""
    if isinstance(content, str):
        return content
    others = [part.type for part in content if part.type != "text" or part.text is None]
    if others:
        raise _wrong(at, f"content of type {others[0][:40]!r}; expected 'text'")
    return "".join(part.text or "" for part in content)


def _call(call: ToolCall, at: int, id_size: int) -> dict[str, Any]:
    if call.type not in (None, "function"):
        raise _wrong(at, f"a call of type {call.type[:40]!r}; expected 'function'")
    arguments: Any = call.function.arguments
    if not isinstance(arguments, dict):
        try:
            read = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            read = None  # a model may have written it, and it stays as it is
        arguments = read if isinstance(read, dict) else arguments
    function = {"name": call.function.name, "arguments": arguments}
    named = {} if call.id is None else {"id": _sized(call.id, id_size)}
    return {**named, "type": "function", "function": function}


def _sized(name: str, size: int) -> str:
    """An id of the wanted size; the same for the same id, which another server may have made."""
    if not size or (len(name) == size and name.isascii() and name.isalnum()):
        return name
    return hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:size]


def _wrong(at: int, what: str) -> Refused:
    return Refused(400, f"messages[{at}] has {what}", param="messages")
