"""Chat templates: programs of a model's author, in the sandbox that transformers gives them.

The settings, functions and filters are those of transformers' `apply_chat_template`, since
templates are written for it; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["ChatTemplate"]

_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one and the same field
# Of a subclass, which may have methods of its own, the value alone.
_BARE: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


class ChatTemplate:
    """A template, compiled.

    Raises: jinja2's TemplateError when constructed from what is no template.
    """

    def __init__(self, text: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.globals["dict"] = _Dict()
        environment.globals["namespace"] = _Namespace
        self._template = environment.from_string(text)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        special: Mapping[str, str],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The text of messages, up to where the model's answer begins.

        special  the special tokens by their names, which templates use
        tools    definitions of functions; None: the template is told of none

        Raises: ValueError for no messages, and whatever the template raises.
        """
        if not messages:
            raise ValueError("there are no messages; expected at least 1")
        return self._template.render(
            messages=[_with_reasoning(_plain(message)) for message in messages],
            tools=None if tools is None else [_plain(tool) for tool in tools],
            documents=None,
            add_generation_prompt=True,
            **special,
        )


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    found = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    if found is None:
        return message
    return {"thinking": found, **message, "reasoning_content": found}


def _plain(value: Any) -> Any:
    """The value out of JSON's own types, so that a template can call no method of others."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    for kind, bare in _BARE.items():
        if isinstance(value, kind):
            return bare(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, np.generic):
        return _plain(value.item())
    return f"<{type(value).__name__}>"


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own filter would escape the characters of HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Dict:
    """`dict` for templates, without the attributes of a type."""

    def __call__(self, *given: Any, **named: Any) -> dict[Any, Any]:
        return dict(*given, **named)

    def fromkeys(self, *given: Any) -> dict[Any, Any]:
        return dict.fromkeys(*given)


class _Namespace(Namespace):
    """`namespace` for templates, without names that begin with an underscore."""

    def __init__(*given: Any, **named: Any) -> None:  # a template may name something `self`
        attributes = dict(*given[1:], **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(given[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has {name!r}; expected names without an underscore")


class _Generation(Extension):
    """The tag `generation`, around what an assistant says; for training, and of no effect here."""

    tags = {"generation"}  # noqa: RUF012 (so does jinja2)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Any) -> str:
        return str(caller())
