"""Long-tailed groups of answers without a model: depth-first searches for a number, written down.

A prompt is a few numbers and a target that can be made of them; an answer tries pairs and
operators, writes each step, goes back from dead ends, and ends when the target is found. How far
the samples of one prompt differ is set by `noise`. A token is a whole number or a symbol.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

import numpy as np

from foresay.traces import Trace

MOST = 200  # the largest number
_PLUS, _MINUS, _TIMES, _IS, _OPEN, _CLOSE, _DEAD, _FOUND, _END, _BEGIN, _OF = range(
    MOST + 1, MOST + 12
)


def countdown_groups(
    prompts: int,
    samples: int,
    *,
    numbers: int = 4,
    cap: int = 4096,
    noise: float = 1.0,
    garbled: float = 0.0,
    first: int = 0,
    seed: int,
) -> list[Trace]:
    """`samples` searches for each prompt, at most `cap` tokens long.

    garbled  the share of tokens that are replaced by random numbers: searches repeat themselves
             more than what models write
    first    the number of the first sample: other samples of the same prompts are another epoch
    """
    traces = []
    for prompt in range(prompts):
        draw = random.Random(f"{seed} {prompt}")
        given = [draw.randint(1, 30) for _ in range(numbers)]
        target = _made(given, draw)
        head = np.array([_BEGIN, *given, _OF, target], np.int32)
        for sample in range(first, first + samples):
            search = _search(given, target, noise, random.Random(f"{seed} {prompt} {sample}"))
            output = np.array(list(islice(search, cap)), np.int32)
            spoil = np.random.default_rng([seed, prompt, sample])
            wrong = spoil.random(len(output)) < garbled
            output[wrong] = spoil.integers(MOST, size=int(wrong.sum()))
            traces.append(Trace(f"{prompt}.{sample}", f"p{prompt}", head, output))
    return traces


def _made(given: list[int], draw: random.Random) -> int:
    """A number that can be made of all of them."""
    while True:
        left = list(given)
        while len(left) > 1:
            a, b = draw.sample(range(len(left)), 2)
            found = draw.choice(_results(left[a], left[b]) or [(0, -1)])[1]
            if found < 1:
                break
            left = [v for at, v in enumerate(left) if at not in (a, b)] + [found]
        if len(left) == 1:
            return left[0]


def _results(a: int, b: int) -> list[tuple[int, int]]:
    a, b = max(a, b), min(a, b)
    found = ((_PLUS, a + b), (_MINUS, a - b), (_TIMES, a * b))
    return [(sign, value) for sign, value in found if 1 <= value <= MOST]


def _search(given: list[int], target: int, noise: float, draw: random.Random) -> Iterator[int]:
    """The tokens of one search."""

    def visit(left: list[int]) -> Iterator[int | bool]:
        if len(left) == 1:
            yield left[0] == target
            return
        moves = []
        for a in range(len(left)):
            for b in range(a):
                for sign, value in _results(left[a], left[b]):
                    off = abs(value - target) / target
                    rank = off * (1 + noise * draw.random())
                    if len(left) > 2:
                        rank = off + noise * draw.random()
                    moves.append((rank, a, b, sign, value))
        for _, a, b, sign, value in sorted(moves):
            high, low = max(left[a], left[b]), min(left[a], left[b])
            rest = [v for at, v in enumerate(left) if at not in (a, b)] + [value]
            yield from (high, sign, low, _IS, value, _OPEN, *rest, _CLOSE)
            for token in visit(rest):
                if token is True:
                    yield True
                    return
                if token is not False:
                    yield token
        yield _DEAD
        yield False

    for token in visit(list(given)):
        if token is True:
            yield _FOUND
        elif token is not False:
            yield int(token)
    yield _END
