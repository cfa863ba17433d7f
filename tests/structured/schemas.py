"""Random schemas whose answers are short, mutations of schemas and grammars, and hostile ones.

The same seed gives the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any, TypeAlias

__all__ = ["BOMBS", "GRAMMARS", "mutated_json", "mutated_text", "schemas"]

Schema: TypeAlias = dict[str, Any]

_NAMES = ("name", "id", "total", "kind", "tags", "when", "note", "unit", "x", "größe", "a b")
_TEXTS = ("red", "green", "blue", "n/a", "first one", "ünïcode", 'a "quote"', "")
_PATTERNS = (
    "^[A-Z]{2}-[0-9]{4}$",
    "^(yes|no|maybe)$",
    "^[a-f0-9]{8}$",
    "^v[0-9]+\\.[0-9]{1,2}$",
    "^[^@ ]{1,6}@[a-z]{2,5}\\.(com|org)$",
    "^\\+?[0-9]{3,7}$",
)
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email")


def schemas(count: int, seed: int) -> Iterator[Schema]:
    """Objects of up to four fields, to a depth of three, as an extraction asks for; now and then
    with definitions that refer to themselves."""
    draw = Random(seed)
    for _ in range(count):
        found = _object(draw, 2)
        if draw.random() < 0.3:
            name = draw.choice(("item", "node"))
            made = _object(draw, 1)
            if draw.random() < 0.3:
                made["properties"]["next"] = {"$ref": f"#/$defs/{name}"}
                made["required"] = [one for one in made["required"] if one != "next"]
            found["properties"]["ref"] = {"$ref": f"#/$defs/{name}"}
            found["required"] = [*found["required"], "ref"]
            found["$defs"] = {name: made}
        yield found


def _object(draw: Random, depth: int) -> Schema:
    names = draw.sample(_NAMES, draw.randint(1, 4))
    properties = {name: _any(draw, depth) for name in names}
    required = [name for name in names if draw.random() < 0.8]
    found: Schema = {"type": "object", "properties": properties, "required": required}
    if draw.random() < 0.9:
        found["additionalProperties"] = False
    else:
        found |= {"additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}}
        found |= {"required": names, "maxProperties": len(names) + 1}
    return found


def _array(draw: Random, depth: int) -> Schema:
    least = draw.randint(0, 2)
    found: Schema = {"type": "array", "minItems": least, "maxItems": least + draw.randint(0, 2)}
    if draw.random() < 0.2:
        found["prefixItems"] = [_any(draw, 0), _any(draw, 0)]
    return found | {"items": _any(draw, depth - 1)}


def _text(draw: Random) -> Schema:
    kind = draw.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": draw.choice(_PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": draw.choice(_FORMATS)}
    least = draw.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + draw.randint(0, 12)}


def _number(draw: Random) -> Schema:
    least = draw.randint(-100, 1000)
    most = least + draw.randint(5, 2000)
    found: Schema = {"type": "integer", "minimum": least, "maximum": most}
    if draw.random() < 0.2:
        found |= {"multipleOf": draw.choice((2, 5))}
    if draw.random() < 0.2:
        found = {"type": "integer", "exclusiveMinimum": least, "exclusiveMaximum": most}
    return found


def _any(draw: Random, depth: int) -> Schema:
    deep = [_object, _array] if depth > 0 else []
    kind = draw.randrange(8 + 2 * len(deep))
    if kind >= 8:
        return deep[kind % 2](draw, depth - 1)
    if kind < 2:
        return _text(draw)
    if kind == 2:
        return _number(draw)
    if kind == 3:
        return {"enum": draw.sample([*_TEXTS, 7, True, None, -1.5], draw.randint(1, 4))}
    if kind == 4:
        return {"const": draw.choice([*_TEXTS, 42, None, {"k": [1]}])}
    if kind == 5:
        return {"type": draw.choice((["boolean", "null"], "boolean", "null"))}
    if kind == 6:
        return {"anyOf": [_any(draw, 0), _any(draw, 0)]}
    if draw.random() < 0.5:
        return {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 9}]}
    return {"type": ["string", "integer"], "minLength": 1, "maxLength": 6, "minimum": 0}


# Mutations

_WORDS = (
    *("type", "properties", "required", "items", "prefixItems", "enum", "const", "anyOf", "oneOf"),
    *("allOf", "not", "$ref", "$defs", "pattern", "format", "minLength", "maxLength", "minimum"),
    *("maximum", "multipleOf", "minItems", "maxItems", "minProperties", "maxProperties", "if"),
    *("additionalProperties", "patternProperties", "propertyNames", "uniqueItems", "x-guidance"),
)
_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, 10**18, 0.1, "", "#", "#/$defs/item", "(", ".*", "(a*)*b", [], {}),
    *("string", "object", "\ud83d\ude00", "a" * 500, [[]], {"type": "string"}, ["x", "x"], "\x00"),
    {"$ref": "#"},
)


def mutated_json(draw: Random, schema: Any) -> str:
    """A schema with one or two changes: a value or a keyword of another kind, a part that is gone,
    that is twice there, or somewhere else. Its text, which in one of eight is damaged, too."""
    found = _copied(schema)
    for _ in range(draw.randint(1, 2)):
        places = list(_places(found))
        if not places:
            break
        holder, key = draw.choice(places)
        change = draw.randrange(5)
        if change == 0:
            holder[key] = _copied(draw.choice(_ODD))
        elif change == 1 and isinstance(holder, dict):
            holder[draw.choice(_WORDS)] = holder.pop(key)
        elif change == 2:
            del holder[key]
        elif change == 3:
            other, at = draw.choice(places)
            if isinstance(other, dict) and at in other:  # nothing that holds itself
                holder[key] = _copied(other[at])
        else:
            holder[key] = {draw.choice(("allOf", "anyOf", "oneOf")): [holder[key], {}]}
    text = json.dumps(found)
    return text if draw.random() > 0.125 else mutated_text(draw, text)


def _copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (holder, key) of a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in list(inner):
        yield value, key
        if isinstance(one, (dict, list)):
            yield from _places(one)


_PIECES = (
    *("(", ")", "[", "]", "{1000}", "{0,9999}", "*", "+", "?", "|", "\\", "/", '"', ":", "\n", "~"),
    *("&", " start ", "start: start start\n", "%json {", "%ignore ", "%import common.INT\n", ".*"),
    *("\\p{L}", "(?=", "(?i)", "\x00", "é", "A: ", "a: a a | \n"),
)


def mutated_text(draw: Random, text: str) -> str:
    """A text with one to three changes: something of it is gone, twice there, or put in."""
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.randint(1, 8))
        change = draw.randrange(3)
        if change == 0:
            text = text[:at] + text[end:]
        elif change == 1:
            text = text[:at] + text[at:end] * draw.randint(2, 40) + text[end:]
        else:
            text = text[:at] + draw.choice(_PIECES) + text[at:]
    return text


GRAMMARS = (
    'start: "a" b* c?\nb: /[0-9]+/ | "(" b ")"\nc: "x" | c "y"',
    'start: sum\nsum: sum "+" product | product\nproduct: product "*" atom | atom\n'
    'atom: NUMBER | "(" sum ")"\nNUMBER: /[0-9]{1,5}/\n%ignore /[ ]/',
    'start: "SELECT " NAME (", " NAME)* " FROM " NAME where?\nwhere: " WHERE " NAME "=" INT\n'
    "NAME: /[a-z][a-z0-9_]{0,9}/\nINT: /[0-9]+/",
    'start: %json {"type": "object", "properties": {"a": {"type": "integer"}}}',
    'start: line{1,5}\nline: /[^\\n]{0,20}/ "\\n"',
)


# Hostile ones


def _chained(keyword: str, length: int, last: Schema) -> Schema:
    """Definitions, each of which refers twice to the next one."""
    names = [f"d{i}" for i in range(length + 1)]
    defs: Schema = {names[-1]: last}
    for name, below in pairwise(names):
        two = [{"$ref": f"#/$defs/{below}"}, {"$ref": f"#/$defs/{below}"}]
        if keyword == "properties":
            both = dict(zip("ab", two, strict=True))
            defs[name] = {"type": "object", "properties": both, "required": ["a", "b"]}
        else:
            defs[name] = {keyword: two}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def _nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth


def _all_of(patterns: list[str]) -> Schema:
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


_TEXT: Schema = {"type": "string"}
_FAR = [f".*a.{{{i}}}b.*" for i in range(5, 25)]
"""Whose intersection has no end of states."""

BOMBS: dict[str, dict[str, Any]] = {
    "depth 100": {"json": _nested(100)},
    "depth 20,000": {"json": _nested(20_000)},
    "2,000 optional fields": {
        "json": {"type": "object", "properties": {f"p{i}": _TEXT for i in range(2000)}}
    },
    "20,000 fields": {
        "json": {"type": "object", "properties": {f"p{i}": _TEXT for i in range(20_000)}}
    },
    "a schema that is itself": {"json": {"$ref": "#"}},
    "definitions in a circle": {
        "json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#"}}}
    },
    **{
        f"2^25 by {keyword}": {"json": _chained(keyword, 25, _TEXT)}
        for keyword in ("allOf", "anyOf", "oneOf", "prefixItems", "properties")
    },
    "alternatives multiplied": {
        "json": {
            "allOf": [
                {"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(6)]}
                for i in range(10)
            ]
        }
    },
    "an enum of 100,000": {"json": {"enum": [f"value {i}" for i in range(100_000)]}},
    "an enum of 20,000": {"json": {"enum": list(range(20_000))}},
    "a text of 200,000": {"json": {"enum": ["x" * 200_000, "y"]}},
    "a const of a million": {"json": {"const": "x" * 1_000_000}},
    "minItems 10^9": {"json": {"type": "array", "items": _TEXT, "minItems": 10**9}},
    "maxItems 10^9": {"json": {"type": "array", "items": _TEXT, "maxItems": 10**9}},
    "minLength 10^9": {"json": {"type": "string", "minLength": 10**9}},
    "maxLength 10^9": {"json": {"type": "string", "maxLength": 10**9}},
    "minProperties 10^6": {"json": {"type": "object", "minProperties": 10**6}},
    "multipleOf a prime": {"json": {"type": "integer", "multipleOf": 999_983}},
    "many multipleOf": {
        "json": {"prefixItems": [{"type": "integer", "multipleOf": i} for i in range(900, 1400)]}
    },
    "multipleOf all primes": {
        "json": {"allOf": [{"type": "integer", "multipleOf": p} for p in (7, 11, 13, 17, 19, 23)]}
    },
    "a number of 100,000 digits": {"json": '{"const": 1' + "0" * 100_000 + "}"},
    "patterns intersected": {"json": _all_of(_FAR)},
    "simple patterns intersected": {"json": _all_of([f"a{i}" for i in range(40)])},
    "a pattern and a length": {
        "json": {"type": "string", "pattern": "^(a|b)*a(a|b){300}$", "minLength": 1000}
    },
    "nested quantifiers": {"json": {"type": "string", "pattern": "^(((a+)+)+)+$"}},
    "a lookahead": {"json": {"type": "string", "pattern": "^(?=.*\\d)(?!.*x).{8,}$"}},
    "a backreference": {"json": {"type": "string", "pattern": "(a)\\1"}},
    "a reference to a file": {"json": {"$ref": "file:///etc/passwd"}},
    "a reference to the web": {"json": {"$ref": "http://127.0.0.1:9/x.json"}},
    "white space that never ends": {
        "json": {"x-guidance": {"whitespace_pattern": "((a*)*)*"}, "type": "array"}
    },
    "2^100 states": {"regex": "(a|b)*a(a|b){100}"},
    "repeated 10^6 times": {"regex": "((a{100}){100}){100}"},
    "repeated 10^9 times": {"regex": "a{1000000000}"},
    "optional 500 times": {"regex": "(a?){500}a{500}"},
    "any text 20,000 times": {"regex": "." * 20_000},
    "all letters 3,000 times": {"regex": "\\p{L}{1,3000}"},
    "100,000 brackets": {"regex": "(" * 100_000 + "a" + ")" * 100_000},
    "distances": {"regex": "|".join(f".*{chr(97 + i % 26)}.{{{i}}}" for i in range(60))},
    "20,000 choices": {"choice": [f"word {i} of them" for i in range(12_000)]},
    "a choice of 200,000 letters": {"choice": ["x" * 200_000, "y"]},
    "left recursion": {"grammar": "start: start start | start | "},
    "nothing but recursion": {"grammar": "start: start"},
    "ambiguous sums": {"grammar": 'start: e\ne: e "+" e | e e | "(" e ")" | /[0-9]+/ | '},
    "rules that are empty": {"grammar": 'start: a{10}\na: b*\nb: c*\nc: "x"?'},
    "2^40 by rules": {
        "grammar": "start: r0\n"
        + "".join(f"r{i}: r{i + 1} r{i + 1}\n" for i in range(40))
        + 'r40: "x"'
    },
    "2^40 by terminals": {
        "grammar": "start: A0\n"
        + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(40))
        + 'A40: "x"'
    },
    "5,000 rules": {
        "grammar": "start: "
        + " | ".join(f"r{i}" for i in range(5000))
        + "".join(f'\nr{i}: "a" r{(i * 7 + 1) % 5000} | /[a-z]{{1,9}}/' for i in range(5000))
    },
    "200 expressions at once": {
        "grammar": "start: " + " | ".join(f"/.*{chr(97 + i % 26)}.{{{i}}}/" for i in range(200))
    },
    "expressions intersected": {
        "grammar": "start: A\nA: " + " & ".join(f"/({pattern})/" for pattern in _FAR)
    },
    "a rule a million times": {"grammar": 'start: a{1000000}\na: "x"'},
    "5,000 brackets": {"grammar": "start: " + "(" * 5000 + '"a"' + ")" * 5000},
    "a token that ends answers": {"grammar": 'start: "a" <|im_end|> "b"'},
    "a bomb within": {"grammar": "start: %json " + json.dumps(_all_of(_FAR))},
}
