"""Forms as rules in Lark's notation, as llguidance reads it: of answers, and of parts of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from foresay.sampling.structured_outputs import StructuredOutputs

__all__ = ["JSON_STYLE", "json_rule", "rule_of", "schema_of", "style_of"]

JSON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""One line, as json.dumps and chat templates write it: in white space without end a model can get
lost, and what is not left open can be drafted."""
_FREE = (*JSON_STYLE, "whitespace_pattern")


def rule_of(outputs: StructuredOutputs, style: Mapping[str, Any] | None = None) -> str:
    """What a rule says that matches a form which is no grammar itself; `style` as in `json_rule`.

    Raises: ValueError with the reason, if nothing matches it.
    """
    schema = schema_of(outputs)
    if schema is not None:
        return json_rule(schema, style)
    if outputs.choice is not None:
        return " | ".join(json.dumps(one, ensure_ascii=False) for one in outputs.choice)
    assert outputs.regex is not None
    bare = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", outputs.regex, flags=re.DOTALL)
    return "/" + bare.replace("\n", r"\n") + "/"


def schema_of(outputs: StructuredOutputs) -> dict[str, Any] | None:
    """The schema of a form of JSON; None for other forms.

    Raises: ValueError with the reason, if nothing matches it.
    """
    if outputs.json_object:
        return {"type": "object"}
    if outputs.json is None:
        return None
    try:
        schema = json.loads(str(outputs.json))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if schema is False:
        raise ValueError("nothing matches the schema false")
    return {} if schema is True else dict(schema)


def json_rule(
    schema: Mapping[str, Any], style: Mapping[str, Any] | None = None, *, lenient: bool = False
) -> str:
    """What a rule says that matches the JSON of a schema.

    style    its white space; by default what `style_of` says
    lenient  what the library does not know is left out
    """
    own = schema.get("x-guidance", {})
    if isinstance(own, Mapping):  # else the library says so
        white = style_of(schema) if style is None else style
        own = {"lenient": lenient, **own, **white}
    return f"%json {json.dumps({**schema, 'x-guidance': own}, ensure_ascii=False)}"


def style_of(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    """The white space of JSON: `JSON_STYLE`, but for what an "x-guidance" of these schemas says.

    One style is for all that can stand at the same place of an answer: white space that is free in
    one of them alone would not be recognised.
    """
    style: dict[str, Any] = dict(JSON_STYLE)
    for schema in schemas:
        own = schema.get("x-guidance")
        if isinstance(own, Mapping):
            style |= {name: own[name] for name in _FREE if name in own}
    return style
