"""How JSON is written in the answers of chats: as everywhere else, by one rule."""

from __future__ import annotations

from typing import Any

import pytest

from foresay import StructuredOutputs
from foresay.models.tokenizer import Tokenizer
from foresay.serve.chat.formats import FORMATS
from foresay.serve.chat.grammar import outputs_of
from foresay.serve.chat.tools import Tool, ToolUse
from serve.test_chat_prompts import TOOLS, control_of, fits, tokenizer

__all__ = ["tokenizer"]


def test_a_schema_that_frees_white_space_keeps_its_separators(tokenizer: Tokenizer) -> None:
    """In a chat with tools as without."""
    free = {"x-guidance": {"lenient": True}, "type": "array", "items": {"enum": [1, 2]}}
    content = StructuredOutputs(json=free)
    use = ToolUse(TOOLS, TOOLS, False, True)
    form = FORMATS["json"]
    made = outputs_of(content, use, form, None, "none", control_of(tokenizer))
    for outputs in (content, made):
        assert fits(tokenizer, outputs, "[1, 2]") and not fits(tokenizer, outputs, "[1,2]")


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
TEXTS = ['{"a": 1, "b": 2}', '{ "a" : 1 }', '{"a":1,"b":2}', '{\n  "a": 1,\n  "b": 2\n}']
STYLES: list[tuple[dict[str, Any], list[bool]]] = [
    ({}, [True, False, False, False]),
    ({"whitespace_flexible": True}, [True, True, False, False]),
    ({"key_separator": ":", "item_separator": ","}, [False, False, True, False]),
    ({"whitespace_flexible": True, "key_separator": ":", "item_separator": ","}, [True] * 4),
]


@pytest.mark.parametrize(("style", "fitting"), STYLES)
@pytest.mark.parametrize("name", FORMATS)
def test_white_space_is_as_free_beside_tools_as_alone(
    tokenizer: Tokenizer, name: str, style: dict[str, Any], fitting: list[bool]
) -> None:
    """Of content and of arguments, in every way that they can stand beside each other."""
    form, schema = FORMATS[name], {**SCHEMA, "x-guidance": style}
    content, control = StructuredOutputs(json=schema), control_of(tokenizer)
    array = StructuredOutputs(json={"type": "array"})
    assert [fits(tokenizer, content, text) for text in TEXTS] == fitting
    use = ToolUse(TOOLS, TOOLS, False, True)
    beside = outputs_of(content, use, form, None, "none", control)
    assert [fits(tokenizer, beside, text) for text in TEXTS] == fitting
    tools = [Tool("get", None, schema, False), Tool("stop", None, {"type": "object"}, True)]
    for must, other in ((True, None), (False, None), (True, array), (False, array)):
        made = outputs_of(other, ToolUse(tools, tools, must, True), form, None, "none", control)
        calls = [f'{{"name": "get", "{form.key}": {text}}}' for text in TEXTS]
        compact = style.get("key_separator") == ":" and other is array and not form.opens
        if not compact or style.get("whitespace_flexible"):  # else all of the call is so
            assert [fits(tokenizer, made, form.written([call])) for call in calls] == fitting
        if other is array and not must and not form.opens:
            assert fits(tokenizer, made, "[ 1 ]") == fitting[1]
