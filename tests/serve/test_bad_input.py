"""Bodies that no client should send: 2xx or 4xx, never 5xx, and the engine keeps answering.

300 of them always, 1,000 others among the slow tests; FORESAY_CASES=10000 tries as many.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serve.running import Running, served

SAID = [{"role": "user", "content": "a"}]
CASES = int(os.environ.get("FORESAY_CASES", "160"))
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "ab", "max_tokens": 2, "stop": ["x"], "logprobs": 1, "n": 2}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 1, "echo": True, "stream": True}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 1.5}, "seed": 1, "max_tokens": 1}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True},
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f"}}]},
                {"role": "tool", "tool_call_id": "x", "content": "1"},
            ],
            "max_tokens": 2,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
    ),
    (
        "/v1/chat/completions",
        {
            "messages": SAID,
            "max_tokens": 2,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"type": "object"}},
            },
        },
    ),
    ("/v1/completions", {"prompt": "a", "max_tokens": 2, "structured_outputs": {"regex": "a+b"}}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 2, "instructions": "b", "text": {}}),
    (
        "/v1/responses",
        {
            "input": [*SAID, {"type": "function_call_output", "call_id": "c", "output": "d"}],
            "tools": [{"type": "function", "name": "f"}],
            "max_output_tokens": 2,
            "stream": True,
        },
    ),
    ("/v1/messages", {"messages": SAID, "max_tokens": 2, "system": "b", "stop_sequences": ["x"]}),
    ("/v1/messages/count_tokens", {"messages": SAID, "tools": [{"name": "f"}]}),
    ("/tokenize", {"prompt": "ab", "add_special_tokens": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
]
STRANGE: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 1e308, -0.0, 0.5, "", "x", "\x00"),
    *("\U0001f600" * 50, [], {}, [[]], [None], {"a": {}}, [[1, [2]]], "9" * 400, [2**31], ["", ""]),
]


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """With a small context, so that answers without a limit are short."""
    with served(folder, options={"memory": 1 << 17}) as found:
        yield found


def mutated(body: dict[str, Any], dice: random.Random) -> bytes:
    """A body with a value replaced, a field added or taken away, somewhere inside of it too, or
    bytes damaged."""
    whole = changed = json.loads(json.dumps(body))
    for _ in range(dice.randint(1, 3)):
        changed = dice.choice([found for _, found in objects_in(whole)])
        kind = dice.randrange(3)
        if kind == 0 and changed:
            changed[dice.choice(list(changed))] = deepcopy(dice.choice(STRANGE))
        elif kind == 1:
            names = ["stop", "n", "seed", "temperature", "top_p", "top_k", "min_p", "logprobs"]
            names += ["stream_options", "logit_bias", "echo", "tools", "best_of", "min_tokens"]
            names += ["tool_choice", "response_format", "structured_outputs", "messages"]
            changed[dice.choice(names)] = deepcopy(dice.choice(STRANGE))
        elif changed:
            del changed[dice.choice(list(changed))]
    data = bytearray(json.dumps(whole).encode())
    if dice.random() < 0.3:
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


@pytest.mark.parametrize(
    ("bodies", "seed"), [(max(CASES, 300), 1), pytest.param(1000, 2, marks=pytest.mark.slow)]
)
def test_mutated_bodies(server: Running, bodies: int, seed: int) -> None:
    dice, seen = random.Random(seed), Counter[int]()
    for number in range(bodies):
        path, body = SEEDS[number % len(SEEDS)]
        data = mutated(body, dice)
        answer = server.post(path, data)
        seen[answer.status_code] += 1
        assert 200 <= answer.status_code < 500, (data, answer.text)
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"]
    assert seen[200] > 20 and seen[400] > 20  # neither is all there is
    server.good("/v1/completions", prompt="a", max_tokens=1)
    server.idle()


def test_the_schema(server: Running) -> None:
    """schemathesis, over every operation of /openapi.json, valid data and invalid."""
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations: list[Any] = list(schema.get_all_operations())
    assert len(operations) >= 12  # all but the description itself
    checks = [
        not_a_server_error,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    seen: Counter[int] = Counter()
    modes = schemathesis.GenerationMode
    for found in operations:
        operation = found.ok()
        posts = "requestBody" in operation.definition.raw
        for mode in (modes.POSITIVE, modes.NEGATIVE) if posts else (modes.POSITIVE,):

            def holds(case: Any) -> None:
                response = case.call(base_url=server.url)
                seen[response.status_code] += 1
                case.validate_response(response, checks=checks)

            tried = settings(
                max_examples=CASES // 16 if posts else 3,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            tried(given(case=operation.as_strategy(generation_mode=mode))(holds))()
    assert seen[200] and seen[400] and not any(status >= 500 for status in seen), seen
    server.good("/v1/completions", prompt="a", max_tokens=1)
    server.idle(60)


ASKED = {"logprobs": 2, "echo": True, "spec_details": True, "return_token_ids": True}
CHATTED = {"logprobs": True, "top_logprobs": 2, "spec_details": True, "return_token_ids": True}
USAGE = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("path", "body", "chunk"),
    [
        ("/v1/completions", {"prompt": "ab", **ASKED}, "CompletionChunk"),
        ("/v1/completions", {"prompt": "ab"}, "CompletionChunk"),
        ("/v1/chat/completions", {"messages": SAID, **CHATTED}, "ChatChunk"),
        ("/v1/chat/completions", {"messages": SAID}, "ChatChunk"),
        ("/tokenize", {"prompt": "ab", "return_token_strs": True}, None),
        ("/detokenize", {"tokens": [1]}, None),
    ],
)
def test_answers_are_described(
    server: Running, path: str, body: dict[str, Any], chunk: str | None
) -> None:
    """As they come they fit, and with any field of theirs taken away, changed or added they do not:
    so that the check of answers above cannot be empty.
    """
    description = server.http.get("/openapi.json").json()
    content = description["paths"][path]["post"]["responses"]["200"]["content"]
    schema = content["application/json"]["schema"]
    few = {"max_tokens": 2} if chunk else {}
    check_described(description, schema, server.good(path, **body, **few))
    if chunk is not None:
        named = {"$ref": f"#/components/schemas/{chunk}"}
        assert chunk in content["text/event-stream"]["schema"]["description"]
        for options in ({}, {"stream_options": USAGE}):
            for event in server.events(path, **body, **few, **options):
                check_described(description, named, event)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "ab", "max_output_tokens": 2}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 2}),
    ],
)
def test_typed_events_are_described(server: Running, path: str, body: dict[str, Any]) -> None:
    """So is each event under the name of its type; without any of its fields it does not fit."""
    description = server.http.get("/openapi.json").json()
    components = description["components"]["schemas"]
    content = description["paths"][path]["post"]["responses"]["200"]["content"]
    check_described(
        description, content["application/json"]["schema"], server.good(path, **body), False
    )
    with server.opened(path, **body) as answer:
        lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
    kinds = set()
    pings = [{"type": "ping"}] if path == "/v1/messages" else []  # one comes if nothing else does
    for event in [*map(json.loads, lines), *pings]:
        ((name, schema),) = [
            (name, one)
            for name, one in components.items()
            if one.get("properties", {}).get("type", {}).get("enum") == [event["type"]]
        ]
        assert name in content["text/event-stream"]["schema"]["description"]
        fits = jsonschema_rs.validator_for({**schema, "components": description["components"]})
        fits.validate(event)
        for field in event:
            assert not fits.is_valid({k: v for k, v in event.items() if k != field}), (name, field)
        assert not fits.is_valid({**event, "other": 1})
        kinds.add(name)
    assert len(kinds) >= 6


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/v1/spec/stats", "/live"])
def test_plain_answers_are_described(server: Running, path: str) -> None:
    description = server.http.get("/openapi.json").json()
    got = description["paths"][path.replace("tiny", "{model}")]["get"]
    schema = got["responses"]["200"]["content"]["application/json"]["schema"]
    check_described(description, schema, server.http.get(path).json(), closed=False)


def check_described(
    description: dict[str, Any], schema: dict[str, Any], answer: dict[str, Any], closed: bool = True
) -> None:
    fits = jsonschema_rs.validator_for({**schema, "components": description["components"]})
    fits.validate(answer)
    optional = {"usage", "foresay", "token_ids", "prompt_token_ids", "token_strs", "role"}
    optional |= {f"{kind}_prediction_tokens" for kind in ("accepted", "rejected")}
    changed = 0
    for path, found in objects_in(answer):
        free = optional | ({"content"} if path[-1:] == ("delta",) else set())
        for name in found.keys() - free if "top_logprobs" not in path[-2:-1] else ():
            value = found.pop(name)
            assert not closed or not fits.is_valid(answer), (*path, name)
            found[name] = [[[]]]
            assert not fits.is_valid(answer) or not closed, (*path, name)
            found[name] = value
            changed += 1
        if closed and "top_logprobs" not in path[-2:-1]:
            found["other"] = 1
            assert not fits.is_valid(answer), path
            del found["other"]
    assert changed and fits.is_valid(answer)
    assert not fits.is_valid({}) and not fits.is_valid([answer])


def objects_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, dict[str, Any]]]:
    """All objects in a value, each with the way to it."""
    if isinstance(value, dict):
        yield path, value
        for name in list(value):
            yield from objects_in(value[name], (*path, name))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from objects_in(item, (*path, at))
