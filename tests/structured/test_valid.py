"""Answers of the default model to schemas are valid when they end, whatever is drafted.

`benchmarks/structured.py --only validity` does the same with 500 schemas of JSONSchemaBench."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest

from foresay import LLM, SamplingParams, StructuredOutputs
from structured.schemas import Schema, schemas

pytestmark = pytest.mark.model

TOKENS = 120


@cache
def model() -> LLM:
    return LLM(drafter=None, memory=1 << 29)


def answers(llm: LLM, asked: list[Schema], temperature: float) -> list[Any]:
    params = [
        SamplingParams(
            max_tokens=TOKENS,
            temperature=temperature,
            seed=seed,
            structured_outputs=StructuredOutputs(json=schema),
        )
        for seed, schema in enumerate(asked)
    ]
    return llm.generate(["An example of a record as JSON: "] * len(asked), params)


def check(count: int, seed: int, temperature: float) -> None:
    asked = list(schemas(count, seed))
    plain = answers(model().beside(None, "none"), asked, temperature)
    drafted = answers(model().beside(), asked, temperature)
    ended = 0
    for schema, one, other in zip(asked, plain, drafted, strict=True):
        assert one.error is None, (schema, one.error)
        assert one.token_ids == other.token_ids, schema
        assert one.finish_reason == other.finish_reason
        if one.finish_reason == "stop":
            ended += 1
            value = json.loads(one.text)
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(value)
    assert ended > 0.8 * count, ended
    assert sum(one.stats.accepted for one in drafted) > count  # of what the forms force, at least


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_valid(temperature: float) -> None:
    check(12, 2, temperature)
