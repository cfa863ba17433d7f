"""Requests to /v1/responses and /v1/messages, and checks of what comes back."""

from __future__ import annotations

import json
from typing import Any

import pydantic
from openai.types.responses import Response, ResponseStreamEvent

from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from serve.running import Running

PATH = "/v1/responses"
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24}
EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
REQUIRED = {  # of Open Responses' schema, besides those that may be null
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "store"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "background"),
    *("max_output_tokens", "max_tool_calls", "service_tier", "metadata", "safety_identifier"),
    *("prompt_cache_key", "user"),
}


def text_of(response: dict[str, Any]) -> str:
    """The text of a response, whose shape is checked by the way."""
    Response.model_validate(response)
    assert response.keys() >= REQUIRED
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts)


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream: each fits openai's type, is numbered, and named by its type."""
    with server.opened(PATH, **body) as answer:
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [e["type"] for e in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        EVENT.validate_python(event)
    return found


def messages(*texts: str) -> list[dict[str, str]]:
    """A conversation of the user and the assistant in turns."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def expected(plain: LLM, said: Any, params: dict[str, Any]) -> Any:
    values = {**params, "max_tokens": params["max_output_tokens"]}
    del values["max_output_tokens"]
    (found,) = plain.generate([said], SamplingParams(**values), chat=True)
    return found


def streamed(server: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    """The events of one of the two routes."""
    if path == PATH:
        return events_of(server, **body)
    with server.opened(path, **body) as answer:
        found = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    return [event for event in found if event["type"] != "ping"]


def told(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without what is new in each response: ids, and what was counted."""
    return [{k: v for k, v in one.items() if k not in ("id", "call_id")} for one in items]
