"""Requests, what the plain loop answers to them, and what an engine answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from torch import Tensor

from foresay import SamplingParams
from foresay.arrays import Int32s
from foresay.engine.engine import Engine
from foresay.engine.plain import NextLogits, logits_of, plain
from foresay.engine.request import Request
from foresay.models.target import Target
from models import zoo

Asked = Sequence[tuple[list[int], SamplingParams]]
GREEDY = SamplingParams(temperature=0, max_tokens=24)
ASKED = [
    GREEDY,
    SamplingParams(temperature=0.8, max_tokens=30),
    SamplingParams(temperature=1.0, top_k=20, top_p=0.9, min_p=0.01, max_tokens=17),
    SamplingParams(temperature=0.7, repetition_penalty=1.2, presence_penalty=0.3, max_tokens=20),
    SamplingParams(temperature=0, frequency_penalty=0.4, max_tokens=20, logit_bias={5: 2.0}),
    SamplingParams(temperature=1.0, min_tokens=9, max_tokens=25),
    SamplingParams(temperature=0, max_tokens=1),
    SamplingParams(temperature=0.9, max_tokens=2),
]
STOPS = (2, 9, 17)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 90, count)
    texts: list[list[int]] = []
    for size in sizes:  # with something to copy
        piece = random.integers(0, zoo.VOCABULARY, max(size // 3, 1))
        texts.append(np.tile(piece, 4)[:size].tolist())
    return texts


def rows_of(target: Target) -> NextLogits:
    """`logits_of`, each text computed once: many tests ask for the same answers."""
    same: Any = target  # a protocol says nothing of hashes
    return _remembered(same)


@cache
def _remembered(target: Any) -> NextLogits:
    row, known = logits_of(target), dict[tuple[int, bytes, int], Tensor]()

    def next_logits(text: Int32s, prompt: int) -> Tensor:
        key = (target.version, text.tobytes(), prompt)
        if key not in known:
            known[key] = row(text, prompt)
        return known[key]

    return next_logits


def wanted(
    target: Target,
    asked: Asked,
    stops: tuple[int, ...] = STOPS,
) -> list[list[int]]:
    """What the plain loop answers, once for all tests; a request's seed is its place."""
    same: Any = target
    row, done, texts = rows_of(target), _answered(same), list[list[int]]()
    for seed, (prompt, params) in enumerate(asked):
        key = (target.version, tuple(prompt), repr(params), seed, stops)
        if key not in done:
            done[key] = plain(row, prompt, params, seed, stops)
        texts.append(done[key].copy())
    return texts


@cache
def _answered(target: Any) -> dict[Any, list[int]]:
    return {}


def known(
    target: Target,
    asked: Asked,
    stops: tuple[int, ...] = STOPS,
) -> dict[tuple[int, ...], list[int]]:
    """The same by prompt, for drafters that know it."""
    texts = wanted(target, asked, stops)
    return {tuple(prompt): text for (prompt, _), text in zip(asked, texts, strict=True)}


def added(
    engine: Engine,
    asked: Asked,
    stops: tuple[int, ...] = STOPS,
) -> list[Request]:
    """The same requests, given to the engine."""
    return [engine.add(p, params, seed=seed, stops=stops) for seed, (p, params) in enumerate(asked)]


def answers(
    engine: Engine,
    asked: Asked,
    stops: tuple[int, ...] = STOPS,
) -> list[Request]:
    """The same, answered by the engine."""
    requests = added(engine, asked, stops)
    engine.run()
    engine.check_integrity()
    return requests


def tokens_of(requests: Sequence[Request]) -> list[list[int]]:
    return [request.token_ids for request in requests]


def check(
    engine: Engine,
    asked: Asked,
    stops: tuple[int, ...] = STOPS,
) -> list[Request]:
    """The same: the engine says what the plain loop says."""
    requests = answers(engine, asked, stops)
    assert tokens_of(requests) == wanted(engine.target, asked, stops)
    return requests


def letters(tokens: Sequence[int]) -> str:
    """The text of these tokens: one letter for each."""
    return "".join(chr(ord("a") + token % 26) for token in tokens)
