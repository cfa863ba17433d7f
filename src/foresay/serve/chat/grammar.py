"""The grammars that answers follow: calls of tools, content of a form, reasoning before both.

They are written in Lark's notation, as llguidance reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foresay.sampling.structured_outputs import StructuredOutputs
from foresay.serve.chat.formats import ToolFormat
from foresay.serve.chat.reasoning import Begin, Markers
from foresay.serve.chat.tools import Tool, ToolUse
from foresay.structured.rules import json_rule, rule_of, schema_of, style_of

__all__ = ["outputs_of"]


def outputs_of(
    content: StructuredOutputs | None,
    use: ToolUse | None,
    form: ToolFormat,
    markers: Markers | None,
    begin: Begin,
    control: Mapping[str, int],
) -> StructuredOutputs | None:
    """The form of an answer as a whole; None if any text will do.

    content  of what is no call
    use      the tools that it may or must call
    markers, begin   of its reasoning, which is free
    control  control tokens by their texts: a grammar names them by number

    Raises: ValueError with the reason, for a content that nothing matches, or that is a grammar
    beside tools.
    """
    if use is None and (content is None or begin == "none"):
        return content
    if use is not None and use.must:
        content = None  # there is none
    if content is not None and content.grammar is not None:
        if use is not None:
            raise ValueError("it is a grammar beside tools; expected one of them")
        assert markers is not None
        return replace(content, after=markers.closing)
    words = _Words(control)
    space = "" if begin == "none" else "SPACE"  # models write it between reasoning and answer
    if use is not None:
        rules = _calls(content, use, form, words, space)
    else:
        assert content is not None
        rules = f"answer: {space} content\ncontent: {rule_of(content)}"
    rules += "\nSPACE: /[\\n]{0,2}/"
    if begin == "none" or markers is None:
        return StructuredOutputs(grammar=f"start: answer\n{rules}")
    if begin == "open":
        return StructuredOutputs(grammar=f"start: answer\n{rules}", after=markers.closing)
    rules += f"\n{words.until('thought', markers.opening, markers.closing)}"
    return StructuredOutputs(grammar=f"start: thought? answer\n{rules}")


def _calls(
    content: StructuredOutputs | None, use: ToolUse, form: ToolFormat, words: _Words, space: str
) -> str:
    """The rules of an answer that is, or may be, calls: from the opening of a call on it is one.
    Where none must be made, any text may stand before."""
    several = range(len(use.callable))
    style = None
    if content is not None and not form.opens:
        # Content that begins as a call does is told from it only among objects of one kind.
        style = style_of(*(tool.schema for tool in use.callable), schema_of(content) or {})
        parts = [_call_object(form, tool, style) for tool in use.callable]
    else:
        parts = [_call(form, tool) for tool in use.callable]
    rules = [f"call_{at}: {part}" for at, part in enumerate(parts)]
    rules.append("call: " + " | ".join(f"call_{at}" for at in several))
    rest = f"({words.of(form.between)} call)* " if use.many else ""
    rest += words.of(form.end)
    opening = words.of(form.opening) if form.opens or words.is_token(form.opening) else ""
    calls = f"{words.of(form.begin)} call {rest}"
    opened = f"{opening} {calls}" if form.opens or not opening else f"({opening})? {calls}"
    if use.must:
        answer = f"{space} {opened}"
    elif content is not None:
        rules.append(f"content: {rule_of(content, style)}")
        answer = f"{space} (content | {opened})"
    elif form.opens and words.is_token(form.opening):
        rules.append(f"TEXT: {_without('(?s:.*)' + _escaped(form.opening))}")  # also by letters
        answer = f"TEXT ({opened})?"
    elif form.opens:
        rules.append(f"TEXT: {_without('(?s:.*)' + _escaped(form.opening))}")
        rules.append(words.until("front", "", form.opening))
        answer = f"TEXT | front {calls}"
    else:
        # A lexeme is the longest that there can be, so this one has the space before it, too.
        tag = f"({_escaped(form.opening)})?" if form.opening else ""
        rules.append("TEXT: " + _without(rf'\s*{tag}\s*\{{\s*"name"'))
        first = (_call(form, tool, space=bool(space)) for tool in use.callable)
        rules += [f"first_{at}: {one}" for at, one in enumerate(first)]
        rules.append("first: " + " | ".join(f"first_{at}" for at in several))
        answer = f"TEXT ({opening} {calls})? | first {rest}" if opening else f"TEXT | first {rest}"
    return "\n".join([f"answer: {answer}", *rules])


def _call(form: ToolFormat, tool: Tool, *, space: bool = False) -> str:
    """The object of a call: its name and punctuation are as templates write them. With `space`,
    white space may stand before it."""
    begin = f'{{"name": {json.dumps(tool.name)}, "{form.key}": '
    begin = rf"/[\n]{{0,2}}{_escaped(begin)}/" if space else json.dumps(begin)
    return f'{begin} {json_rule(tool.schema, lenient=not tool.strict)} "}}"'


def _call_object(form: ToolFormat, tool: Tool, style: Mapping[str, Any]) -> str:
    """The same as one schema."""
    arguments = dict(tool.schema)
    whole = ("$defs", "definitions", "x-guidance")  # of a schema as a whole, not of a part
    shared = {name: arguments.pop(name) for name in whole if name in arguments}
    schema: dict[str, Any] = {
        **shared,
        "type": "object",
        "properties": {"name": {"const": tool.name}, form.key: arguments},
        "required": ["name", form.key],
        "additionalProperties": False,
    }
    return json_rule(schema, style, lenient=not tool.strict)


class _Words:
    """Texts as Lark writes them; control tokens by their numbers."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self._control = control

    def is_token(self, text: str) -> bool:
        return text in self._control

    def of(self, text: str) -> str:
        """A text, which may hold control tokens, as parts of a rule."""
        names = sorted(self._control, key=len, reverse=True)
        held = [name for name in names if name in text]
        if not held:
            return json.dumps(text, ensure_ascii=False) if text else ""
        before, _, after = text.partition(held[0])
        return f"{self.of(before)} <[{self._control[held[0]]}]> {self.of(after)}".strip()

    def until(self, name: str, opening: str, closing: str) -> str:
        """The rule of that name: any text from the opening to the closing."""
        if self.is_token(closing):
            return f"{name}: {self.of(opening)} /(?s:.*)/ {self.of(closing)}"
        begin = "" if not opening or self.is_token(opening) else _escaped(opening)
        head = f"{self.of(opening)} {name}_text" if self.is_token(opening) else None
        text = f"/{begin}(?s:.*){_escaped(closing)}/"
        if head is not None:
            return f"{name}: {head}\n{name}_text[lazy]: {text}"
        return f"{name}[lazy]: {text}"


def _without(begin: str) -> str:
    """Texts that do not begin with what this regular expression matches."""
    return f"/(?s:.*)/ & ~/{begin}(?s:.*)/"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace('\\"', '"')
