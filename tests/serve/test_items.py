"""Deltas of any order as the items of responses and the blocks of messages; input items as messages
of a chat; and what is kept, within its bounds."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json

from foresay.serve import schema as chats
from foresay.serve.chat.deltas import Arguments, Call, Content, Delta, Reasoning
from foresay.serve.limits import Refused
from foresay.serve.messages import schema as messages
from foresay.serve.messages.blocks import Blocks
from foresay.serve.responses import schema as responses
from foresay.serve.responses.items import items_of, messages_of
from foresay.serve.responses.kept import Kept, KeptResponses
from foresay.serve.responses.output import Output
from foresay.serve.responses.translate import tools_of

PARTS = st.lists(
    st.tuples(
        st.sampled_from(["reasoning", "content", "call"]), st.lists(st.text("ab", max_size=3))
    ),
    max_size=6,
)


def deltas_of(parts: list[tuple[str, list[str]]]) -> list[Delta]:
    found: list[Delta] = []
    calls = 0
    for kind, texts in parts:
        if kind == "call":
            found.append(Call(calls, f"call_{calls}", "f"))
            found += [Arguments(calls, text) for text in texts]
            calls += 1
        else:
            made = Reasoning if kind == "reasoning" else Content
            found += [made(text) for text in texts]
    return found


def merged(parts: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    """The items that they are: neighbours of a kind are one, but every call is one of its own."""
    found: list[tuple[str, str]] = []
    for kind, texts in parts:
        if kind != "call" and not texts:
            continue
        text = "".join(texts)
        if kind != "call" and found and found[-1][0] == kind:
            found[-1] = (kind, found[-1][1] + text)
        else:
            found.append((kind, text))
    return found or [("content", "")]


def text_of(item: Any) -> tuple[str, str]:
    if isinstance(item, responses.FunctionCallItem):
        return "call", item.arguments
    (part,) = item.content
    return ("reasoning" if isinstance(item, responses.ReasoningItem) else "content"), part.text


@given(PARTS, st.booleans())
def test_the_items_of_a_response(parts: list[tuple[str, list[str]]], complete: bool) -> None:
    output = Output({}, itertools.count().__next__)
    events: list[Any] = []
    for delta in deltas_of(parts):
        events += output.add(delta)
    events += output.end(complete=complete)
    seen = [msgspec.to_builtins(event) for event in events]  # at the end: they may be sent together
    assert [text_of(item) for item in output.items] == merged(parts)
    statuses = [item.status for item in output.items]
    assert statuses[:-1] == ["completed"] * (len(statuses) - 1)
    assert statuses[-1] == ("completed" if complete else "incomplete")
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    kinds = [event["type"].rpartition(".")[2] for event in seen]
    places = [event["output_index"] for event in seen]
    assert places == sorted(places)
    for at, item in enumerate(output.items):
        own = [event for event, place in zip(seen, places, strict=True) if place == at]
        added, done = own[0], own[-1]
        assert added["type"] == "response.output_item.added"
        assert added["item"]["status"] == "in_progress"
        assert not added["item"].get("content") and not added["item"].get("arguments")
        assert done["type"] == "response.output_item.done"
        assert done["item"] == msgspec.to_builtins(item)
        assert "".join(event.get("delta", "") for event in own) == text_of(item)[1]
        assert {event.get("item_id", item.id) for event in own} == {item.id}
        parts_told = [event for event in own if "content_part" in event["type"]]
        assert len(parts_told) == (0 if text_of(item)[0] == "call" else 2)
    assert kinds.count("added") and len({item.id for item in output.items}) == len(output.items)


@given(PARTS, st.booleans())
def test_the_blocks_of_a_message(parts: list[tuple[str, list[str]]], thinking: bool) -> None:
    blocks = Blocks(thinking=thinking)
    events: list[Any] = []
    for delta in deltas_of(parts):
        events += blocks.add(delta)
    events += blocks.end()
    shown = [part for part in parts if thinking or part[0] != "reasoning"]
    wanted = merged(shown)
    assert len(blocks.content) == len(wanted)
    for at, (block, (kind, text)) in enumerate(zip(blocks.content, wanted, strict=True)):
        own = [event for event in events if event.index == at]
        assert isinstance(own[0], messages.BlockStart) and isinstance(own[-1], messages.BlockStop)
        pieces = [next(iter(msgspec.structs.asdict(event.delta).values())) for event in own[1:-1]]
        assert "".join(pieces) == text
        if isinstance(block, messages.TextBlock):
            assert (kind, text) == ("content", block.text)
        elif isinstance(block, messages.ThinkingBlock):
            assert (kind, text) == ("reasoning", block.thinking) and thinking
        else:
            assert kind == "call" and block.input == msgspec.Raw(b"{}")  # it is no JSON
    indices = [event.index for event in events]
    assert indices == sorted(indices)


def test_the_input_of_a_call_is_an_object() -> None:
    """As the model wrote it: numbers that no float has, keys that come twice. Of one that was cut
    off it is what Anthropic's package would make of the pieces, but for numbers, whose end is
    certain only behind it."""
    for text, wanted in [
        ('{"a": [1]}', '{"a": [1]}'),
        ('{"a": 1e400, "a": 0.10000000000000000001}', '{"a": 1e400, "a": 0.10000000000000000001}'),
        ('{"a": [1', '{"a": []}'),
        ('{"a": [1, 2', '{"a": [1]}'),
        ('{"a": "b", "c": "d, e', '{"a": "b"}'),
        ('{"a": {"b": "\\"]", "c": tru', '{"a": {"b": "\\"]"}}'),
        ('{"a": 12 ', '{"a": 12 }'),
        ('{"a": 12', "{}"),
        ('{"a": [{}, [[], "', '{"a": [{}, [[]]]}'),
        ('{"a": "b", ', '{"a": "b"}'),
        ('{"a": "b", "c"', '{"a": "b"}'),
        ("{", "{}"),
        ("", "{}"),
        ('{"a":' + "[" * 99_999, '{"a":' + "[" * 127 + "]" * 127 + "}"),
    ]:
        blocks = Blocks(thinking=False)
        for delta in (Call(0, "c", "f"), Arguments(0, text)):
            blocks.add(delta)
        blocks.end()
        (block,) = blocks.content
        assert isinstance(block, messages.ToolUseBlock) and bytes(block.input).decode() == wanted
        if not text.endswith(("1", "2", "[")):
            assert from_json(wanted.encode()) == from_json(
                text.encode() or b"{}", partial_mode=True
            )


def input_items(*given: dict[str, Any]) -> list[responses.Item]:
    return items_of(msgspec.convert(list(given), list[responses.InputItem]))


def test_a_turn_of_the_assistant_is_one_message() -> None:
    """Reasoning, text and calls; another text or the next reasoning begins another message."""

    def reasoning(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]}

    def call(number: int, **more: str) -> dict[str, Any]:
        one = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": f"c{number}"}
        return {**one, **more}

    def result(number: int) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": f"c{number}", "output": "r"}

    def called(number: int, name: str = "f") -> chats.ToolCall:
        return chats.ToolCall(chats.CalledFunction(name, "{}"), f"c{number}", "function")

    items = input_items(
        {"role": "user", "content": "a"},
        reasoning("think "),
        reasoning("more"),
        {"role": "assistant", "content": "b"},
        call(1),
        call(2, namespace="mcp__files__"),
        result(1),
        result(2),
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": "d"},
        call(3),
        reasoning("again"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "no"}]},
    )
    names = {("mcp__files__", "f"): "mcp__files__f"}
    assert messages_of(items, "be", names) == [
        chats.ChatMessage("system", "be"),
        chats.ChatMessage("user", "a"),
        chats.ChatMessage(
            "assistant",
            "b",
            tool_calls=[called(1), called(2, "mcp__files__f")],
            reasoning_content="think more",
        ),
        chats.ChatMessage("tool", "r", tool_call_id="c1"),
        chats.ChatMessage("tool", "r", tool_call_id="c2"),
        chats.ChatMessage("assistant", "c"),
        chats.ChatMessage("assistant", "d", tool_calls=[called(3)]),
        chats.ChatMessage("assistant", "", reasoning_content="again"),
    ]
    assert messages_of([], None, {}) == []


def test_tools_in_namespaces() -> None:
    def function(name: str) -> responses.Tool:
        return responses.Tool("function", name)

    found = tools_of(
        [
            function("f"),
            responses.Tool("namespace", "n", tools=[function("f"), responses.Tool("custom", "g")]),
            responses.Tool("web_search"),
        ]
    )
    assert [tool.name for tool in found.chat] == ["f", "n__f"]
    assert found.names == {("n", "f"): "n__f"} and len(found.told) == 2
    with pytest.raises(Refused, match=r"tools\[0\]\.tools\[0\] has no name; expected a text"):
        tools_of([responses.Tool("namespace", "n", tools=[responses.Tool("function")])])
    with pytest.raises(Refused, match=r"tools\[0\] has no name"):
        tools_of([responses.Tool("namespace")])


def kept(name: str, size: int = 0, previous: str | None = None) -> Kept:
    return Kept(name, previous, b"a" * size, b"")


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "drop", "conversation"]),
        st.sampled_from(["one", "two"]),
        st.integers(0, 9),
        st.integers(0, 3000),
    )
)


@given(OPERATIONS)
def test_what_is_kept_stays_within_its_bounds(operations: list[tuple[str, str, int, int]]) -> None:
    """Against a list of each tenant, the least recently used first."""
    store, number = KeptResponses(4, 6000), itertools.count()
    model: dict[str, list[Kept]] = {"one": [], "two": []}
    for kind, tenant, at, size in operations:
        own = model[tenant]
        name = own[at % len(own)].name if own else "none"
        known = next((one for one in own if one.name == name), None)
        if kind == "put":
            one = kept(f"{tenant}{next(number)}", size)
            store.put(tenant, one)
            own.append(one)
            while len(own) > 4 or sum(each.size for each in own) > 6000:
                own.pop(0)
        elif kind == "drop":
            assert store.drop(tenant, name) == (known is not None)
            if known is not None:
                own.remove(known)
        else:
            found: Any = store.get(tenant, name)
            if kind == "conversation" and known is not None:
                assert store.conversation(tenant, name) == [known]
            assert found is known
            if known is not None:
                own.append(own.pop(own.index(known)))
        for each in model:
            assert store.bytes_of(each) == sum(one.size for one in model[each]) <= 6000
            other = "two" if each == "one" else "one"
            assert all(store.get(other, one.name) is None for one in model[each])


def test_a_conversation_is_used_as_a_whole() -> None:
    """Who uses its end uses its beginning, too, and does not lose it first."""
    store = KeptResponses(3, 1 << 20)
    first, second, other = kept("a"), kept("b", previous="a"), kept("c")
    for one in (first, second, other):
        store.put(None, one)
    assert store.conversation(None, "b") == [first, second]
    store.put(None, kept("d"))
    assert store.get(None, "c") is None and store.conversation(None, "b") == [first, second]
    store.drop(None, "a")
    assert store.conversation(None, "b") == "a" and store.conversation(None, "x") == "x"
    store.only([None])
    assert store.get(None, "b") is second
    store.only(["one"])
    assert store.get(None, "b") is None and store.bytes_of(None) == 0


def test_what_is_too_large_is_not_kept() -> None:
    store = KeptResponses(3, 2000)
    store.put("one", kept("small"))
    store.put("one", kept("large", 3000))
    assert store.get("one", "large") is None and store.get("one", "small") is not None
