"""docs/edge.md lists every message with every field, as the code has them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from foresay.edge.messages import CODES, Sampling
from foresay.edge.wire import FIELDS, MESSAGES, NAMES, TAGS

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "edge.md"
KINDS: dict[str, type[msgspec.Struct]] = {
    **{name.upper(): kind for name, kind in MESSAGES.items()},
    "Sampling parameters": Sampling,
}


def plain(kind: Any) -> str:
    """A type in the words of the tables."""
    if get_origin(kind) is tuple:
        return f"list of {plain(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return "map of {} to {}".format(*map(plain, get_args(kind)))
    if args := get_args(kind):
        return " or ".join(plain(arg) if isinstance(arg, type) else f'`"{arg}"`' for arg in args)
    if kind in NAMES or kind is Sampling:
        return "array"
    return "nil" if kind is type(None) else str(kind.__name__)


def rows_of_the_code(kind: type[msgspec.Struct]) -> list[tuple[str, str, str]]:
    hints = get_type_hints(kind)
    said = dict(re.findall(r"^    (\w+)  +(\S.*)$", kind.__doc__ or "", re.MULTILINE))
    assert list(said) == list(kind.__struct_fields__), f"the docstring of {kind.__name__}"
    return [(name, plain(hints[name]), said[name]) for name in kind.__struct_fields__]


def tables() -> dict[str, str]:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = re.search(r"^## Messages\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    parts = re.split(r"^### (.*)\n", section[1], flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_message_has_a_table() -> None:
    wanted = [f"{name} ({TAGS[kind]})" if kind in TAGS else name for name, kind in KINDS.items()]
    assert list(tables()) == wanted


@pytest.mark.parametrize("name", KINDS)
def test_the_fields_of_a_table(name: str) -> None:
    text = next(table for title, table in tables().items() if title.split(" (")[0] == name)
    found = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    assert found == rows_of_the_code(KINDS[name])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[:2] == ["| field | type | meaning |", "|---|---|---|"]
    assert len(lines) == 2 + len(found), "a row that is no field"


def test_the_codes_of_errors() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    section = re.search(r"^## Errors\n(.*?)(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert section is not None
    rows = re.findall(r"^\| (\w+) \| (.*?) \|$", section[1], re.MULTILINE)
    assert rows == [("code", "meaning"), *CODES.items()]


def test_the_names_of_the_json_form() -> None:
    text = " ".join(DOCUMENT.read_text(encoding="utf-8").split())
    for fields in FIELDS.values():
        for name, field in fields.items():
            assert field.encode_name == name or f"`{name}` is `{field.encode_name}`" in text
