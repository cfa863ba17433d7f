"""Bodies that no client should send: 2xx or 4xx, never 5xx, and the engine keeps answering.

FORESAY_CASES=10000 tries as many.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serve.running import Running, running, tiny_llm
from tiny import one_thread

CASES = int(os.environ.get("FORESAY_CASES", "160"))
SEEDS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "ab", "max_tokens": 2, "stop": ["x"], "logprobs": 1, "n": 2}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 1, "echo": True, "stream": True}),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"5": 1.5}, "seed": 1, "max_tokens": 1}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, "stream": True},
    ),
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
    memory = 1 << 17
    with one_thread(), running(*tiny_llm(folder, memory=memory)) as found:
        yield found


def mutated(body: dict[str, Any], dice: random.Random) -> bytes:
    """A body with a value replaced, a field added or taken away, or bytes damaged."""
    changed = json.loads(json.dumps(body))
    for _ in range(dice.randint(1, 3)):
        kind = dice.randrange(3)
        if kind == 0 and changed:
            changed[dice.choice(list(changed))] = dice.choice(STRANGE)
        elif kind == 1:
            names = ["stop", "n", "seed", "temperature", "top_p", "top_k", "min_p", "logprobs"]
            names += ["stream_options", "logit_bias", "echo", "tools", "best_of", "min_tokens"]
            changed[dice.choice(names)] = dice.choice(STRANGE)
        elif changed:
            del changed[dice.choice(list(changed))]
    data = bytearray(json.dumps(changed).encode())
    if dice.random() < 0.3:
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def test_mutated_bodies(server: Running) -> None:
    dice, seen = random.Random(1), Counter[int]()
    for number in range(max(CASES, 500)):
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
    assert len(operations) >= 11
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
        posts = operation.method.lower() == "post"
        for mode in (modes.POSITIVE, modes.NEGATIVE) if posts else (modes.POSITIVE,):

            def holds(case: Any) -> None:
                response = case.call(base_url=server.url)
                seen[response.status_code] += 1
                case.validate_response(response, checks=checks)

            tried = settings(
                max_examples=CASES // 8 if posts else 3,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            tried(given(case=operation.as_strategy(generation_mode=mode))(holds))()
    assert seen[200] and seen[400] and not any(status >= 500 for status in seen), seen
    server.good("/v1/completions", prompt="a", max_tokens=1)
    server.idle(60)
