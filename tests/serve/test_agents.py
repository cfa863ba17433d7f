"""Agents at /v1/responses and /v1/messages: tools, forms, reasoning, conversations with calls. All
of it is the same on a server without drafts, and what chats answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response

from foresay.engine.llm import LLM
from serve.response_client import streamed, told
from serve.running import MEMORY, Running, running
from tiny import one_thread

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 6}},
    "required": ["place"],
    "additionalProperties": False,
}
NUMBER: dict[str, Any] = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["n"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "get_weather", "description": "Now.", "parameters": PLACE}
COUNT = {"type": "function", "name": "count", "parameters": NUMBER, "strict": True}
ASKED: dict[str, Any] = {"input": "How is the weather?", "max_output_tokens": 200}
SAID = [{"role": "user", "content": "How is the weather?"}]
GREEDY, SAMPLED = {"temperature": 0}, {"temperature": 1.0, "seed": 4}
BOTH = pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["0", "1"])
MESSAGE_TOOLS = [
    {"name": "get_weather", "description": "Now.", "input_schema": PLACE},
    {"name": "count", "input_schema": NUMBER, "type": "custom"},
]


@pytest.fixture(scope="module")
def undrafted(folder: Path) -> Iterator[Running]:
    """The same server without speculation."""
    with one_thread():
        llm = LLM(folder, None, dtype="float32", memory=MEMORY)
        with running(llm, None) as found:
            yield found


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as found:
        yield found


def answered(server: Running, **body: Any) -> list[dict[str, Any]]:
    """What comes out of /v1/responses, the same whole and streamed."""
    whole = server.good("/v1/responses", **body)
    Response.model_validate(whole)
    events = streamed(server, "/v1/responses", **body)
    last = events[-1]["response"]
    assert told(last["output"]) == told(whole["output"]) and last["status"] == whole["status"]
    assert [e["item"] for e in events if e["type"] == "response.output_item.done"] == last["output"]
    output: list[dict[str, Any]] = whole["output"]
    return output


@BOTH
def test_a_call_is_that_of_a_chat_and_of_a_server_without_drafts(
    server: Running, undrafted: Running, params: dict[str, Any]
) -> None:
    tools = {"tools": [WEATHER, COUNT], "tool_choice": "required", "parallel_tool_calls": False}
    (item,) = answered(server, **ASKED, **tools, **params)
    assert item["type"] == "function_call" and item["status"] == "completed"
    assert item["name"] in ("get_weather", "count") and item["call_id"] != item["id"]
    assert isinstance(json.loads(item["arguments"]), dict)
    assert told(answered(undrafted, **ASKED, **tools, **params)) == told([item])
    chat = server.good(
        "/v1/chat/completions",
        messages=SAID,
        max_tokens=200,
        tools=[
            {"type": "function", "function": {k: v for k, v in one.items() if k != "type"}}
            for one in (WEATHER, COUNT)
        ],
        **{k: v for k, v in tools.items() if k != "tools"},
        **params,
    )
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": item["name"], "arguments": item["arguments"]}


@BOTH
def test_a_tool_use_is_the_same_call(
    server: Running, undrafted: Running, params: dict[str, Any]
) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked = {"messages": SAID, "max_tokens": 200, "tools": MESSAGE_TOOLS, "tool_choice": choice}
    whole = server.good("/v1/messages", **asked, **params)
    (block,) = whole["content"]
    assert block["type"] == "tool_use" and whole["stop_reason"] == "tool_use"
    assert set(block["input"]) == ({"place"} if block["name"] == "get_weather" else {"n"})
    other = undrafted.good("/v1/messages", **asked, **params)
    assert told(other["content"]) == told([block])
    events = streamed(server, "/v1/messages", **asked, **params)
    assert told([events[1]["content_block"]]) == told([{**block, "input": {}}])
    pieces = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == block["input"] and len(pieces) > 1
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_tool_use_that_is_cut_off(server: Running) -> None:
    """By `max_tokens` or a stop sequence: the reason says so, and the input has what is whole."""
    text = {"type": "string", "minLength": 500}
    schema = {"type": "object", "properties": {"kind": {"const": "note"}, "text": text}}
    tool = {"name": "write", "input_schema": {**schema, "required": ["kind", "text"]}}
    asked = {"messages": SAID, "tools": [tool], "tool_choice": {"type": "any"}, **GREEDY}
    for most, wanted in ((20, None), (60, {"kind": "note"}), (90, {"kind": "note"})):
        whole = server.good("/v1/messages", **asked, max_tokens=most)
        uses = [block for block in whole["content"] if block["type"] == "tool_use"]
        assert [use["input"] for use in uses] == ([] if wanted is None else [wanted])
        assert "".join(block.get("text", "") for block in whole["content"]) == ""
        events = streamed(server, "/v1/messages", **asked, max_tokens=most)
        assert whole["stop_reason"] == events[-2]["delta"]["stop_reason"] == "max_tokens"
    whole = server.good("/v1/messages", **asked, max_tokens=600, stop_sequences=["text"])
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "text")
    assert whole["content"][0]["input"] == {"kind": "note"}


def test_the_events_of_a_call_in_their_order(server: Running) -> None:
    events = streamed(
        server, "/v1/responses", tools=[WEATHER], tool_choice="required", **ASKED, **GREEDY
    )
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:3] == ["created", "in_progress", "output_item.added"]
    assert "function_call_arguments.delta" in kinds
    calls = [e for e in events if "function_call" in e["type"]]
    ended = [at for at, kind in enumerate(kinds) if kind == "function_call_arguments.done"]
    for at in ended:
        item = events[at + 1]["item"]
        assert kinds[at + 1] == "output_item.done" and item["arguments"] == events[at]["arguments"]
        own = [e for e in calls if e["item_id"] == item["id"]]
        assert "".join(e.get("delta", "") for e in own) == item["arguments"]
    added = events[2]["item"]
    assert added["arguments"] == "" and added["status"] == "in_progress"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "function", "name": "count"}, {"count"}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}],
            },
            {"get_weather"},
        ),
        ("none", set()),
    ],
)
def test_choices_of_tools(server: Running, choice: Any, names: set[str]) -> None:
    body = {**ASKED, "max_output_tokens": 120, "tools": [WEATHER, COUNT], "tool_choice": choice}
    whole = server.good("/v1/responses", **body, **GREEDY)
    Response.model_validate(whole)
    called = {item["name"] for item in whole["output"] if item["type"] == "function_call"}
    assert called == names and whole["tool_choice"] == choice
    error = server.refused(
        "/v1/responses", 400, **{**body, "tool_choice": {"type": "function", "name": "x"}}
    )
    assert "'x'" in error["message"] and error["param"] == "tool_choice"


def test_a_message_names_its_tool(server: Running) -> None:
    asked = {"messages": SAID, "max_tokens": 120, "tools": MESSAGE_TOOLS, **GREEDY}
    choice = {"type": "tool", "name": "count"}
    (block, *_) = server.good("/v1/messages", **asked, tool_choice=choice)["content"]
    assert block["name"] == "count" and 0 <= block["input"]["n"] <= 999
    none = server.good("/v1/messages", **asked, tool_choice={"type": "none"})
    assert {block["type"] for block in none["content"]} == {"text"}
    bare = server.good("/v1/messages", **{**asked, "tools": None})
    assert none["content"] == bare["content"]
    told_of = server.good("/v1/messages/count_tokens", messages=SAID, tools=MESSAGE_TOOLS)
    alone = server.good("/v1/messages/count_tokens", messages=SAID)
    assert told_of["input_tokens"] > alone["input_tokens"] + 100


@BOTH
def test_a_conversation_with_calls(
    server: Running, undrafted: Running, params: dict[str, Any]
) -> None:
    """Call, result, answer: by previous_response_id, with all items sent again, as a chat, and as
    messages: one prompt, one answer."""
    tools: dict[str, Any] = {"tools": [COUNT], "parallel_tool_calls": False}
    first = server.good("/v1/responses", **ASKED, **tools, tool_choice="required", **params)
    (call,) = first["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "it rains"}
    more = {"max_output_tokens": 30, **tools, "tool_choice": "auto", **params}
    second = server.good("/v1/responses", input=[result], previous_response_id=first["id"], **more)
    again = [{"role": "user", "content": ASKED["input"]}, call, result]
    for other in (server, undrafted):
        whole = other.good("/v1/responses", input=again, **more)
        assert told(whole["output"]) == told(second["output"])
        assert whole["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    parts = [{**result, "output": [{"type": "input_text", "text": t} for t in ("it ", "rains")]}]
    whole = server.good("/v1/responses", input=[*again[:2], *parts], **more)
    assert told(whole["output"]) == told(second["output"])
    use = {"id": call["call_id"], "name": "count", "input": json.loads(call["arguments"])}
    message = server.good(
        "/v1/messages",
        messages=[
            *SAID,
            {"role": "assistant", "content": [{"type": "tool_use", **use}]},
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": use["id"],
                        "content": [{"type": "text", "text": "it rains"}],
                    }
                ],
            },
        ],
        tools=[{"name": "count", "input_schema": NUMBER, "strict": True}],
        max_tokens=30,
        **params,
    )
    usage = message["usage"]
    assert (
        usage["input_tokens"] + usage["cache_read_input_tokens"]
        == (second["usage"]["input_tokens"])
    )
    texts = [part["text"] for item in second["output"] for part in item["content"]]
    assert [block["text"] for block in message["content"]] == texts


def test_what_codex_sends(server: Running) -> None:
    """Its fields, and its tools: functions are told to the model, also those in a namespace; the
    ones that OpenAI runs itself are left out."""
    namespace = {
        "type": "namespace",
        "name": "mcp__files__",
        "description": "Tools in the mcp__files__ namespace.",
        "tools": [{**COUNT, "defer_loading": False}, {"type": "custom", "name": "patch"}],
    }
    others: list[dict[str, Any]] = [
        {"type": "web_search", "external_web_access": True},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "tool_search", "execution": "client", "description": "", "parameters": {}},
    ]
    part = {"type": "input_text", "text": "Fix it."}
    body: dict[str, Any] = {
        "model": "tiny",
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "developer", "content": [part]},
            {"type": "message", "role": "user", "content": [part]},
            {"type": "reasoning", "summary": [], "encrypted_content": None},
            {"type": "function_call", "namespace": "mcp__files__", "name": "count"}
            | {"arguments": '{"n": 7}', "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "seven"},
        ],
        "tools": [*others, namespace],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199",
        "client_metadata": {"x-codex-installation-id": "1"},
    }
    events = streamed(server, "/v1/responses", **body, max_output_tokens=8, temperature=0)
    last = events[-1]["response"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    (shown,) = last["tools"]
    assert shown["type"] == "namespace" and [t["name"] for t in shown["tools"]] == ["count"]
    # A call of it comes out as it went in.
    choice = {"type": "function", "name": "mcp__files__count"}
    named = {**body, "stream": False, "tool_choice": choice, "max_output_tokens": 120}
    (call, *_) = server.good("/v1/responses", **named, temperature=0)["output"]
    assert (call["namespace"], call["name"]) == ("mcp__files__", "count")
    # And the model is told no more than of that function.
    flat = [{**COUNT, "name": "mcp__files__count"}]
    history = [
        {**one, "name": "mcp__files__count"} if "name" in one else one for one in body["input"]
    ]
    for one in history:
        one.pop("namespace", None)
    bare = {"instructions": body["instructions"], "input": history, "tools": flat}
    plain = server.good("/v1/responses", **bare, max_output_tokens=8, temperature=0)
    assert told(plain["output"]) == told(last["output"])
    assert plain["usage"]["input_tokens"] == last["usage"]["input_tokens"]


class Point(pydantic.BaseModel):
    """What an answer is parsed into."""

    x: int = pydantic.Field(ge=0, le=99)
    y: int = pydantic.Field(ge=0, le=99)


@BOTH
def test_the_form_of_a_text(
    server: Running, undrafted: Running, client: openai.OpenAI, params: dict[str, Any]
) -> None:
    schema = {**Point.model_json_schema(), "additionalProperties": False}
    form = {"type": "json_schema", "name": "point", "schema": schema, "strict": True}
    asked = {**ASKED, **params, "text": {"format": form}}
    (item,) = answered(server, **asked)
    point = Point.model_validate_json(item["content"][0]["text"])
    assert told(answered(undrafted, **asked)) == told([item])
    message = server.good(
        "/v1/messages",
        messages=SAID,
        max_tokens=200,
        output_config={"format": {"type": "json_schema", "schema": schema}},
        **params,
    )
    assert message["content"][0]["text"] == item["content"][0]["text"]
    assert message["stop_reason"] == "end_turn"
    more = {k: v for k, v in params.items() if k != "seed"}
    extra = {"seed": params["seed"]} if "seed" in params else {}
    parsed = client.responses.parse(
        **{"model": "tiny", **ASKED, **more}, text_format=Point, extra_body=extra
    )
    assert parsed.output_parsed == point
    error = server.refused(
        "/v1/responses", 400, **ASKED, text={"format": {**form, "schema": {"type": "nothing"}}}
    )
    assert error["param"] == "text.format" and "text.format" in error["message"]


def test_after_all_this_nothing_is_held(server: Running) -> None:
    server.idle()
