"""What is refused of tools and forms, in each API's own words: one sentence that names the field
with its path, the value, and what would be valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.running import Running

SAID = [{"role": "user", "content": "a"}]
CHAT = ("/v1/chat/completions", {"messages": SAID, "max_tokens": 2})
RESPONSES = ("/v1/responses", {"input": "a", "max_output_tokens": 2})
MESSAGES = ("/v1/messages", {"messages": SAID, "max_tokens": 2})
NAMES = "expected 1 to 128 letters, digits and _ - . : /"


def function(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def flat(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **more}


CASES: list[tuple[tuple[str, dict[str, Any]], str, Any, str]] = [
    # route, field, its value, what is said
    (CHAT, "tool_choice", "any", "tool_choice is 'any'; expected 'none', 'auto', 'required' or an"),
    (CHAT, "tool_choice", 3, "tool_choice is 3; expected a text or an object"),
    (CHAT, "tool_choice", {}, "tool_choice has no type; expected a text"),
    (CHAT, "tool_choice", {"type": "function"}, "tool_choice has no function; expected an object"),
    (
        *(CHAT, "tool_choice", {"type": "function", "function": {}}),
        "tool_choice.function has no name; expected a text",
    ),
    (CHAT, "tool_choice", function("g"), "tool_choice names 'g'; expected one of f, b"),
    (
        *(CHAT, "tool_choice", {"type": "tool", "name": "f"}),
        "tool_choice.type is 'tool'; expected 'function' or 'allowed_tools'",
    ),
    (
        *(CHAT, "tool_choice", {"type": "allowed_tools"}),
        "tool_choice has no allowed_tools; expected an object",
    ),
    (
        *(CHAT, "tool_choice"),
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [function()]}},
        "tool_choice.allowed_tools.mode is 'none'; expected 'auto' or 'required'",
    ),
    (
        *(CHAT, "tool_choice"),
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        "tool_choice.allowed_tools.tools names no function; expected some",
    ),
    (CHAT, "tools", {}, "tools is {}; expected a list"),
    (CHAT, "tools", ["f"], "tools[0] is 'f'; expected an object"),
    (CHAT, "tools", [function(), {}], "tools[1] has no type; expected a text"),
    (CHAT, "tools", [{"type": "function"}], "tools[0] has no function; expected an object"),
    (CHAT, "tools", [flat()], "tools[0] has no function; expected an object"),
    (CHAT, "tools", [{"type": "web_search"}], "tools[0].type is 'web_search'; expected 'function'"),
    (
        *(CHAT, "tools", [{"type": "function", "function": {}}]),
        "tools[0].function has no name; expected a text",
    ),
    (CHAT, "tools", [function("a b")], f"tools[0].function.name is 'a b'; {NAMES}"),
    (CHAT, "tools", [function(7)], "tools[0].function.name is 7; expected a text"),
    (
        *(CHAT, "tools", [function(), function()]),
        "tools[1].function.name is 'f' for the second time; expected a name of its own",
    ),
    (
        *(CHAT, "tools", [function(parameters=[])]),
        "tools[0].function.parameters is []; expected an object",
    ),
    (
        *(CHAT, "tools", [function(parameters={"type": "array"})]),
        "tools[0].function.parameters.type is 'array'; expected 'object'",
    ),
    (
        *(CHAT, "response_format", {"type": "json_schema", "json_schema": []}),
        "response_format.json_schema is []; expected an object",
    ),
    (CHAT, "stream_granularity", "word", "stream_granularity is 'word'; expected 'token' or 'com"),
    (CHAT, "logit_bias", {"3": "x"}, "logit_bias['3'] is 'x'; expected a number"),
    (CHAT, "stop", [["x"]], 'stop[0] is ["x"]; expected a text'),
    (
        RESPONSES,
        "tool_choice",
        "any",
        "tool_choice is 'any'; expected 'none', 'auto', 'required' o",
    ),
    (RESPONSES, "tool_choice", {"type": "function"}, "tool_choice has no name; expected that of a"),
    (RESPONSES, "tool_choice", flat("g"), "tool_choice names 'g'; expected one of f, b"),
    (
        *(RESPONSES, "tool_choice", {"type": "mcp"}),
        "tool_choice.type is 'mcp'; expected 'function' or 'allowed_tools'",
    ),
    (
        *(RESPONSES, "tool_choice", {"type": "allowed_tools", "mode": "any", "tools": [flat()]}),
        "tool_choice.mode is 'any'; expected 'auto', 'required' or 'none'",
    ),
    (
        *(RESPONSES, "tool_choice", {"type": "allowed_tools", "mode": "auto"}),
        "tool_choice.tools names no function; expected some",
    ),
    (RESPONSES, "tools", [{"type": "function"}], "tools[0] has no name; expected a text"),
    (RESPONSES, "tools", [flat("a b")], f"tools[0].name is 'a b'; {NAMES}"),
    (RESPONSES, "tools", [{"type": "x"}, flat("a b")], f"tools[1].name is 'a b'; {NAMES}"),
    (
        *(RESPONSES, "tools", [flat(), flat()]),
        "tools[1].name is 'f' for the second time; expected a name of its own",
    ),
    (
        *(RESPONSES, "tools", [{"type": "namespace", "name": "n", "tools": [flat(), flat(3)]}]),
        "tools[0].tools[1].name is 3; expected a text",
    ),
    (
        *(RESPONSES, "tools", [{"type": "namespace", "name": "n", "tools": [flat(), flat("a b")]}]),
        f"tools[0].tools[1].name is 'n__a b'; {NAMES}",
    ),
    (
        *(RESPONSES, "tools", [flat(parameters={"type": "array"})]),
        "tools[0].parameters.type is 'array'; expected 'object'",
    ),
    (
        *(RESPONSES, "text", {"format": {"type": "xml"}}),
        "text.format.type is 'xml'; expected 'text', 'json_object' or 'json_schema'",
    ),
    (
        *(RESPONSES, "text", {"format": {"type": "json_schema", "schema": {"type": "objekt"}}}),
        "text.format is refused: Invalid type: objekt",
    ),
    (MESSAGES, "tool_choice", "auto", "tool_choice is 'auto'; expected an object"),
    (
        *(MESSAGES, "tool_choice", {"type": "required"}),
        "tool_choice.type is 'required'; expected 'auto', 'any', 'tool' or 'none'",
    ),
    (MESSAGES, "tool_choice", {"type": "tool"}, "tool_choice has no name; expected that of a tool"),
    (
        *(MESSAGES, "tool_choice", {"type": "tool", "name": "g"}),
        "tool_choice names 'g'; expected one of f, b",
    ),
    (MESSAGES, "tools", [{}], "tools[0] has no name; expected a text"),
    (MESSAGES, "tools", [{"name": "a b"}], f"tools[0].name is 'a b'; {NAMES}"),
    (
        *(MESSAGES, "tools", [{"name": "bash", "type": "bash_1"}, {"name": ""}]),
        f"tools[1].name is ''; {NAMES}",
    ),
    (
        *(MESSAGES, "tools", [{"name": "f"}, {"name": "f"}]),
        "tools[1].name is 'f' for the second time; expected a name of its own",
    ),
    (
        *(MESSAGES, "tools", [{"name": "f", "input_schema": "x"}]),
        "tools[0].input_schema is 'x'; expected an object",
    ),
    (
        *(MESSAGES, "tools", [{"name": "f", "input_schema": {"type": "array"}}]),
        "tools[0].input_schema.type is 'array'; expected 'object'",
    ),
    (
        *(MESSAGES, "output_config", {"format": {"type": "json_schema", "schema": 3}}),
        "output_config.format.schema is 3; expected an object",
    ),
    (
        *(
            MESSAGES,
            "output_config",
            {"format": {"type": "json_schema", "schema": {"$ref": "#/x"}}},
        ),
        "output_config.format is refused: Pointer '/x' does not exist",
    ),
    (MESSAGES, "messages", None, "messages is null; expected a list"),
    *(
        (
            route,
            field,
            value,
            f"{field} is {json.dumps(value)}; it is a field of /v1/chat/completions",
        )
        for route in (RESPONSES, MESSAGES)
        for field, value in (("structured_outputs", {"regex": "a"}), ("min_tokens", 3))
    ),
]
TOOLS = {
    CHAT[0]: [function("f"), function("b")],
    RESPONSES[0]: [flat("f"), flat("b")],
    MESSAGES[0]: [{"name": "f"}, {"name": "b"}],
}


@pytest.mark.parametrize(("route", "field", "value", "said"), CASES)
def test_it_is_said_what_is_wrong(
    server: Running, route: tuple[str, dict[str, Any]], field: str, value: Any, said: str
) -> None:
    path, body = route
    answer = server.post(path, {**body, "tools": TOOLS[path], field: value})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["message"].startswith(said)
    if path != MESSAGES[0]:
        assert error["param"] == ("text.format" if "text.format is" in said else field)


def test_a_large_body_is_refused_in_a_short_sentence(server: Running) -> None:
    """And one that Python's own reader cannot read is refused all the same."""
    path, body = CHAT
    long = server.refused(path, 400, **body, tools=["x" * 100_000])
    assert long["message"].startswith("tools[0] is 'xxx") and len(long["message"]) < 150
    deep = b'{"messages":3,"metadata":' + b"[" * 900 + b"]" * 900 + b"}"
    for sent in (
        deep,
        b'{"messages":[],"n":1e400}',
        b'{"messages":[{"role":"\\ud800","a":1}],"n":"x"}',
    ):
        answer = server.post(path, sent)
        assert answer.status_code == 400 and len(answer.json()["error"]["message"]) < 200
