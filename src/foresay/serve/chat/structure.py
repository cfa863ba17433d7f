"""The form that a client wants an answer to have."""

from __future__ import annotations

from typing import NamedTuple

from foresay.errors import InputError
from foresay.sampling.structured_outputs import StructuredOutputs
from foresay.serve.limits import Refused
from foresay.serve.schema import ResponseFormat, Sampling, Structure

__all__ = ["Structured", "structure_of"]


class Structured(NamedTuple):
    """The form, and the name of the field that says so."""

    name: str
    outputs: StructuredOutputs


def structure_of(body: Sampling, name: str = "response_format") -> Structured | None:
    """The form of the answers to a request; None: any text will do. `name` is what its API calls
    the field `response_format`.

    Raises: Refused.
    """
    given, also = body.response_format, body.structured_outputs
    try:
        outputs = None if given is None else _of_format(given, name)
        if also is not None:
            if outputs is not None:
                why = f"{name} and structured_outputs are both given; expected one of them"
                raise Refused(400, why, param="structured_outputs")
            name = "structured_outputs"
            outputs = _of_structure(also)
    except InputError as error:
        raise Refused(400, str(error), param=name) from error
    return None if outputs is None else Structured(name, outputs)


def _of_format(given: ResponseFormat, name: str) -> StructuredOutputs | None:
    if given.type == "text":
        return None
    if given.type == "json_object":
        return StructuredOutputs(json_object=True)
    if given.type != "json_schema":
        raise InputError(
            f"{name} has type {given.type[:40]!r}; expected 'text', 'json_object' or 'json_schema'"
        )
    if given.json_schema is None or given.json_schema.schema is None:
        raise InputError(f"{name} has no json_schema.schema; expected a schema: an object")
    return StructuredOutputs(json=given.json_schema.schema)


def _of_structure(given: Structure) -> StructuredOutputs:
    return StructuredOutputs(
        json=given.json,
        json_object=bool(given.json_object),
        regex=given.regex,
        choice=given.choice,
        grammar=given.grammar,
    )
