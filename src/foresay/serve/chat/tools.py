"""The tools of a request, and which of them may or must be called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foresay.serve.limits import Limits, Refused
from foresay.serve.schema import Chat, ToolChoice, ToolDefinition

__all__ = ["Tool", "ToolUse", "tools_of"]

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `schema` is that of its arguments, always an object's;
    `strict`: what it says must all be kept, or the request is refused."""

    name: str
    description: str | None
    schema: dict[str, Any]
    strict: bool

    @property
    def definition(self) -> dict[str, Any]:
        """As chat templates take it."""
        about = {} if self.description is None else {"description": self.description}
        function = {"name": self.name, **about, "parameters": self.schema}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools     all that the model is told about
    callable  those of them that it may call
    must      whether it must call one
    many      whether it may call several
    """

    tools: Sequence[Tool]
    callable: Sequence[Tool]
    must: bool
    many: bool


def tools_of(body: Chat, limits: Limits) -> ToolUse | None:
    """The tools of a chat; None if it has none, or may call none.

    Raises: Refused.
    """
    given = body.tools or []
    limits.check_most("tools", len(given), limits.tools, "tools")
    tools = [_tool(one, at) for at, one in enumerate(given)]
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise Refused(400, f"tools has {name!r} twice; expected one of it", param="tools")
    mode, called, must = _choice(body.tool_choice)
    if (must or called) and not tools:
        raise Refused(
            400,
            f"tool_choice is {called[0] if called else mode!r} and there are no tools; "
            "expected tools with it",
            param="tool_choice",
        )
    for name in called:
        if name not in names:
            raise Refused(
                400,
                f"tool_choice names {name[:100]!r}; expected one of {', '.join(names)[:400]}",
                param="tool_choice",
            )
    if not tools or mode == "none":
        return None
    may = [tool for tool in tools if not called or tool.name in called]
    many = body.parallel_tool_calls is not False and mode != "function"
    return ToolUse(tools, may, must, many)


def _tool(given: ToolDefinition, at: int) -> Tool:
    where = f"tools[{at}]"
    function = given.function
    if given.type != "function" or function is None:
        shown = "without a function" if given.type == "function" else f"{given.type[:40]!r}"
        raise Refused(400, f"{where} is {shown}; expected type 'function', and it", param="tools")
    if not _NAME.fullmatch(function.name):
        raise Refused(
            400,
            f"{where}.function.name is {function.name[:140]!r}; expected 1 to 128 letters, digits "
            "and _ - . : /",
            param="tools",
        )
    schema = dict(function.parameters or {})
    if schema.setdefault("type", "object") != "object":
        raise Refused(
            400,
            f"{where}.function.parameters has type {str(schema['type'])[:40]!r}; expected 'object'",
            param="tools",
        )
    schema.setdefault("properties", {})
    if not function.parameters:
        schema["additionalProperties"] = False
    return Tool(function.name, function.description, schema, bool(function.strict))


def _choice(choice: str | ToolChoice | None) -> tuple[str, list[str], bool]:
    """The mode of a choice, the functions that it names, and whether one must be called."""
    if choice is None or isinstance(choice, str):
        mode = choice or "auto"
        if mode not in _MODES:
            raise _unknown(mode)
        return mode, [], mode == "required"
    if choice.type == "function" and choice.function is not None:
        return "function", [choice.function.name], True
    allowed = choice.allowed_tools
    if choice.type == "allowed_tools" and allowed is not None:
        named = [one.function.name for one in allowed.tools if one.function is not None]
        if allowed.mode in ("auto", "required") and named:
            return allowed.mode, named, allowed.mode == "required"
    raise _unknown(choice.type)


def _unknown(choice: str) -> Refused:
    return Refused(
        400,
        f"tool_choice is {choice[:40]!r}; expected none, auto, required, a function by its name, "
        "or allowed_tools with some",
        param="tool_choice",
    )
