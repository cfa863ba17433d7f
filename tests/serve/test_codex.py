"""Turns of Codex at /v1/responses: the shapes of what version 0.169.0 sends, a model that calls its
shell, and what comes back. (The program itself: `tests/clients/test_codex.py`.)"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from serve.response_client import PATH, events_of, told
from serve.running import Running, served
from serve.scripted import save_agent

CALL = '{"name": "exec_command", "arguments": {"cmd": "ls"}}'
NESTED = '{"name": "mcp__files__read", "arguments": {"path": "a"}}'
ANSWERS = {
    "The result of": ["There is ", "one file."],
    "Look": ["<think>", "I have to look.", "</think>", CALL],
    "Read": [NESTED],
}
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
PLACE = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
OTHERS: list[dict[str, Any]] = [
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
    {"type": "local_shell"},
    {"type": "tool_search", "execution": "client", "description": "", "parameters": {}},
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "A patch.",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"},
    },
]
FILES = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Tools in the mcp__files namespace.",
    "tools": [{"type": "function", "name": "read", "strict": False, "parameters": PLACE}],
}
HEADERS = {
    "accept": "text/event-stream",
    "originator": "codex_exec",
    "session-id": "01a1",
    "x-codex-beta-features": "remote_compaction_v2",
    "x-codex-turn-metadata": '{"turn_id":"01a2"}',
}


def message(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text} for text in texts]
    return {"type": "message", "id": f"msg_{len(texts)}", "role": role, "content": content}


def asked(question: str, *more: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A request as Codex makes it."""
    return {
        "model": "tiny",
        "input": [
            message("developer", "You are a coding agent."),
            message("developer", "<skills_instructions>", "<permissions instructions>"),
            message("user", "<environment_context>"),
            message("user", question),
            *more,
        ],
        "tools": [SHELL, FILES, *OTHERS],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a1",
        "client_metadata": {"x-codex-window-id": "01a1:0"},
        **fields,
    }


def echoed(item: dict[str, Any]) -> dict[str, Any]:
    """An item of an answer as Codex sends it back."""
    if item["type"] == "reasoning":
        kept = {k: v for k, v in item.items() if k != "status"}
        return {**kept, "encrypted_content": None}
    return item


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with served(save_agent(tmp_path_factory.mktemp("agent"), ANSWERS)) as found:
        yield found


def output(agent: Running, **body: Any) -> list[dict[str, Any]]:
    """The items of a stream that came to its end."""
    *_, last = events_of(agent, **body)
    assert last["type"] == "response.completed"
    found: list[dict[str, Any]] = last["response"]["output"]
    return found


def test_a_turn_with_a_call(agent: Running) -> None:
    """Thoughts and a call of the shell, then its output, then an answer, then the next turn."""
    thought, call = output(agent, **asked("Look."))
    assert thought["content"] == [{"type": "reasoning_text", "text": "I have to look."}]
    assert (call["type"], call["name"]) == ("function_call", "exec_command")
    assert json.loads(call["arguments"]) == {"cmd": "ls"} and "namespace" not in call
    said = "Chunk ID: 1\nProcess exited with code 0\nOutput:\none.txt\n"
    result = {"type": "function_call_output", "call_id": call["call_id"], "id": "fco_1"}
    again = [echoed(thought), echoed(call), {**result, "output": said}]
    (answer,) = output(agent, **asked("Look.", *again))
    assert answer["content"][0]["text"] == "There is one file."
    # What a tool of a server of tools returns comes in parts.
    parts = [{"type": "input_text", "text": text} for text in ("Wall time: 0\nOutput:", said)]
    (same,) = output(agent, **asked("Look.", *again[:2], {**result, "output": parts}))
    assert told([same]) == told([answer])
    go_on = [*again, answer, message("user", "Look once more.")]
    assert told(output(agent, **asked("Look.", *go_on))) == told([thought, call])


def test_a_call_in_a_namespace(agent: Running) -> None:
    (call,) = output(agent, **asked("Read it."))
    assert (call["namespace"], call["name"]) == ("mcp__files", "read")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "a"}
    (answer,) = output(agent, **asked("Read it.", echoed(call), result))
    assert answer["type"] == "message"


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": None, "include": None, "prompt_cache_key": None, "text": None},
        {"reasoning": {"effort": "high", "summary": "detailed"}, "text": {"verbosity": "low"}},
        {"reasoning": {"effort": "low", "context": "all_turns"}, "include": []},
        {"service_tier": "priority", "parallel_tool_calls": False},
        {"tools": None},
        {"instructions": "You are a coding agent.", "store": None},
        {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "codex_output_schema",
                    "strict": True,
                    "schema": {**PLACE, "additionalProperties": False},
                }
            }
        },
    ],
)
def test_fields_that_come_and_go(agent: Running, fields: dict[str, Any]) -> None:
    body = json.dumps(asked("Look.", **fields)).encode()
    answer = agent.post(PATH, body, **HEADERS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "completed"


def test_what_it_is_told_when_it_asks_for_too_much(agent: Running) -> None:
    """Codex knows a full context by the error's code, and then makes its conversation shorter. No
    image is read: it offers none where its configuration says so."""
    error = agent.refused(PATH, 400, **asked("Look." + " " * 5000, stream=True))
    assert error["code"] == "context_length_exceeded" and "expected at most" in error["message"]
    image = [{"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "high"}]
    call = {"type": "function_call", "call_id": "c", "name": "view_image", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": image}
    error = agent.refused(PATH, 400, **asked("Look.", call, result))
    assert error["message"] == "input[5] has content of type 'input_image'; expected a text"


@pytest.mark.parametrize(
    "kind", ["additional_tools", "custom_tool_call", "local_shell_call", "compaction"]
)
def test_items_of_other_models_are_refused_by_their_types(agent: Running, kind: str) -> None:
    error = agent.refused(PATH, 400, **asked("Look.", {"type": kind, "id": "x_1"}))
    assert error["message"].startswith(f"input[4] is of type '{kind}'; expected message")


def test_after_all_this_nothing_is_held(agent: Running) -> None:
    agent.idle()
