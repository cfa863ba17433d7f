"""What an answer has to look like: a schema, an expression, one of some texts, a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from foresay.errors import InputError

__all__ = ["StructuredOutputs"]


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form that an answer has: one of `json`, `json_object`, `regex`, `choice` and `grammar`.
    `after` may be given beside it.

    Whether it can be understood is found out when it is compiled.

    Raises: InputError when constructed.
    """

    json: str | Mapping[str, Any] | bool | None = None
    """A JSON schema, as a mapping or as its text; True: any JSON value."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """The whole answer matches this regular expression."""
    choice: Sequence[str] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A context-free grammar in Lark's notation, which begins with `start`."""
    after: str | None = None
    """The form begins behind this text, which ends what the model writes first: `</think>`."""

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise InputError(f"json_object is {self.json_object!r}; expected True or False")
        names = [one.name for one in fields(self) if one.name != "after"]
        given = [name for name in names if getattr(self, name) not in (None, False)]
        if self.json is False:
            given.append("json")  # the schema that nothing matches
        if len(given) != 1:
            raise InputError(
                f"structured_outputs has {', '.join(given) or 'nothing'}; expected exactly one of "
                f"{', '.join(names)}"
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))
        for name in ("regex", "grammar", "after"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InputError(
                    f"{name} of structured_outputs is {value!r}; expected a text that is not empty"
                )
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))


def _schema(schema: object) -> str:
    """A schema as its text, so that equal ones are equal values."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InputError(f"json of structured_outputs is not JSON: {error}") from None
    if not isinstance(schema, (bool, Mapping)):
        kind = type(schema).__name__
        raise InputError(f"json of structured_outputs is a {kind}; expected a schema: an object")
    try:
        return json.dumps(
            schema, ensure_ascii=False, separators=(",", ":"), default=dict, allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"json of structured_outputs cannot be written: {error}") from None


def _choices(choice: object) -> tuple[str, ...]:
    listed = isinstance(choice, Sequence) and not isinstance(choice, (str, bytes, bytearray))
    texts: tuple[Any, ...] = tuple(choice) if listed else ()  # type: ignore[arg-type]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise InputError(
            f"choice of structured_outputs is {choice!r}; expected a list of texts with at least "
            "one, none of them empty"
        )
    return texts
