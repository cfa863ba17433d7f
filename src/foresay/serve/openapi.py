"""The OpenAPI description: bodies as `parse` has them, answers as `answer` shapes them."""

from __future__ import annotations

from typing import Any

import msgspec

from foresay import __version__
from foresay.serve.parse import Chat, Completion, Detokenize, Tokenize

__all__ = ["openapi"]

Schema = dict[str, Any]
_REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 503)


def openapi() -> dict[str, Any]:
    """The description as plain values."""
    kinds = [kind for _, kind, _, _ in _BODIES.values()]
    refs, schemas = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    for schema in schemas.values():
        # The rest of these docstrings is about Python.
        schema["description"] = str(schema.get("description", "")).partition("\n\n")[0]
    paths: dict[str, Any] = {}
    for (path, (name, _, about, answer)), ref in zip(_BODIES.items(), refs, strict=True):
        contents: dict[str, Schema] = {"application/json": answer}
        if path in _CHUNKS:
            contents["text/event-stream"] = {
                "description": f"Lines `data: ` with a {_CHUNKS[path]}, or an Error where one of "
                "the answers has failed; then `data: [DONE]`.",
            }
        paths[path] = {
            "post": {
                "operationId": name,
                "summary": about,
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": ref}},
                },
                "responses": _responses(contents),
            }
        }
    for path, (about, answer) in _PLAIN.items():
        kind = "text/plain" if answer == _TEXT else "application/json"
        name = "".join(letter if letter.isalnum() else "_" for letter in path.strip("/{}"))
        got: dict[str, Any] = {
            "operationId": name,
            "summary": about,
            "responses": _responses({kind: answer}),
        }
        if "{model}" in path:
            got["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": _TEXT}]
        paths[path] = {"get": got}
    return {
        "openapi": "3.1.0",
        "info": {"title": "foresay", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas, **_ANSWERS},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _responses(contents: dict[str, Schema]) -> dict[str, Any]:
    error = {"application/json": {"schema": _ref("Error")}}
    content = {kind: {"schema": schema} for kind, schema in contents.items()}
    found: dict[str, Any] = {"200": {"description": "The answer.", "content": content}}
    for status in _REFUSALS:
        found[str(status)] = {"description": "Refused, with a message.", "content": error}
    return found


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _exactly(optional: dict[str, Schema] | None = None, /, **fields: Schema) -> Schema:
    """An object with these fields, perhaps the optional ones, and no others."""
    every = {**fields, **(optional or {})}
    closed = {"type": "object", "properties": every, "additionalProperties": False}
    return {**closed, "required": list(fields)}


def _with(**fields: Schema) -> Schema:
    """An object that has these fields, among others."""
    return {"type": "object", "properties": fields, "required": list(fields)}


_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_IDS = _list(_COUNT)
_NUMBERS: Schema = {"type": "object", "additionalProperties": _NUMBER}
_REASON: Schema = {"enum": ["stop", "length"]}
_HEAD: dict[str, Schema] = {
    "id": _TEXT,
    "created": _COUNT,
    "model": _TEXT,
    "system_fingerprint": _TEXT,
}
_TOKEN: dict[str, Schema] = {
    "token": _TEXT,
    "logprob": _NUMBER,
    "bytes": _or_null(_list({"type": "integer", "minimum": 0, "maximum": 255})),
}
_LOGPROBS = _or_null(
    _exactly(
        tokens=_list(_TEXT),
        token_logprobs=_list(_or_null(_NUMBER)),
        top_logprobs=_list(_or_null(_NUMBERS)),
        text_offset=_IDS,
    )
)
_CHAT_LOGPROBS = _or_null(
    _exactly(
        content=_list(_exactly(**_TOKEN, top_logprobs=_list(_exactly(**_TOKEN)))),
        refusal={"type": "null"},
    )
)


def _answers(chat: bool, chunk: bool) -> Schema:
    """An answer as a whole, or one chunk of a stream."""
    reason = _or_null(_REASON) if chunk else _REASON
    kind = "chat.completion" + ".chunk" * chunk if chat else "text_completion"
    if chat:
        role: dict[str, Schema] = {"role": {"const": "assistant"}}
        message = _exactly(role, content=_TEXT) if chunk else _exactly(content=_TEXT, **role)
        content = {"delta" if chunk else "message": message, "logprobs": _CHAT_LOGPROBS}
    else:
        content = {"text": _TEXT, "logprobs": _LOGPROBS}
    more: dict[str, Schema] = {"token_ids": _IDS}
    if not chunk:
        more["foresay"] = _ref("Details")
    if not chat:
        more["prompt_token_ids"] = _IDS
    choice = _exactly(more, index=_COUNT, finish_reason=reason, **content)
    whole = {**_HEAD, "object": {"const": kind}, "choices": _list(choice)}
    if chunk:
        return _exactly({"usage": _or_null(_ref("Usage")), "foresay": _ref("Details")}, **whole)
    return _exactly({"prompt_token_ids": _IDS} if chat else {}, usage=_ref("Usage"), **whole)


_MODEL = _exactly(
    id=_TEXT, object={"const": "model"}, created=_COUNT, owned_by=_TEXT, max_model_len=_COUNT
)
_NULLABLE = _or_null(_TEXT)
_ANSWERS: dict[str, Schema] = {
    "Error": _exactly(error=_exactly(message=_TEXT, type=_TEXT, param=_NULLABLE, code=_NULLABLE)),
    "Usage": _exactly(
        prompt_tokens=_COUNT,
        completion_tokens=_COUNT,
        total_tokens=_COUNT,
        prompt_tokens_details=_exactly(cached_tokens=_COUNT),
    ),
    "Details": _exactly(
        words=_list(_TEXT),
        sources=_list(_TEXT),
        drafted=_COUNT,
        accepted=_COUNT,
        step_seconds=_NUMBER,
    ),
    "CompletionAnswer": _answers(chat=False, chunk=False),
    "CompletionChunk": _answers(chat=False, chunk=True),
    "ChatAnswer": _answers(chat=True, chunk=False),
    "ChatChunk": _answers(chat=True, chunk=True),
}
_BODIES: dict[str, tuple[str, type[msgspec.Struct], str, Schema]] = {
    "/v1/completions": ("completions", Completion, "Continue prompts.", _ref("CompletionAnswer")),
    "/v1/chat/completions": ("chat", Chat, "Answer a conversation.", _ref("ChatAnswer")),
    "/tokenize": (
        "tokenize",
        Tokenize,
        "The tokens of a text, or of messages.",
        _exactly({"token_strs": _list(_TEXT)}, tokens=_IDS, count=_COUNT, max_model_len=_COUNT),
    ),
    "/detokenize": ("detokenize", Detokenize, "The text of tokens.", _exactly(prompt=_TEXT)),
}
_CHUNKS = {"/v1/completions": "CompletionChunk", "/v1/chat/completions": "ChatChunk"}
_PLAIN: dict[str, tuple[str, Schema]] = {
    "/v1/models": (
        "The model that is served.",
        _exactly(object={"const": "list"}, data=_list(_MODEL)),
    ),
    "/v1/models/{model}": ("The same, by its name.", _MODEL),
    "/v1/spec/stats": (
        "Acceptance statistics and the last steps: of the caller's tenant, or without keys of all "
        "clients.",
        _with(
            totals=_with(steps=_COUNT, drafted=_COUNT, accepted=_COUNT, tokens=_COUNT),
            timeline=_list(_with(start=_NUMBER, seconds=_NUMBERS, tokens=_COUNT)),
            running=_COUNT,
            waiting=_COUNT,
            drafter_bytes=_or_null(_COUNT),
            requests_of={"enum": ["everybody", "tenant"]},
        ),
    ),
    "/tokenizer_info": (
        "About the tokenizer.",
        _with(
            tokenizer_class=_TEXT,
            bos_token=_NULLABLE,
            eos_token=_NULLABLE,
            end_token_ids=_IDS,
            chat_template=_NULLABLE,
            vocab_size=_COUNT,
            max_model_len=_COUNT,
        ),
    ),
    "/health": ("Whether new requests are admitted.", _with(status={"const": "ok"})),
    "/live": ("Whether the process answers.", _with(status={"const": "ok"})),
    "/version": ("The version.", _exactly(version=_TEXT)),
    "/openapi.json": ("This description.", _with(openapi=_TEXT, paths={"type": "object"})),
    "/metrics": ("Numbers for Prometheus.", _TEXT),
}
