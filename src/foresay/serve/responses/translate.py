"""A request to /v1/responses as a chat."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from foresay.serve import schema as chats
from foresay.serve.chat.tools import Choice, tool_of, wrong_choice
from foresay.serve.chat.tools import Tool as ChatTool
from foresay.serve.limits import Refused
from foresay.serve.responses.items import messages_of
from foresay.serve.responses.schema import (
    FunctionTool,
    Item,
    NamespaceTool,
    ResponseBody,
    TextFormat,
    Tool,
    ToolChoice,
)
from foresay.serve.validate import ChatFields

__all__ = ["NAMES", "Tools", "chat_of", "check", "choice_of", "tools_of"]

_LOGPROBS = "message.output_text.logprobs"
_NEVER = (  # there is nothing of the kind that could be included
    *("reasoning.encrypted_content", "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "message.input_image.image_url"),
    *("computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
_PAIRS, _KEY, _VALUE = 16, 64, 512  # of metadata: pairs, characters
NAMES = ChatFields("input", "max_output_tokens", "text.format")
"""What the fields of a chat are called here."""

_log = logging.getLogger("foresay.serve")
_left_out: set[str] = set()


@dataclass(slots=True)
class Tools:
    """The tools of a request that the model is told of.

    told   as the response shows them
    chat   as a chat takes them
    names  the chat's name of each function that has a namespace
    taken  all names that the chat has for functions
    """

    told: list[FunctionTool | NamespaceTool] = field(default_factory=list)
    chat: list[ChatTool] = field(default_factory=list)
    names: dict[tuple[str, str], str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)


def check(body: ResponseBody) -> None:
    """Refuse what this server does not do.

    Raises: Refused.
    """
    if body.background:
        raise _refused("background", "background is true; expected false: stream the response")
    if body.truncation == "auto":
        raise _refused(
            "truncation", "truncation is 'auto'; expected 'disabled': send what is to be read"
        )
    for one in body.include or ():
        if one not in (_LOGPROBS, *_NEVER):
            raise _refused("include", f"include has {one[:60]!r}; expected {_LOGPROBS!r}")
    metadata = body.metadata or {}
    if len(metadata) > _PAIRS:
        raise _refused("metadata", f"metadata has {len(metadata)} pairs; expected at most {_PAIRS}")
    for key, value in metadata.items():
        if len(key) > _KEY or len(value) > _VALUE:
            raise _refused(
                "metadata",
                f"metadata has a key of {len(key)} characters with a value of {len(value)}; "
                f"expected at most {_KEY} and {_VALUE}",
            )


def tools_of(given: Sequence[Tool]) -> Tools:
    """The functions among the tools. What another server would run itself is left out: a model
    that is not told of a tool does not call it.

    Raises: Refused for a function without a name.
    """
    found = Tools()
    for at, tool in enumerate(given):
        if tool.type == "function":
            found.told.append(_function(f"tools[{at}]", tool, found, ""))
        elif tool.type == "namespace":
            namespace = _name(f"tools[{at}]", tool)
            listed = [
                _function(f"tools[{at}].tools[{number}]", one, found, namespace)
                for number, one in enumerate(tool.tools or ())
                if _is_function(one)
            ]
            found.told.append(NamespaceTool(namespace, tool.description, listed))
        else:
            _leave_out(tool.type)
    return found


def _is_function(tool: Tool) -> bool:
    if tool.type != "function":
        _leave_out(tool.type)
    return tool.type == "function"


def _function(at: str, tool: Tool, found: Tools, namespace: str) -> FunctionTool:
    name = _name(at, tool)
    if namespace:
        found.names[namespace, name] = f"{namespace.rstrip('_')}__{name}"
    told = found.names.get((namespace, name), name)
    function = chats.FunctionDefinition(told, tool.description, tool.parameters, tool.strict)
    found.chat.append(tool_of(function, at, found.taken))
    return FunctionTool(name, tool.description, tool.parameters, tool.strict)


def _name(at: str, tool: Tool) -> str:
    if not tool.name:
        raise _refused("tools", f"{at} has no name; expected a text")
    return tool.name


def _leave_out(kind: str) -> None:
    if kind not in _left_out and len(_left_out) < 64:
        _left_out.add(kind)
        _log.info("tools of the type %s are left out: this server has functions", ascii(kind[:40]))


def chat_of(body: ResponseBody, items: Sequence[Item], tools: Tools) -> chats.Chat:
    """The chat that a request asks for, without its tools; `items` are the whole conversation.

    Raises: Refused.
    """
    top = body.top_logprobs
    logprobs = bool(top) or _LOGPROBS in (body.include or ())
    given = body.text.format if body.text is not None else None
    return chats.Chat(
        messages=messages_of(items, body.instructions, tools.names),
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logprobs=logprobs,
        top_logprobs=top if logprobs else None,
        stream=body.stream,
        response_format=None if given is None else _format(given),
    )


def choice_of(choice: str | ToolChoice | None) -> Choice:
    """Which tools may or must be called.

    Raises: Refused.
    """
    if choice is None or isinstance(choice, str):
        return Choice(choice or "auto")
    if choice.type == "function":
        if not choice.name:
            raise wrong_choice("tool_choice has no name; expected that of a function")
        return Choice("required", [choice.name], once=True)
    if choice.type != "allowed_tools":
        raise wrong_choice(
            f"tool_choice.type is {choice.type[:40]!r}; expected 'function' or 'allowed_tools': "
            "this server has no other tools"
        )
    names = [tool.name for tool in choice.tools or () if tool.name]
    if not names:
        raise wrong_choice("tool_choice.tools names no function; expected some")
    return Choice(choice.mode or "auto", names)


def _format(given: TextFormat) -> chats.ResponseFormat:
    """The chat's response_format."""
    if given.type != "json_schema":
        return chats.ResponseFormat(given.type)
    schema = chats.JsonSchema(given.schema, given.name, given.description, given.strict)
    return chats.ResponseFormat("json_schema", schema)


def _refused(param: str, message: str) -> Refused:
    return Refused(400, message, param=param)
