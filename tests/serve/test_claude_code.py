"""Turns of Claude Code at /v1/messages: the shapes of what version 2.1.197 sends, a model that
calls its tools, and what comes back. (The program itself: `tests/clients/test_claude_code.py`.)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve.response_client import streamed, told
from serve.running import Running, served
from serve.scripted import save_agent, save_scripted

PATH = "/v1/messages"
READ = '{"name": "Read", "arguments": {"file_path": "/a"}}'
ANSWERS = {
    "Error: It is not there": ["There is none."],
    "The result of": ["It is empty."],
    "Read": ["<think>", "I have to read it.", "</think>", READ],
}
CACHED = {"cache_control": {"type": "ephemeral"}}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "Read",
        "description": "Reads a file.",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "file_path": {"type": "string", "description": "The path."},
                "offset": {"type": "integer", "minimum": 0, "maximum": 9007199254740991},
            },
            "required": ["file_path"],
            "additionalProperties": False,
        },
        "eager_input_streaming": True,
    },
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    {"type": "bash_20250124", "name": "bash", **CACHED},
]
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24",
    "x-api-key": "unused",
    "x-app": "cli",
}


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def asked(question: str, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request as Claude Code makes it: a system message stands behind the user's first."""
    first = [text("<system-reminder>The date.</system-reminder>"), text(question, **CACHED)]
    return {
        "model": "tiny",
        "messages": [
            {"role": "user", "content": first},
            {"role": "system", "content": "Available agents: none."},
            *more,
        ],
        "system": [
            text("x-billing: 1"),
            text("You are an agent.", **CACHED),
            text("\nBe good.", cache_control={"type": "ephemeral", "ttl": "1h"}),
        ],
        "tools": TOOLS,
        "metadata": {"user_id": '{"device_id":"1"}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        **fields,
    }


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(save_agent(tmp_path_factory.mktemp("agent"), ANSWERS)) as found:
        yield found


def good(agent: Running, **body: Any) -> dict[str, Any]:
    """A message, the same whole and streamed; with the headers and the query that come with it."""
    answer = agent.post(f"{PATH}?beta=true", body, **HEADERS)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    events = streamed(agent, PATH, **body)
    begun = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in begun] == [block["type"] for block in found["content"]]
    assert events[-2]["delta"]["stop_reason"] == found["stop_reason"]
    return found


def test_a_turn_with_a_tool(agent: Running) -> None:
    """Thoughts and a call, then its result, then an answer. Thoughts come back without a
    signature that would mean anything here."""
    first = good(agent, **asked("Read it."))
    thought, use = first["content"]
    assert thought == {"type": "thinking", "thinking": "I have to read it.", "signature": ""}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "Read", {"file_path": "/a"})
    assert first["stop_reason"] == "tool_use"
    history = {"role": "assistant", "content": [thought, use]}
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": "", "is_error": False}
    for content in ("", [text("")], None):
        given = {"role": "user", "content": [{**result, "content": content, **CACHED}]}
        answer = good(agent, **asked("Read it.", history, given))
        assert told(answer["content"]) == [text("It is empty.")]
        assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)


def test_the_model_is_told_that_a_tool_has_failed(agent: Running) -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is not there."}
    for fields, said in (({"is_error": True}, "There is none."), ({}, "It is empty.")):
        history = [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{**result, **fields}]},
        ]
        assert good(agent, **asked("Read it.", *history))["content"] == [text(said)]


def test_the_rest_of_the_context_is_the_most(tmp_path: Path) -> None:
    """It asks for 32,000 tokens, whatever the context; an answer that fills it says so."""
    said = [{"role": "user", "content": "Talk."}]
    with served(save_scripted(tmp_path, "ab", context=256)) as endless:
        left = 256 - endless.good(f"{PATH}/count_tokens", messages=said)["input_tokens"]
        for most, reason in (
            (32000, "model_context_window_exceeded"),
            (left + 1, "model_context_window_exceeded"),
            (left, "max_tokens"),
            (left - 1, "max_tokens"),
        ):
            found = good(endless, messages=said, max_tokens=most)
            assert found["stop_reason"] == reason
            assert found["usage"]["output_tokens"] == min(most, left)
        # Chats are refused: the interface that they have does not know such an end.
        chat = {"messages": said, "max_tokens": left + 1}
        error = endless.refused("/v1/chat/completions", 400, **chat)
        assert error["code"] == "context_length_exceeded"


def test_what_it_is_told_when_it_asks_for_too_much(agent: Running) -> None:
    """It knows a full context by these words, and then makes its conversation shorter."""
    long = asked("Read it." + " " * 5000, stream=True)
    error = agent.post(PATH, long).json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: the prompt has ")
    counted = agent.good(
        f"{PATH}/count_tokens",
        **{k: long[k] for k in ("messages", "system", "tools", "thinking", "model")},
    )
    assert counted["input_tokens"] > 5000


def test_images_are_refused_where_they_stand(agent: Running) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("a"), image]}
    for content, place in (([result], "content[0].content[1]"), ([text("a"), image], "content[1]")):
        answer = agent.post(PATH, asked("Read it.", {"role": "user", "content": content}))
        assert answer.status_code == 400
        said = answer.json()["error"]["message"]
        assert said == f"messages[2].{place} is of type 'image'; expected 'text'"


def test_after_all_this_nothing_is_held(agent: Running) -> None:
    agent.idle()
