"""The OpenAPI description: of the bodies in `foresay.serve.schema` and `answer_schema`."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from foresay import __version__
from foresay.serve import answer_schema, schema

__all__ = ["openapi"]

_REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 503)


class _Route(NamedTuple):
    """body: of a POST; None: a GET. chunk: of its stream, if it has one."""

    about: str
    answer: Any
    body: Any = None
    chunk: Any = None


_ROUTES = {
    "/v1/completions": _Route(
        "Continue prompts.",
        answer_schema.CompletionAnswer,
        schema.Completion,
        answer_schema.CompletionChunk,
    ),
    "/v1/chat/completions": _Route(
        "Answer a conversation.", answer_schema.ChatAnswer, schema.Chat, answer_schema.ChatChunk
    ),
    "/tokenize": _Route(
        "The tokens of a text, or of messages.", answer_schema.Tokens, schema.Tokenize
    ),
    "/detokenize": _Route("The text of tokens.", answer_schema.Text, schema.Detokenize),
    "/v1/models": _Route("The model that is served.", answer_schema.Models),
    "/v1/models/{model}": _Route("The same, by its name.", answer_schema.Model),
    "/v1/spec/stats": _Route(
        "Acceptance statistics and the last steps: of the caller's tenant, or without keys of all "
        "clients.",
        answer_schema.Stats,
    ),
    "/tokenizer_info": _Route("About the tokenizer.", answer_schema.TokenizerInfo),
    "/health": _Route("Whether new requests are admitted.", answer_schema.Status),
    "/live": _Route("Whether the process answers.", answer_schema.Status),
    "/version": _Route("The version.", answer_schema.Version),
    "/openapi.json": _Route("This description.", answer_schema.Description),
    "/metrics": _Route("Numbers for Prometheus.", str),
}
_NAMES = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}


def openapi() -> dict[str, Any]:
    """The description as plain values."""
    kinds: dict[Any, Any] = {answer_schema.Error: None}
    for route in _ROUTES.values():
        kinds |= dict.fromkeys((route.answer, route.body, route.chunk))
    kinds.pop(None)
    template = "#/components/schemas/{name}"
    refs, schemas = msgspec.json.schema_components(kinds, ref_template=template)
    kinds = dict(zip(kinds, refs, strict=True))
    for one in schemas.values():
        # The rest of these docstrings is about Python.
        if about := one.pop("description", ""):
            one["description"] = about.partition("\n\n")[0]
    return {
        "openapi": "3.1.0",
        "info": {"title": "foresay", "version": __version__},
        "paths": {path: _path(path, route, kinds) for path, route in _ROUTES.items()},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _path(path: str, route: _Route, refs: dict[Any, Any]) -> dict[str, Any]:
    """A route's description; `refs` are the schemas of the bodies."""
    kind = "text/plain" if route.answer is str else "application/json"
    content: dict[str, Any] = {kind: {"schema": refs[route.answer]}}
    if route.chunk is not None:
        about = (
            f"Lines `data: ` with a {route.chunk.__name__}, or an Error where one of the answers "
            "has failed; then `data: [DONE]`."
        )
        content["text/event-stream"] = {"schema": {"description": about}}
    refused = {
        "description": "Refused, with a message.",
        "content": {"application/json": {"schema": refs[answer_schema.Error]}},
    }
    name = "".join(letter if letter.isalnum() else "_" for letter in path.strip("/{}"))
    found: dict[str, Any] = {
        "operationId": _NAMES.get(path, name),
        "summary": route.about,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{str(status): refused for status in _REFUSALS},
        },
    }
    if "{model}" in path:
        text = {"type": "string"}
        found["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": text}]
    if route.body is None:
        return {"get": found}
    body = {"application/json": {"schema": refs[route.body]}}
    return {"post": {**found, "requestBody": {"required": True, "content": body}}}
