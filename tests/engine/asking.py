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
    asked: Sequence[tuple[list[int], SamplingParams]],
    stops: tuple[int, ...] = STOPS,
) -> list[list[int]]:
    """What the plain loop answers; a request's seed is its place."""
    row = rows_of(target)
    return [plain(row, p, params, seed, stops) for seed, (p, params) in enumerate(asked)]


def answers(engine: Engine, asked: Sequence[tuple[list[int], SamplingParams]]) -> list[Request]:
    """The same requests, answered by the engine."""
    requests = [
        engine.add(prompt, params, seed=seed, stops=STOPS)
        for seed, (prompt, params) in enumerate(asked)
    ]
    engine.run()
    engine.check_integrity()
    return requests


def letters(tokens: Sequence[int]) -> str:
    """The text of these tokens: one letter for each."""
    return "".join(chr(ord("a") + token % 26) for token in tokens)
