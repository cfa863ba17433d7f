"""Clients that want JSON and tools, as they are: what they make of the answers has the form.

The default model is too small to be trusted with the choice of a tool, so tools have to be called,
and schemas leave little to say. That values make sense is not tested; that they fit is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Literal

import instructor
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from clients.running import NAME, Served

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read when it is imported: nothing is fetched

TEXT = "Anna, who is 31 years old, lives in Paris and likes red."
ASKED = [{"role": "user", "content": f"{TEXT} Tell me about Anna as JSON."}]


class Person(BaseModel):
    """Facts about a person."""

    model_config = ConfigDict(extra="forbid")

    name: Literal["Anna", "Otto"]
    age: int = Field(ge=0, le=99)
    colours: list[Literal["red", "green"]] = Field(min_length=1, max_length=2)


class Anything(BaseModel):
    """Any object: json_object promises no more."""

    model_config = ConfigDict(extra="allow")


@pytest.fixture
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)


def test_openai_parses_a_schema(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": ASKED, "temperature": 0, "max_tokens": 100}
    done = client.chat.completions.parse(**asked, response_format=Person)
    assert isinstance(done.choices[0].message.parsed, Person)
    assert done.usage is not None and done.usage.completion_tokens_details is not None
    details = done.usage.completion_tokens_details
    assert details.reasoning_tokens == 0
    assert details.accepted_prediction_tokens is not None
    assert details.rejected_prediction_tokens is not None
    with client.chat.completions.stream(**asked, response_format=Person) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == (
            done.choices[0].message.parsed
        )


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_instructor_gets_a_model(client: openai.OpenAI, mode: str) -> None:
    asker = instructor.from_openai(client, mode=instructor.Mode[mode])
    asked: Any = {"model": NAME, "messages": ASKED, "temperature": 0, "max_tokens": 200}
    found = asker.chat.completions.create(**asked, response_model=Person, max_retries=0)
    assert isinstance(found, Person)


def test_instructor_gets_an_object(client: openai.OpenAI) -> None:
    asker = instructor.from_openai(client, mode=instructor.Mode.JSON)
    asked: Any = {"model": NAME, "messages": ASKED, "temperature": 0, "max_tokens": 1000}
    found = asker.chat.completions.create(**asked, response_model=Anything, max_retries=0)
    assert isinstance(found, Anything)


def chat_of(server: Served) -> Any:
    from langchain_openai import ChatOpenAI

    asked: Any = {"model": NAME, "base_url": f"{server.url}/v1", "api_key": "unused"}
    return ChatOpenAI(**asked, temperature=0, max_tokens=200, max_retries=0)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_langchain_with_structured_output(server: Served, method: str) -> None:
    asker = chat_of(server).with_structured_output(Person, method=method)
    assert isinstance(asker.invoke(ASKED[0]["content"]), Person)


def test_langchain_calls_a_tool(server: Served) -> None:
    """Whole and streamed; its result goes back to the model."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def temperature(city: Literal["Paris", "Rome"], unit: Literal["C", "F"]) -> str:
        """Tell the temperature in a city."""
        return f"21 {unit} in {city}"

    chat = chat_of(server)
    asker = chat.bind_tools([temperature], tool_choice="any", parallel_tool_calls=False)
    asked: list[Any] = [HumanMessage("How warm is it in Paris?")]
    message = asker.invoke(asked)
    (call,) = message.tool_calls
    assert call["name"] == "temperature" and not message.invalid_tool_calls
    told = temperature.invoke(call["args"])
    whole: Any = None
    for chunk in asker.stream(asked):
        whole = chunk if whole is None else whole + chunk
    (again,) = whole.tool_calls
    assert again["args"] == call["args"]
    asked += [message, ToolMessage(told, tool_call_id=call["id"])]
    assert chat.invoke(asked).content


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Look up the price of a fruit.",
            "parameters": {
                "type": "object",
                "properties": {"fruit": {"enum": ["apple", "pear"]}},
                "required": ["fruit"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "minimum": 0, "maximum": 99},
                    "b": {"type": "integer", "minimum": 0, "maximum": 99},
                },
                "required": ["a", "b"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    },
]


def lookup(fruit: str) -> int:
    return {"apple": 3, "pear": 4}[fruit]


def multiply(a: int, b: int) -> int:
    return a * b


FUNCTIONS: dict[str, Callable[..., int]] = {"lookup": lookup, "multiply": multiply}


@pytest.mark.parametrize("stream", [False, True])
def test_litellm(server: Served, stream: bool) -> None:
    import litellm

    asked: Any = {"model": f"openai/{NAME}", "api_base": f"{server.url}/v1", "api_key": "unused"}
    asked |= {"messages": ASKED, "temperature": 0, "max_tokens": 200, "stream": stream}
    asked |= {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    done = litellm.completion(**asked)
    if stream:
        done = litellm.stream_chunk_builder(list(done))
    (choice,) = done.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    FUNCTIONS[call.function.name](**json.loads(call.function.arguments))


def test_litellm_wants_a_schema(server: Served) -> None:
    import litellm

    asked: Any = {"model": f"openai/{NAME}", "api_base": f"{server.url}/v1", "api_key": "unused"}
    done = litellm.completion(
        **asked, messages=ASKED, temperature=0, max_tokens=100, response_format=Person
    )
    Person.model_validate_json(done.choices[0].message.content)


def test_an_agent_with_two_tools(client: openai.OpenAI) -> None:
    """The loop of every agent: what the model calls is called, until it may answer."""
    messages: list[Any] = [{"role": "user", "content": "What do 7 pears cost?"}]
    prompts, done = [], 0
    for choice in ("required", {"type": "function", "function": {"name": "multiply"}}, "none"):
        asked: Any = {"tools": TOOLS, "tool_choice": choice, "temperature": 0, "max_tokens": 60}
        answer = client.chat.completions.create(model=NAME, messages=messages, **asked)
        message = answer.choices[0].message
        assert answer.usage is not None
        prompts.append(answer.usage.prompt_tokens)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            assert call.type == "function"
            given = json.loads(call.function.arguments)
            result = str(FUNCTIONS[call.function.name](**given))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            done += 1
    assert done >= 2 and message.content and not message.tool_calls
    assert len(prompts) == 3 and prompts[0] < prompts[1]
