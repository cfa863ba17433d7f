"""The OpenAPI description, made of the values that bodies are read into."""

from __future__ import annotations

from typing import Any

import msgspec

from foresay import __version__
from foresay.serve.ask import Chat, Completion, Detokenize, Tokenize

__all__ = ["describe"]

_BODIES: dict[str, tuple[str, type[msgspec.Struct], str]] = {
    "/v1/completions": ("completions", Completion, "Continue prompts."),
    "/v1/chat/completions": ("chat", Chat, "Answer a conversation."),
    "/tokenize": ("tokenize", Tokenize, "The tokens of a text, or of messages."),
    "/detokenize": ("detokenize", Detokenize, "The text of tokens."),
}
_PLAIN = {
    "/v1/models": "The model that is served.",
    "/v1/spec/stats": "What guessing brought, and the last steps: the caller's own share.",
    "/tokenizer_info": "About the tokenizer.",
    "/health": "Whether new requests are taken.",
    "/live": "Whether the process answers.",
    "/version": "The version.",
    "/openapi.json": "This description.",
}
_REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 503)


def describe() -> dict[str, Any]:
    """The description as plain values.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """
    kinds = [kind for _, kind, _ in _BODIES.values()]
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for schema in schemas.values():
        # What these docstrings say about Python is of no use to a client.
        schema["description"] = str(schema.get("description", "")).partition("\n\n")[0]
    schemas["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }
    paths: dict[str, Any] = {}
    for (path, (name, _, about)), ref in zip(_BODIES.items(), refs, strict=True):
        paths[path] = {
            "post": {
                "operationId": name,
                "summary": about,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": ref}},
                },
                "responses": _responses("application/json", *_streams(path)),
            }
        }
    for path, about in _PLAIN.items():
        name = path.strip("/").replace("/", "_").replace(".", "_")
        paths[path] = {
            "get": {
                "operationId": name,
                "summary": about,
                "responses": _responses("application/json"),
            }
        }
    paths["/metrics"] = {
        "get": {
            "operationId": "metrics",
            "summary": "Numbers for Prometheus.",
            "responses": _responses("text/plain"),
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "foresay", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _streams(path: str) -> tuple[str, ...]:
    return ("text/event-stream",) if path.endswith("completions") else ()


def _responses(*kinds: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    found: dict[str, Any] = {
        "200": {"description": "The answer.", "content": {kind: {} for kind in kinds}}
    }
    for status in _REFUSALS:
        found[str(status)] = {"description": "Refused, in a sentence.", "content": error}
    return found
