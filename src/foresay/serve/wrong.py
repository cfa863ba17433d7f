"""What is wrong with a body, as a sentence: the field with its path, its value, what it may be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from foresay.serve.limits import Refused

__all__ = ["refused", "short"]

_WORDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
    Any: "any value",
}
_AT = re.compile(r"^(?P<said>.*) - at `(?:key in )?`?\$(?P<path>.*?)`$", re.DOTALL)
_MOST = 80  # characters of a value


class _Place(NamedTuple):
    """A value in the body, its type, and the way to it."""

    path: str
    value: Any
    kind: Any


def refused(error: msgspec.ValidationError, body: bytes, kind: type[msgspec.Struct]) -> Refused:
    """The refusal of a body that is no `kind`."""
    found = _AT.match(str(error))
    said, path = (str(error), "") if found is None else (found["said"], found["path"])
    try:
        begin = _Place("", json.loads(body), kind)
    except (ValueError, RecursionError):
        begin = _Place("", None, kind)
    places = _places(begin, re.findall(r"\.\w+|\[\d+\]|\[\.\.\.\]", path))
    place = next((one for one in places if _problem(one) == said), None)
    if place is None:
        path = path.lstrip(".") or "the body"
        return Refused(400, f"{path} is not valid: {said}", param=_param(path))
    name = place.path or "the body"
    if missing := re.match(r"Object missing required field `(\w+)`", said):
        field = missing[1]
        expected = _words(_types(place)[field])
        param = _param(place.path) or field
        return Refused(400, f"{name} has no {field}; expected {expected}", param=param)
    if unknown := re.match(r"Object contains unknown field `(.*)`", said):
        expected = ", ".join(_types(place))
        why = f"{name} has the unknown field {short(repr(unknown[1]))}; expected {expected}"
        return Refused(400, why, param=_param(place.path))
    why = f"{name} is {_shown(place.value)}; expected {_words(place.kind)}"
    return Refused(400, why, param=_param(place.path))


def short(text: str) -> str:
    """A text of a client, for a sentence."""
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def _param(path: str) -> str | None:
    return re.split(r"[.\[]", path)[0] or None


def _places(place: _Place, steps: Sequence[str]) -> Iterator[_Place]:
    """The values at the end of these steps: to a field, an item, or any of an object's values."""
    if not steps:
        yield place
        return
    path, value, step = place.path, place.value, steps[0]
    inner: list[_Place] = []
    for kind in _options(place.kind):
        types, name = _types(place._replace(kind=kind)), step[1:]
        if name in types and isinstance(value, dict) and name in value:
            at = f"{path}{step}" if path else name
            inner.append(_Place(at, value[name], types[name]))
        elif get_origin(kind) is list and isinstance(value, list) and step[1:-1].isdecimal():
            inner.append(_Place(f"{path}{step}", value[int(step[1:-1])], get_args(kind)[0]))
        elif get_origin(kind) is dict and isinstance(value, dict) and step == "[...]":
            of = get_args(kind)[1]
            inner += [_Place(f"{path}[{short(repr(at))}]", one, of) for at, one in value.items()]
    for one in inner:
        yield from _places(one, steps[1:])


def _problem(place: _Place) -> str | None:
    """What is wrong with a value itself, not with what it holds."""
    try:
        msgspec.convert(place.value, place.kind)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _types(place: _Place) -> dict[str, Any]:
    """The types of the fields of an object."""
    return {
        field.encode_name: field.type
        for kind in _options(place.kind)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        for field in msgspec.structs.fields(kind)
    }


def _words(kind: Any) -> str:
    """What a value of this type is: "'auto', 'none' or an object"."""
    found: list[str] = []
    for one in _options(kind):
        origin = get_origin(one) or one
        if origin is Literal:
            found += map(_shown, get_args(one))
        elif one is not NoneType:
            found.append(_WORDS.get(origin, "an object"))
    return " or ".join(filter(None, (", ".join(found[:-1]), found[-1])))


def _shown(value: Any) -> str:
    return short(repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
