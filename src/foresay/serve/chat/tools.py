"""The tools of a request, and which of them may or must be called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from foresay.serve.limits import Limits, Refused
from foresay.serve.schema import Chat, FunctionDefinition, ToolChoice, ToolDefinition

__all__ = ["Choice", "Tool", "ToolUse", "tool_of", "tools_of", "use_of", "wrong_choice"]

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


class Choice(NamedTuple):
    """mode   "none", "auto", or "required": one must be called
    names  the only functions that may be called; none: all of them
    once   whether only one call may be made
    """

    mode: str = "auto"
    names: Sequence[str] = ()
    once: bool = False


def tools_of(body: Chat, limits: Limits) -> ToolUse | None:
    """The tools of a chat; None if it has none, or may call none.

    Raises: Refused.
    """
    taken = set[str]()
    tools = [_tool(one, f"tools[{at}]", taken) for at, one in enumerate(body.tools or ())]
    many = body.parallel_tool_calls is not False
    return use_of(tools, _choice(body.tool_choice), limits, many=many)


def use_of(tools: Sequence[Tool], choice: Choice, limits: Limits, *, many: bool) -> ToolUse | None:
    """The use of these tools; None if there are none, or none may be called.

    Raises: Refused for a choice that does not fit them, and for too many.
    """
    limits.check_most("tools", len(tools), limits.tools, "tools")
    names = [tool.name for tool in tools]
    if (choice.mode == "required" or choice.names) and not tools:
        shown = choice.names[0][:100] if choice.names else choice.mode
        raise wrong_choice(f"tool_choice is {shown!r} and there are no tools; expected some")
    for name in choice.names:
        if name not in names:
            shown = ", ".join(names)[:400]
            raise wrong_choice(f"tool_choice names {name[:100]!r}; expected one of {shown}")
    if not tools or choice.mode == "none":
        return None
    may = [tool for tool in tools if not choice.names or tool.name in choice.names]
    return ToolUse(tools, may, choice.mode == "required", many and not choice.once)


def tool_of(
    given: FunctionDefinition, at: str, taken: set[str], parameters: str = "parameters"
) -> Tool:
    """A function of a request.

    at          where it stands there
    taken       the names of those before it; it gets this one, too
    parameters  what its schema is called there

    Raises: Refused.
    """
    name = given.name
    if not _NAME.fullmatch(name):
        raise _wrong(
            f"{at}.name is {name[:140]!r}; expected 1 to 128 letters, digits and _ - . : /"
        )
    if name in taken:
        raise _wrong(f"{at}.name is {name!r} for the second time; expected a name of its own")
    taken.add(name)
    schema = dict(given.parameters or {})
    if schema.setdefault("type", "object") != "object":
        kind = str(schema["type"])[:40]
        raise _wrong(f"{at}.{parameters}.type is {kind!r}; expected 'object'")
    schema.setdefault("properties", {})
    if not given.parameters:
        schema["additionalProperties"] = False
    return Tool(name, given.description, schema, bool(given.strict))


def wrong_choice(message: str) -> Refused:
    """The refusal of a tool_choice."""
    return Refused(400, message, param="tool_choice")


def _tool(given: ToolDefinition, at: str, taken: set[str]) -> Tool:
    if given.type != "function":
        raise _wrong(f"{at}.type is {given.type[:40]!r}; expected 'function'")
    if given.function is None:
        raise _wrong(f"{at} has no function; expected an object")
    return tool_of(given.function, f"{at}.function", taken)


def _choice(choice: str | ToolChoice | None) -> Choice:
    if choice is None or isinstance(choice, str):
        mode = choice or "auto"
        if mode not in _MODES:
            shown = ", ".join(map(repr, _MODES))
            raise wrong_choice(f"tool_choice is {mode[:40]!r}; expected {shown} or an object")
        return Choice(mode)
    if choice.type == "function":
        if choice.function is None:
            raise wrong_choice("tool_choice has no function; expected an object with a name")
        return Choice("required", [choice.function.name], once=True)
    if choice.type != "allowed_tools":
        raise wrong_choice(
            f"tool_choice.type is {choice.type[:40]!r}; expected 'function' or 'allowed_tools'"
        )
    allowed = choice.allowed_tools
    if allowed is None:
        raise wrong_choice("tool_choice has no allowed_tools; expected an object with mode, tools")
    if allowed.mode not in ("auto", "required"):
        raise wrong_choice(
            f"tool_choice.allowed_tools.mode is {allowed.mode[:40]!r}; expected 'auto' or "
            "'required'"
        )
    named = [one.function.name for one in allowed.tools if one.function is not None]
    if not named:
        raise wrong_choice("tool_choice.allowed_tools.tools names no function; expected some")
    return Choice(allowed.mode, named)


def _wrong(message: str) -> Refused:
    return Refused(400, message, param="tools")
