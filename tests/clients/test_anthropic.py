"""Anthropic's package as it is: its texts are those of foresay without a server, its tools get
arguments that fit, and its errors are its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pydantic
import pytest

from clients.conftest import Reference
from clients.running import NAME, Served

SAID: list[Any] = [{"role": "user", "content": "Which colours has a rainbow?"}]
GREEDY: dict[str, Any] = {"temperature": 0}  # the package has no argument for it
SHORT = {"type": "string", "enum": ["red", "green", "blue"]}
TOOLS: list[Any] = [
    {
        "name": "paint",
        "description": "Paint a wall.",
        "input_schema": {
            "type": "object",
            "properties": {"colour": SHORT, "coats": {"type": "integer", "enum": [1, 2, 3]}},
            "required": ["colour", "coats"],
            "additionalProperties": False,
        },
    }
]


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0) as found:
        yield found


def asked(**more: Any) -> dict[str, Any]:
    return {"model": NAME, "max_tokens": 40, "messages": SAID, "extra_body": GREEDY, **more}


def test_it_reads_the_text_that_generate_writes(
    client: anthropic.Anthropic, reference: Reference
) -> None:
    system = {"role": "system", "content": "Be brief."}
    wanted = reference(
        "generate",
        [[SAID, {"max_tokens": 40}], [[system, *SAID], {"max_tokens": 40, "stop": ["e"]}]],
    )
    whole = client.messages.create(**asked())
    (block,) = whole.content
    assert block.type == "text" and block.text == wanted[0]
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 40
    with client.messages.stream(**asked()) as stream:
        assert "".join(stream.text_stream) == wanted[0]
        last = stream.get_final_message()
    assert last.content[0].text == wanted[0] and last.usage.output_tokens == 40
    stopped = client.messages.create(**asked(system="Be brief.", stop_sequences=["zz", "e"]))
    assert stopped.content[0].text == wanted[1]
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "e")
    counted = client.messages.count_tokens(model=NAME, messages=SAID)
    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_its_tools(client: anthropic.Anthropic) -> None:
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    whole = client.messages.create(**asked(tools=TOOLS, tool_choice=choice, max_tokens=80))
    (block,) = whole.content
    assert whole.stop_reason == "tool_use" and block.type == "tool_use" and block.name == "paint"
    assert block.input["colour"] in SHORT["enum"] and block.input["coats"] in (1, 2, 3)
    with client.messages.stream(**asked(tools=TOOLS, tool_choice=choice, max_tokens=80)) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        (same,) = stream.get_final_message().content
    assert same.type == "tool_use" and same.input == block.input
    assert json.loads("".join(pieces)) == block.input
    result: Any = {"type": "tool_result", "tool_use_id": block.id, "content": "It is painted."}
    said = [
        *SAID,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [result]},
    ]
    after = client.messages.create(**asked(messages=said, tools=TOOLS, max_tokens=8))
    assert after.usage.input_tokens > 0 and after.role == "assistant"


def test_its_loop_of_tools(client: anthropic.Anthropic) -> None:
    """Two tools, which the package itself calls until it has had enough."""
    called: list[tuple[str, Any]] = []

    def add(a: int, b: int) -> str:
        """Add two numbers."""
        called.append(("add", (a, b)))
        return str(a + b)

    def shout(word: str) -> str:
        """Say it aloud."""
        called.append(("shout", word))
        return word.upper()

    runner = client.beta.messages.tool_runner(
        model=NAME,
        max_tokens=300,
        messages=[{"role": "user", "content": "Add 1 and 2, and shout it."}],
        tools=[anthropic.beta_tool(add), anthropic.beta_tool(shout)],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        max_iterations=3,
        extra_body=GREEDY,
    )
    messages = list(runner)
    uses = [block for message in messages for block in message.content if block.type == "tool_use"]
    assert len(messages) == 3 and len(uses) >= len(called) >= 2
    for (name, values), use in zip(called, uses, strict=False):
        assert name == use.name
        assert values == ((use.input["a"], use.input["b"]) if name == "add" else use.input["word"])


class Shade(pydantic.BaseModel):
    """What an answer is parsed into."""

    red: bool
    green: bool


def test_it_parses_an_answer(client: anthropic.Anthropic) -> None:
    found = client.messages.parse(**asked(output_format=Shade, max_tokens=80))
    assert isinstance(found.parsed_output, Shade) and found.stop_reason == "end_turn"


def test_blocks_of_all_kinds(client: anthropic.Anthropic) -> None:
    """As agents send them, with beta headers and marks for a cache."""
    mark: Any = {"cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": "toolu_1", "name": "paint", "input": {"colour": "red"}}
    thought = {"type": "thinking", "thinking": "Red it is.", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "No.", "is_error": True}
    body: dict[str, Any] = {
        "model": NAME,
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Paint it.", **mark}]},
            {"role": "assistant", "content": [thought, use]},
            {"role": "user", "content": [result]},
        ],
        "tools": TOOLS,
        "betas": ["interleaved-thinking-2025-05-14"],
    }
    counted = client.beta.messages.count_tokens(**body)
    more: Any = {"metadata": {"user_id": "1"}, "extra_body": GREEDY}
    usage = client.beta.messages.create(**body, **more, max_tokens=8).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    more |= {"tool_choice": {"type": "none"}, "stop_sequences": ["e"]}
    message = client.beta.messages.create(**body, **more, max_tokens=20_000)  # than the context
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "e")
    source = {"type": "base64", "media_type": "image/png", "data": ""}
    body["messages"].append({"role": "user", "content": [{"type": "image", "source": source}]})
    with pytest.raises(anthropic.BadRequestError, match=r"content\[0\] is of type 'image'"):
        client.beta.messages.create(**body, max_tokens=8)


def test_its_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="expected a whole number from 1"):
        client.messages.create(**asked(max_tokens=0))
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(**asked(model="claude"))
    with pytest.raises(anthropic.BadRequestError, match="expected the user's last"):
        client.messages.create(**asked(messages=[*SAID, {"role": "assistant", "content": "a"}]))
